//! Few rows of many calls at once: one launch over the pieces of all keys, one that combines them, one that merges groups, one copy
//! to the host. The arithmetic is that of each call alone.

use super::super::super::device::{Device, SPLIT_KEY_ROWS};
use super::super::super::kv::CudaKv;
use super::super::super::tensor::Tensor;
use super::asks::{AskedKeys, asked_of, grouped, parts_of};
use super::merges::{MergeTarget, Merges};
use super::rounds::{AskedRows, ResultAddress, RoundLayout};
use super::table::Table;
use crate::operands::packed::{check_asks, check_groups};
use crate::{Ask, DType, Heads, KernelError, KvFormat, Mask};

impl Device {
    /// As `BatchAttention::attend_many`, where the kernels that cut keys take all asks; says whether they do.
    pub(in super::super::super) fn attend_many(
        &self,
        heads: Heads,
        q: &Tensor,
        asks: &[Ask<'_, CudaKv>],
        packed: &mut Vec<f32>,
    ) -> Result<bool, KernelError> {
        let Some(rows) = self.attend_groups(heads, q, (asks, &vec![1; asks.len()]))? else { return Ok(false) };
        self.download_floats(rows.pointer(), rows.elements(), packed)?;
        Ok(true)
    }

    /// The packed rows of each group, `(rows, packed row)` f32, on the device.
    pub(in super::super::super) fn attend_groups(
        &self,
        heads: Heads,
        q: &Tensor,
        (asks, groups): (&[Ask<'_, CudaKv>], &[usize]),
    ) -> Result<Option<Tensor>, KernelError> {
        check_asks(heads, q.shape(), asks, |ask| ask.kv.len())?;
        check_groups(asks, groups)?;
        let Some(kept) = self.cuts(heads, q, asks) else { return Ok(None) };
        let row = heads.packed_row();
        // What holes leave of an ask's keys is asked range by range, and merged with the rest of its group.
        let parts: Vec<Vec<AskedKeys<'_, '_>>> = grouped(asks, groups).map(parts_of).collect();
        let several = parts.iter().filter(|parts| parts.len() > 1).flatten();
        let partials = self.alloc(4 * row * several.map(|(ask, _)| ask.rows.len()).sum::<usize>())?;
        let merged: usize = parts.iter().map(|parts| parts[0].0.rows.len()).sum();
        let results = self.empty(&[merged, row], DType::F32)?;
        let (mut table, mut places, mut merges) = (Table::default(), Vec::with_capacity(asks.len()), Merges::default());
        let (mut from, mut to) = (partials.pointer, 0);
        for parts in &parts {
            let rows = parts[0].0.rows.len();
            match &parts[..] {
                [_] => places.push(results.pointer() + (4 * row * to) as u64),
                parts => {
                    let each = (4 * row * rows) as u64;
                    let first = from;
                    from += each * parts.len() as u64;
                    let of_group = (0..parts.len() as u64).map(|part| first + part * each);
                    places.extend(of_group.clone());
                    merges.add(of_group, rows, to);
                }
            }
            to += rows;
        }
        let q = self.asking(heads, q, kept)?;
        let asked = asked_of(heads, q.token_major(heads.query)?, parts.iter().flatten(), places.into_iter());
        let (rounds, _held) = self.rounds((heads, kept), asked)?;
        let laid: Vec<RoundLayout> = rounds.iter().map(|round| round.lay(&mut table)).collect();
        let merge = merges.lay(&mut table);
        let sent = self.send(&table)?;
        for (round, places) in rounds.iter().zip(laid) {
            self.attend_round(heads, round, &places, &sent)?;
        }
        self.merge_laid(heads, &merges, (&sent, merge), MergeTarget::Rows(results.pointer()))?;
        Ok(Some(results))
    }

    /// Outputs of attention of each `(q (query heads, t, dim), keys, mask)`, in f32, where the kernels that cut keys take all, of keys in
    /// compute type.
    pub(in super::super::super) fn attend_few_each(
        &self,
        calls: &[(Tensor, CudaKv, Mask)],
    ) -> Result<Option<Vec<Tensor>>, KernelError> {
        let Some((first, ..)) = calls.first() else { return Ok(Some(Vec::new())) };
        let (query, _, dim) = first.cube("attention")?;
        let heads = Heads { query, kv: calls[0].1.of().0[0], dim };
        let suits = |(q, kv, _): &(Tensor, CudaKv, Mask)| {
            let ((of_heads, of), shape) = (kv.of(), q.shape());
            let fits = shape.len() == 3 && (shape[0], shape[2]) == (query, dim) && of_heads == [heads.kv, dim];
            let like = q.dtype() == DType::Bf16 && of == DType::Bf16.into();
            fits && like && shape[1] <= SPLIT_KEY_ROWS && q.pointer().is_multiple_of(16)
        };
        let grouped = heads.kv > 0 && query.is_multiple_of(heads.kv) && matches!(dim, 64 | 128);
        if !grouped || !calls.iter().all(suits) {
            return Ok(None);
        }
        let rows = calls.iter().map(|(q, ..)| q.shape()[1]).sum();
        let all = self.empty_by_rows([query, rows, dim], DType::F32)?;
        let (mut outputs, mut asked, mut start) = (Vec::with_capacity(calls.len()), Vec::with_capacity(calls.len()), 0);
        for (q, kv, mask) in calls {
            let out = all.part(start, start + q.shape()[1]);
            start += q.shape()[1];
            let place = ResultAddress { out: out.pointer(), lse: 0, row: (query * dim) as i64 };
            asked.push(AskedRows { q: q.heads_first()?, keys: kv.keys(0, kv.len()), mask: *mask, place });
            outputs.push(out);
        }
        let (rounds, _held) = self.rounds((heads, KvFormat::Computed), asked.into_iter())?;
        let mut table = Table::default();
        let laid: Vec<RoundLayout> = rounds.iter().map(|round| round.lay(&mut table)).collect();
        let sent = self.send(&table)?;
        for (round, places) in rounds.iter().zip(laid) {
            self.attend_round(heads, round, &places, &sent)?;
        }
        Ok(Some(outputs))
    }
}
