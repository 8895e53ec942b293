//! A prefix that is encoded once: every shard encodes the rows of its own summary, and sends their keys and values to the
//! later shards, whose rows see them as if they had encoded them themselves. The same numbers, row by row.

use asterism_kernels::{Backend, Mask};
use asterism_plan::attention::causal_pairs;

use super::{Layer, Pass, Peers, Watch};
use crate::{ModelError, decoder::Projected};

/// Keys that prefixes see together before their attention is asked for: their copies are held until then.
const TOGETHER: usize = 64 << 10;

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
        let (mut blocks, mut prefixes) = (Vec::with_capacity(self.passes.len()), Vec::new());
        let (mut asked, mut keys) = (Vec::new(), 0);
        // Of all shards before the pass, in block order.
        let (mut earlier, mut joined) = (None, 0);
        for pass in self.passes {
            for from in joined..pass.shard.block {
                earlier = Some(self.joined(earlier, self.keys_from(from, peers)?)?);
            }
            joined = pass.shard.block;
            let mut before = earlier.clone();
            let (prefix, rows) = (pass.shard.prefix_rows(), pass.shard.rows());
            let (q, kv) = self.behind(pass, before.as_ref(), prefix..rows, watch)?;
            blocks.push(backend.attention(&q, &kv, Mask::Causal)?.output);
            if prefix == 0 {
                continue;
            }
            if pass.shard.block == 0 {
                let Projected { k, v, .. } = &pass.qkv;
                before =
                    Some([backend.narrow(k, 1, prefix, prefix + sink)?, backend.narrow(v, 1, prefix, prefix + sink)?]);
            }
            let (q, kv) = self.behind(pass, before.as_ref(), 0..prefix, watch)?;
            keys += backend.kv_len(&kv);
            asked.push((q, kv, Mask::Causal));
            if keys >= TOGETHER {
                prefixes.append(&mut backend.attention_each(&std::mem::take(&mut asked))?);
                keys = 0;
            }
        }
        prefixes.append(&mut backend.attention_each(&asked)?);
        let mut prefixes = prefixes.into_iter();
        let whole = |(pass, block): (&Pass<'_, B>, B::Tensor)| match pass.shard.prefix_rows() {
            0 => Ok(block),
            _ => Ok(backend.concat(&[prefixes.next().expect("one for each"), block], 1)?),
        };
        self.passes.iter().zip(blocks).map(whole).collect()
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

    /// Queries of some rows of a pass, and the keys that they see: what stands before them, then their own.
    fn behind(
        &self,
        pass: &Pass<'_, B>,
        before: Option<&[B::Tensor; 2]>,
        rows: std::ops::Range<usize>,
        watch: &mut dyn Watch,
    ) -> Result<(B::Tensor, B::Kv), ModelError> {
        let (backend, Projected { q, k, v }) = (self.backend(), &pass.qkv);
        let cut = |x: &B::Tensor| backend.narrow(x, 1, rows.start, rows.end);
        let [k, v] = self.joined(before.cloned(), [cut(k)?, cut(v)?])?;
        let kv = backend.kv(&k, &v)?;
        let earlier = backend.kv_len(&kv) - rows.len();
        watch.pairs(pass.shard.block, self.query_heads() * ((earlier * rows.len()) as u64 + causal_pairs(rows.len())));
        Ok((cut(q)?, kv))
    }
}
