//! Attention of chains' shards: each sees the keys that all shards before it keep, and its own. Rows of the shards before are
//! not computed here. Keys of the shards before are read as they are kept, whether these were encoded here or elsewhere, so that a shard
//! that is encoded anew has the bits it had.

use std::sync::Arc;

use asterism_kernels::{Backend, Mask};
use asterism_plan::attention::causal_pairs;

use super::{EncodedShard, Layer, Pass, Watch, windowed::windowed_pairs};
use crate::ModelError;

impl<B: Backend> Layer<'_, B> {
    /// Whether passes are of chains: a chain's first shard alone has nothing behind it.
    pub(super) fn has_chains(&self) -> bool {
        self.passes.iter().any(|pass| pass.shard.behind > 0)
    }

    /// Attention output of each pass over the cache of its chain, which grows pass by pass. In a layer with a window rows see the latest
    /// tokens of it. Shards that are whole contexts are chains of one.
    pub(super) fn attend_chained(
        &self,
        window: Option<usize>,
        watch: &mut dyn Watch,
    ) -> Result<Vec<Vec<B::Tensor>>, ModelError> {
        let backend = self.backend();
        let mut seen = None;
        let mut chains = self.phase.behind.iter().peekable();
        let mut outputs = Vec::with_capacity(self.passes.len());
        for (at, pass) in self.passes.iter().enumerate() {
            if let Some(chain) = chains.next_if(|chain| chain.before == at) {
                let end = chains.peek().map_or(self.passes.len(), |next| next.before);
                seen = self.seen_before(chain.shards, &self.passes[at..end])?;
            } else if pass.shard.behind == 0 {
                seen = None;
            }
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
            // A whole context beside chains is attended to as it is where it is encoded alone.
            let partial = match behind {
                0 => backend.attention(&pass.qkv.q, &kv, mask)?,
                _ => backend.attention_together(&pass.qkv.q, &kv, mask)?,
            };
            outputs.push(vec![self.settled(partial)?]);
            seen = Some(self.behind(kv, pass, behind)?);
        }
        Ok(outputs)
    }

    /// Keys of these shards of a chain in one cache, with room for those of its passes; none of none.
    fn seen_before(
        &self,
        earlier: &[Arc<EncodedShard<B>>],
        passes: &[Pass<'_, B>],
    ) -> Result<Option<B::Kv>, ModelError> {
        let mut kept = earlier.iter().map(|shard| &shard.layers[self.index]);
        let Some(first) = kept.next() else { return Ok(None) };
        let rows = passes.iter().map(|pass| pass.shard.rows()).sum();
        Ok(Some(self.backend().kv_joined(first, &kept.collect::<Vec<_>>(), rows)?))
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
