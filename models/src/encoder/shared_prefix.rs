//! A prefix that is encoded once: every shard encodes the rows of its own summary, and sends their keys and values to the
//! later shards, whose rows see them as if they had encoded them themselves. The same numbers, row by row.

use asterism_kernels::{Backend, Mask};
use asterism_plan::attention::causal_pairs;

use super::{Layer, Pass, Peers, Watch};
use crate::{ModelError, decoder::Projected};

impl<B: Backend> Layer<'_, B> {
    pub(super) fn attend_behind_shared_prefix(
        &self,
        sink: usize,
        peers: &mut dyn Peers<B>,
        watch: &mut dyn Watch,
    ) -> Result<Vec<B::Tensor>, ModelError> {
        let backend = self.backend();
        for pass in self.passes.iter().filter(|pass| self.has_later(pass)) {
            peers.send(self.keys_of(pass.shard.block), self.shared(pass, sink)?)?;
        }
        let mut outputs = Vec::with_capacity(self.passes.len());
        // Of all shards before the pass, in block order.
        let (mut earlier, mut joined) = (None, 0);
        for pass in self.passes {
            for from in joined..pass.shard.block {
                earlier = Some(self.joined(earlier, self.keys_from(from, peers)?)?);
            }
            joined = pass.shard.block;
            let mut before = earlier.clone();
            let (prefix, rows) = (pass.shard.prefix_rows(), pass.shard.rows());
            let block = self.behind(pass, before.as_ref(), prefix..rows, watch)?;
            if prefix == 0 {
                outputs.push(block);
                continue;
            }
            if pass.shard.block == 0 {
                let Projected { k, v, .. } = &pass.qkv;
                before =
                    Some([backend.narrow(k, 1, prefix, prefix + sink)?, backend.narrow(v, 1, prefix, prefix + sink)?]);
            }
            let own = self.behind(pass, before.as_ref(), 0..prefix, watch)?;
            outputs.push(backend.concat(&[own, block], 1)?);
        }
        Ok(outputs)
    }

    /// Keys and values, then more of them.
    fn joined(
        &self,
        before: Option<[B::Tensor; 2]>,
        [more_k, more_v]: [B::Tensor; 2],
    ) -> Result<[B::Tensor; 2], ModelError> {
        let Some([k, v]) = before else { return Ok([more_k, more_v]) };
        Ok([self.backend().concat(&[k, more_k], 1)?, self.backend().concat(&[v, more_v], 1)?])
    }

    /// Keys and values that later shards see: of the first shard its leading block rows, of each its prefix rows.
    fn shared(&self, pass: &Pass<'_, B>, sink: usize) -> Result<Vec<B::Tensor>, ModelError> {
        let (backend, Projected { k, v, .. }, prefix) = (self.backend(), &pass.qkv, pass.shard.prefix_rows());
        let part = |x: &B::Tensor| -> Result<B::Tensor, ModelError> {
            let own = backend.narrow(x, 1, 0, prefix)?;
            Ok(match pass.shard.block {
                0 => backend.concat(&[backend.narrow(x, 1, prefix, prefix + sink)?, own], 1)?,
                _ => own,
            })
        };
        Ok(vec![part(k)?, part(v)?])
    }

    /// Output of some rows of a pass over what stands before them, then themselves.
    fn behind(
        &self,
        pass: &Pass<'_, B>,
        before: Option<&[B::Tensor; 2]>,
        rows: std::ops::Range<usize>,
        watch: &mut dyn Watch,
    ) -> Result<B::Tensor, ModelError> {
        let (backend, Projected { q, k, v }) = (self.backend(), &pass.qkv);
        let cut = |x: &B::Tensor| backend.narrow(x, 1, rows.start, rows.end);
        let [k, v] = self.joined(before.cloned(), [cut(k)?, cut(v)?])?;
        let kv = backend.kv(&k, &v)?;
        let earlier = backend.kv_len(&kv) - rows.len();
        watch.pairs(pass.shard.block, self.query_heads() * ((earlier * rows.len()) as u64 + causal_pairs(rows.len())));
        Ok(backend.attention(&cut(q)?, &kv, Mask::Causal)?.output)
    }
}
