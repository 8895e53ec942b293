//! Ring attention: a shard's rows see the keys of all earlier shards, and partials merge from the nearest to the farthest.

use asterism_kernels::{Backend, Mask};

use super::{Layer, Parcel, Part, Peers, Watch};
use crate::{ModelError, decoder::Projected};

impl<B: Backend> Layer<'_, B> {
    pub(super) fn attend_around_ring(
        &self,
        peers: &mut dyn Peers<B>,
        watch: &mut dyn Watch,
    ) -> Result<Vec<B::Tensor>, ModelError> {
        let (backend, layer) = (self.backend(), self.index);
        let parcel = |from| Parcel { layer, part: Part::Keys, from, to: None };
        for pass in self.passes.iter().filter(|pass| self.has_later(pass)) {
            peers.send(parcel(pass.shard.block), vec![pass.qkv.k.clone(), pass.qkv.v.clone()])?;
        }
        let mut outputs = Vec::with_capacity(self.passes.len());
        for pass in self.passes {
            let Projected { q, .. } = &pass.qkv;
            let mut partials = vec![self.local(pass, watch)?];
            for from in (0..pass.shard.block).rev() {
                let [k, v] = keys(peers.receive(parcel(from))?);
                let kv = backend.kv(&k, &v)?;
                let pairs = pass.shard.input_ids.len() * backend.kv_len(&kv);
                watch.pairs(pass.shard.block, self.query_heads() * pairs as u64);
                partials.push(backend.attention(q, &kv, Mask::None)?);
            }
            outputs.push(backend.merge(&partials)?.output);
        }
        Ok(outputs)
    }
}

/// A parcel of keys and values.
pub(super) fn keys<T>(tensors: Vec<T>) -> [T; 2] {
    tensors.try_into().ok().expect("carriers deliver what was sent: keys, then values")
}
