//! Attention of a chain's shards: each sees the keys that all shards before it keep, and its own. Rows of the shards before are
//! not computed here. Keys of the shards before are read as they are kept, whether these were encoded here or elsewhere, so that a shard
//! that is encoded anew has the bits it had.

use asterism_kernels::{Backend, Mask};
use asterism_plan::attention::causal_pairs;

use super::{Layer, Pass, Watch, windowed::windowed_pairs};
use crate::ModelError;

impl<B: Backend> Layer<'_, B> {
    /// Whether the passes are of a chain: its first shard alone has nothing behind it.
    pub(super) fn is_chain(&self) -> bool {
        self.passes.iter().any(|pass| pass.shard.behind > 0)
    }

    /// Attention output of each pass over one cache, which grows pass by pass. In a layer with a window rows see the latest tokens of it.
    pub(super) fn attend_chained(
        &self,
        window: Option<usize>,
        watch: &mut dyn Watch,
    ) -> Result<Vec<Vec<B::Tensor>>, ModelError> {
        let backend = self.backend();
        let mut kept = self.phase.behind.iter().map(|shard| &shard.layers[self.index]);
        let rows = self.passes.iter().map(|pass| pass.shard.rows()).sum();
        let mut seen = match kept.next() {
            Some(first) => Some(backend.kv_joined(first, &kept.collect::<Vec<_>>(), rows)?),
            None => None,
        };
        let mut outputs = Vec::with_capacity(self.passes.len());
        for pass in self.passes {
            let (behind, rows) = (seen.as_ref().map_or(0, |kv| backend.kv_len(kv)), pass.shard.rows());
            if behind != pass.shard.behind {
                return Err(ModelError::Behind { block: pass.shard.block, expected: pass.shard.behind, got: behind });
            }
            let kv = match seen.take() {
                None => pass.kv.clone(),
                Some(mut kv) => {
                    backend.kv_extend(&mut kv, &pass.kv)?;
                    kv
                }
            };
            let mask = match window {
                None => Mask::Causal,
                Some(window) => Mask::Streaming { sink: 0, window, first_row: behind, first_key: 0 },
            };
            let pairs = |tokens| window.map_or_else(|| causal_pairs(tokens), |window| windowed_pairs(tokens, window));
            watch.pairs(pass.shard.block, self.query_heads() * (pairs(behind + rows) - pairs(behind)));
            outputs.push(vec![self.settled(backend.attention(&pass.qkv.q, &kv, mask)?)?]);
            seen = Some(self.behind(kv, pass, behind)?);
        }
        Ok(outputs)
    }

    /// What the next pass finds: keys of this one as they are kept, behind so many others.
    fn behind(&self, mut kv: B::Kv, pass: &Pass<'_, B>, others: usize) -> Result<B::Kv, ModelError> {
        let backend = self.backend();
        if let Some(kept) = &pass.kept {
            backend.kv_truncate(&mut kv, others)?;
            backend.kv_extend(&mut kv, kept)?;
        }
        Ok(kv)
    }
}
