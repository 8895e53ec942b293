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
        for pass in self.passes {
            let mut before = self.earlier_keys(pass, peers)?;
            let (prefix, rows) = (pass.shard.prefix_rows(), pass.shard.rows());
            let block = self.behind(pass, &before, prefix..rows, watch)?;
            if prefix == 0 {
                outputs.push(block);
                continue;
            }
            if pass.shard.block == 0 {
                let Projected { k, v, .. } = &pass.qkv;
                before
                    .push([backend.narrow(k, 1, prefix, prefix + sink)?, backend.narrow(v, 1, prefix, prefix + sink)?]);
            }
            let own = self.behind(pass, &before, 0..prefix, watch)?;
            outputs.push(backend.concat(&[own, block], 1)?);
        }
        Ok(outputs)
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
        before: &[[B::Tensor; 2]],
        rows: std::ops::Range<usize>,
        watch: &mut dyn Watch,
    ) -> Result<B::Tensor, ModelError> {
        let (backend, Projected { q, k, v }) = (self.backend(), &pass.qkv);
        let cut = |x: &B::Tensor| backend.narrow(x, 1, rows.start, rows.end);
        let all = |own: B::Tensor, at: usize| {
            let parts: Vec<_> = before.iter().map(|pair| pair[at].clone()).chain([own]).collect();
            backend.concat(&parts, 1)
        };
        let kv = backend.kv(&all(cut(k)?, 0)?, &all(cut(v)?, 1)?)?;
        let earlier = backend.kv_len(&kv) - rows.len();
        watch.pairs(pass.shard.block, self.query_heads() * ((earlier * rows.len()) as u64 + causal_pairs(rows.len())));
        Ok(backend.attention(&cut(q)?, &kv, Mask::Causal)?.output)
    }
}
