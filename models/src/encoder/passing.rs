//! APB's exchange: in every layer a shard passes its highest-scored keys and values on, and the block rows of later shards
//! see them. Passed keys are read by attention alone: they have no rows of their own and are not kept.

use asterism_kernels::{Backend, Mask, top_k};
use asterism_plan::{Passing, PassingScore};

use super::{Chosen, Layer, Parcel, Part, Pass, Peers, Watch, max_pool};
use crate::{ModelError, decoder::Projected};

impl<B: Backend> Layer<'_, B> {
    pub(super) fn attend_with_passed(
        &self,
        passing: &Passing,
        peers: &mut dyn Peers<B>,
        watch: &mut dyn Watch,
    ) -> Result<Vec<B::Tensor>, ModelError> {
        let backend = self.backend();
        self.export_queries(passing, peers)?;
        for pass in self.passes.iter().filter(|pass| self.has_later(pass)) {
            let rows = self.best_rows(pass, passing, peers)?;
            watch.chosen(self.index, pass.shard.block, Chosen::Passed(&rows));
            let Projected { k, v, .. } = &pass.qkv;
            peers.send(self.keys_of(pass.shard.block), vec![backend.gather(k, &rows)?, backend.gather(v, &rows)?])?;
        }
        let mut outputs = Vec::with_capacity(self.passes.len());
        for pass in self.passes {
            let local = self.local(pass, watch)?;
            if pass.shard.block == 0 {
                outputs.push(self.settled(local)?);
                continue;
            }
            let passed = self.earlier_keys(pass, peers)?;
            let all = |at: usize| {
                backend.concat(&passed.iter().map(|pair: &[B::Tensor; 2]| pair[at].clone()).collect::<Vec<_>>(), 1)
            };
            let kv = self.phase.decoder.kv(&all(0)?, &all(1)?)?;
            let pairs = pass.shard.block_tokens() * backend.kv_len(&kv);
            watch.pairs(pass.shard.block, self.query_heads() * pairs as u64);
            let partial = backend.attention(&pass.qkv.q, &kv, Mask::From { row: pass.shard.prefix_rows() })?;
            outputs.push(self.settled(backend.merge(&[local, partial])?)?);
        }
        Ok(outputs)
    }

    /// The first shard has no anchor and so no query: the second lends its own.
    fn export_queries(&self, passing: &Passing, peers: &mut dyn Peers<B>) -> Result<(), ModelError> {
        let PassingScore::Query { rows } = &passing.score else { return Ok(()) };
        for pass in self.passes.iter().filter(|pass| pass.shard.block == 1) {
            let queries = self.backend().narrow(&pass.qkv.q, 1, rows.start, rows.end)?;
            peers.send(self.exported(), vec![queries])?;
        }
        Ok(())
    }

    fn exported(&self) -> Parcel {
        Parcel { layer: self.index, part: Part::Queries, from: 1, to: Some(0) }
    }

    /// Rows to pass on, ascending, for each KV head.
    fn best_rows(
        &self,
        pass: &Pass<'_, B>,
        passing: &Passing,
        peers: &mut dyn Peers<B>,
    ) -> Result<Vec<Vec<u32>>, ModelError> {
        let (backend, rows, first) = (self.backend(), pass.shard.rows(), passing.first_row(pass.shard));
        let scores = match &passing.score {
            PassingScore::Heads { name } => {
                let missing = || ModelError::NoRetainingHeads { name: name.clone() };
                let heads = self.phase.heads.ok_or_else(missing)?;
                let raw = pass.raw.as_ref().expect("it is kept where there are heads");
                let scores = heads.scores(backend, self.index, raw)?;
                scores.into_iter().map(|head| max_pool(&head, passing.pool)[first..].to_vec()).collect::<Vec<_>>()
            }
            PassingScore::Query { rows: query } => {
                let q = match pass.shard.block {
                    0 => peers.receive(self.exported())?.swap_remove(0),
                    _ => backend.narrow(&pass.qkv.q, 1, query.start, query.end)?,
                };
                let scores = backend.key_scores(&q, &pass.qkv.k)?;
                scores.chunks(rows).map(|head| max_pool(&head[first..], passing.pool)).collect()
            }
        };
        let row = |at: usize| (at + first) as u32;
        Ok(scores.iter().map(|scores| top_k(scores, passing.tokens).into_iter().map(row).collect()).collect())
    }
}
