//! A prefix that is encoded once: every shard encodes the rows of its own summary, and sends their keys and values to the
//! later shards, whose rows see them as if they had encoded them themselves. The same numbers, row by row.

use std::ops::Range;

use asterism_kernels::{Backend, KvOps, Mask, TensorOps};
use asterism_plan::attention::causal_pairs;

use super::{Layer, Pass, Peers, Watch};
use crate::{ModelError, decoder::Projected};

/// Keys that prefixes see together before their attention is asked for: their copies are held until then.
const TOGETHER: usize = 64 << 10;

/// Queries, the keys that they see, and which of them.
type Call<B> = (<B as TensorOps>::Tensor, <B as KvOps>::Kv, Mask);

impl<B: Backend> Layer<'_, B> {
    pub(super) fn attend_behind_shared_prefix(
        &self,
        sink: usize,
        peers: &mut dyn Peers<B>,
        watch: &mut dyn Watch,
    ) -> Result<Vec<Vec<B::Tensor>>, ModelError> {
        let backend = self.backend();
        let later = self.passes.iter().filter(|pass| self.has_later(pass));
        let parcel = |pass: &Pass<'_, B>| Ok((self.keys_of(pass.shard.block), self.own(pass, sink)?.into()));
        peers.send_all(later.map(parcel).collect::<Result<_, ModelError>>()?)?;
        let (mut outputs, mut behind) = (Vec::with_capacity(self.passes.len()), Vec::new());
        let (mut prefixes, mut asked, mut keys) = (Vec::new(), Vec::new(), 0);
        // Of all shards before the pass, in block order.
        let (mut earlier, mut joined) = (None, 0);
        for (number, pass) in self.passes.iter().enumerate() {
            for from in joined..pass.shard.block {
                earlier = Some(self.joined(earlier, self.keys_from(from, peers)?)?);
            }
            joined = pass.shard.block;
            let (prefix, rows) = (pass.shard.prefix_rows(), pass.shard.rows());
            let apart = if pass.shard.block == 0 { sink.min(rows - prefix) } else { 0 };
            outputs.push(self.block(pass, earlier.clone(), (prefix..rows, apart), watch)?);
            if prefix == 0 {
                continue;
            }
            // What its prefix sees is what the next shard sees before itself.
            let upto = self.joined(earlier, self.own(pass, sink)?)?;
            let calls = self.calls(&pass.qkv.q, &upto, 0..prefix)?;
            self.seen(pass, backend.shape(&upto[0])[1], prefix, watch);
            keys += calls.iter().map(|(_, kv, _)| backend.kv_len(kv)).sum::<usize>();
            behind.extend(calls.iter().map(|_| number));
            asked.extend(calls);
            (earlier, joined) = (Some(upto), joined + 1);
            if keys >= TOGETHER {
                prefixes.append(&mut backend.attention_each(&std::mem::take(&mut asked))?);
                keys = 0;
            }
        }
        prefixes.append(&mut backend.attention_each(&asked)?);
        let mut pieces: Vec<Vec<B::Tensor>> = outputs.iter().map(|_| Vec::new()).collect();
        behind.into_iter().zip(prefixes).for_each(|(number, prefix)| pieces[number].push(prefix));
        pieces.iter_mut().zip(outputs).for_each(|(pieces, block)| pieces.extend(block));
        Ok(pieces)
    }

    /// Keys and values, then more of them.
    fn joined(&self, before: Option<[B::Tensor; 2]>, more: [B::Tensor; 2]) -> Result<[B::Tensor; 2], ModelError> {
        let Some(before) = before else { return Ok(more) };
        Ok(self.backend().extended([[&before[0], &more[0]], [&before[1], &more[1]]])?)
    }

    /// Keys and values that later shards see: of the first shard its leading block rows, of each its prefix rows.
    fn own(&self, pass: &Pass<'_, B>, sink: usize) -> Result<[B::Tensor; 2], ModelError> {
        let (backend, Projected { k, v, .. }, prefix) = (self.backend(), &pass.qkv, pass.shard.prefix_rows());
        let part = |x: &B::Tensor| -> Result<B::Tensor, ModelError> {
            let own = backend.narrow(x, 1, 0, prefix)?;
            Ok(match pass.shard.block {
                0 => backend.concat(&[backend.narrow(x, 1, prefix, prefix + sink)?, own], 1)?,
                _ => own,
            })
        };
        Ok([part(k)?, part(v)?])
    }

    /// Attention output of a pass that has all of its prefix before its block, to the bits that these rows have where they
    /// are shared.
    pub(super) fn behind_own_prefix(
        &self,
        pass: &Pass<'_, B>,
        watch: &mut dyn Watch,
    ) -> Result<Vec<B::Tensor>, ModelError> {
        let rows = pass.shard.rows();
        self.block(pass, None, (0..rows, pass.shard.apart_rows.min(rows)), watch)
    }

    /// Attention output of a pass's rows, over what stands before them and themselves. The first `apart` are computed by
    /// themselves.
    fn block(
        &self,
        pass: &Pass<'_, B>,
        before: Option<[B::Tensor; 2]>,
        (rows, apart): (Range<usize>, usize),
        watch: &mut dyn Watch,
    ) -> Result<Vec<B::Tensor>, ModelError> {
        let (backend, Projected { q, k, v }) = (self.backend(), &pass.qkv);
        let cut = |x: &B::Tensor| backend.narrow(x, 1, rows.start, rows.end);
        let keys = self.joined(before, [cut(k)?, cut(v)?])?;
        self.seen(pass, backend.shape(&keys[0])[1], rows.len(), watch);
        let apart = if backend.independent_rows() == 0 { 0 } else { apart };
        let start = rows.start + apart;
        let mut outputs = Vec::new();
        if apart > 0 {
            let mut upto = keys.clone();
            for x in &mut upto {
                *x = backend.narrow(x, 1, 0, backend.shape(x)[1] - (rows.end - start))?;
            }
            outputs = backend.attention_each(&self.calls(q, &upto, rows.start..start)?)?;
        }
        if start < rows.end {
            let kv = self.phase.decoder.kv(&keys[0], &keys[1])?;
            outputs.push(backend.attention(&backend.narrow(q, 1, start, rows.end)?, &kv, Mask::Causal)?.output);
        }
        Ok(outputs)
    }

    /// Calls of some rows over keys of which the last are their own: of no more rows than stand alone.
    fn calls(&self, q: &B::Tensor, [k, v]: &[B::Tensor; 2], rows: Range<usize>) -> Result<Vec<Call<B>>, ModelError> {
        let (backend, decoder) = (self.backend(), self.phase.decoder);
        let (keys, most) = (backend.shape(k)[1], backend.independent_rows());
        let step = if most == 0 { rows.len().max(1) } else { most };
        let call = |start: usize| -> Result<_, ModelError> {
            let end = rows.end.min(start + step);
            let seen = keys - (rows.end - end);
            let kv = match seen == keys {
                true => decoder.kv(k, v)?,
                false => decoder.kv(&backend.narrow(k, 1, 0, seen)?, &backend.narrow(v, 1, 0, seen)?)?,
            };
            Ok((backend.narrow(q, 1, start, end)?, kv, Mask::Causal))
        };
        rows.clone().step_by(step).map(call).collect()
    }

    /// The last of so many keys are those of the rows themselves.
    fn seen(&self, pass: &Pass<'_, B>, keys: usize, rows: usize, watch: &mut dyn Watch) {
        watch.pairs(pass.shard.block, self.query_heads() * (((keys - rows) * rows) as u64 + causal_pairs(rows)));
    }
}
