//! Ulysses' exchange: shard `i` gets every row of the `i`th share of the heads, attends causally, and returns the outputs to
//! the rows' owners.

use std::ops::Range;

use asterism_kernels::{Backend, Heads, Mask};
use asterism_plan::{HeadShare, attention::causal_pairs};

use super::{Layer, Parcel, Part, Pass, Peers, Watch, windowed::windowed_pairs};
use crate::{ModelError, decoder::Projected};

impl<B: Backend> Layer<'_, B> {
    pub(super) fn attend_by_heads(
        &self,
        mask: Mask,
        peers: &mut dyn Peers<B>,
        watch: &mut dyn Watch,
    ) -> Result<Vec<B::Tensor>, ModelError> {
        let (backend, blocks) = (self.backend(), self.phase.blocks);
        let shares = self.phase.decoder.config().shape(backend.kv_type()).head_shares(blocks);
        let parcel = |part, from, to| Parcel { layer: self.index, part, from, to: Some(to) };
        for pass in self.passes {
            for (to, share) in shares.iter().enumerate() {
                peers.send(parcel(Part::Heads, pass.shard.block, to), self.share(pass, share)?)?;
            }
        }
        for pass in self.passes {
            let own = pass.shard.block;
            let received =
                (0..blocks).map(|from| peers.receive(parcel(Part::Heads, from, own))).collect::<Result<Vec<_>, _>>()?;
            let rows: Vec<usize> = received.iter().map(|parts| backend.shape(&parts[0])[1]).collect();
            let all =
                |at: usize| backend.concat(&received.iter().map(|parts| parts[at].clone()).collect::<Vec<_>>(), 1);
            let output = self.attend_share((&shares[own], mask), [all(0)?, all(1)?, all(2)?], own, watch)?;
            // As it travels, wherever it goes: what came from another process lies beside what was made here.
            let output = backend.cast(&output)?;
            let mut start = 0;
            for (to, rows) in rows.into_iter().enumerate() {
                let part = backend.narrow(&output, 1, start, start + rows)?;
                peers.send(parcel(Part::Outputs, own, to), vec![part])?;
                start += rows;
            }
        }
        let gathered = |pass: &Pass<'_, B>| {
            let mut heads = Vec::with_capacity(blocks);
            for from in 0..blocks {
                heads.append(&mut peers.receive(parcel(Part::Outputs, from, pass.shard.block))?);
            }
            Ok(backend.concat(&heads, 0)?)
        };
        self.passes.iter().map(gathered).collect()
    }

    fn share(&self, pass: &Pass<'_, B>, share: &HeadShare) -> Result<Vec<B::Tensor>, ModelError> {
        let (backend, Projected { q, k, v }) = (self.backend(), &pass.qkv);
        let cut = |x: &B::Tensor, heads: &Range<usize>| backend.narrow(x, 0, heads.start, heads.end);
        Ok(vec![cut(q, &share.query)?, cut(k, &share.kv)?, cut(v, &share.kv)?])
    }

    /// Output `(heads of the share, context tokens, dim)` of one share of the heads.
    fn attend_share(
        &self,
        (share, mask): (&HeadShare, Mask),
        [q, k, v]: [B::Tensor; 3],
        block: usize,
        watch: &mut dyn Watch,
    ) -> Result<B::Tensor, ModelError> {
        let backend = self.backend();
        let Heads { query, kv, .. } = self.phase.decoder.config().heads;
        // Where a share cuts a group of query heads, groups are uneven: each query head gets a copy of its KV head.
        let own = |head: usize| head / (query / kv) - share.kv.start;
        let each = share.query.len() / share.kv.len();
        let even =
            share.query.clone().enumerate().all(|(at, head)| own(head) * each <= at && at < (own(head) + 1) * each);
        let spread = |x: B::Tensor| -> Result<B::Tensor, ModelError> {
            if even {
                return Ok(x);
            }
            let copies: Vec<_> = share
                .query
                .clone()
                .map(|head| backend.narrow(&x, 0, own(head), own(head) + 1))
                .collect::<Result<_, _>>()?;
            Ok(backend.concat(&copies, 0)?)
        };
        let kv = self.phase.decoder.kv(&spread(k)?, &spread(v)?)?;
        let tokens = backend.kv_len(&kv);
        let pairs = match mask {
            Mask::Streaming { window, .. } => windowed_pairs(tokens, window),
            _ => causal_pairs(tokens),
        };
        watch.pairs(block, share.query.len() as u64 * pairs);
        self.phase.decoder.settled(self.index, backend.attention(&q, &kv, mask)?, share.query.clone())
    }
}
