//! Ring attention as a broadcast: a shard's rows see the keys of all earlier shards, which these send to all later ones; partials
//! merge from the nearest to the farthest.

use asterism_kernels::{Backend, Mask};

use super::{Layer, Peers, Watch};
use crate::{ModelError, decoder::Projected};

impl<B: Backend> Layer<'_, B> {
    pub(super) fn attend_with_all_earlier(
        &self,
        peers: &mut dyn Peers<B>,
        watch: &mut dyn Watch,
    ) -> Result<Vec<B::Tensor>, ModelError> {
        let backend = self.backend();
        for pass in self.passes.iter().filter(|pass| self.has_later(pass)) {
            peers.send(self.keys_of(pass.shard.block), vec![pass.qkv.k.clone(), pass.qkv.v.clone()])?;
        }
        let mut outputs = Vec::with_capacity(self.passes.len());
        for pass in self.passes {
            let Projected { q, .. } = &pass.qkv;
            let mut partials = vec![self.local(pass, watch)?];
            for [k, v] in self.earlier_keys(pass, peers)?.into_iter().rev() {
                let kv = self.phase.decoder.kv(&k, &v)?;
                let pairs = pass.shard.rows() * backend.kv_len(&kv);
                watch.pairs(pass.shard.block, self.query_heads() * pairs as u64);
                partials.push(backend.attention(q, &kv, Mask::None)?);
            }
            outputs.push(self.settled(backend.merge(&partials)?)?);
        }
        Ok(outputs)
    }
}
