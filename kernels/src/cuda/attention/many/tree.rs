//! All that attention is to a step whose context is on this device: one table, launches behind each other, nobody waited for.

use super::super::super::device::{Device, DeviceBuffer};
use super::super::super::kv::CudaKv;
use super::super::super::tensor::Tensor;
use super::asks::{add_parts, asked_of};
use super::merges::{MergeTarget, Merges};
use super::rounds::RoundLayout;
use super::table::Table;
use crate::operands::packed::check_asks;
use crate::{Ask, DType, Heads, KernelError, Merging};

/// Packed rows in device memory.
#[derive(Clone, Copy)]
pub(super) struct Slot {
    pub rows: usize,
    at: u64,
    /// Ranges that holes leave of an ask's keys, each with such rows: merged with whatever the slot is merged with.
    ranges: usize,
}

/// The slots of asks, of what was given, and of what is merged of them, and memory for all but the given.
pub(super) struct TreeSlots {
    pub all: Vec<Slot>,
    pub memory: DeviceBuffer,
    next: u64,
    /// Bytes of a packed row.
    each: usize,
}

impl Device {
    /// As `BatchAttention::attend_tree`, where the kernels that cut keys take all asks.
    pub(in super::super::super) fn attend_tree(
        &self,
        heads: Heads,
        q: &Tensor,
        (asks, given): (&[Ask<'_, CudaKv>], &[Tensor]),
        (merging, dtype): (&Merging, DType),
    ) -> Result<Option<Tensor>, KernelError> {
        let rows = checked_rows(heads, q, (asks, given), merging)?;
        let Some(kept) = self.cuts(heads, q, asks) else { return Ok(None) };
        let (mut parts, mut ranges) = (Vec::with_capacity(asks.len()), Vec::with_capacity(asks.len()));
        for ask in asks {
            let before = parts.len();
            add_parts(ask, &mut parts);
            ranges.push(parts.len() - before);
        }
        let mut slots = self.slots(heads, &ranges, given, &rows)?;
        let places = (0..asks.len()).flat_map(|slot| slots.addresses(slot));
        let q = self.asking(heads, q, kept)?;
        let asked = asked_of(heads, q.token_major(heads.query)?, parts.iter(), places);
        let (rounds, _held) = self.rounds((heads, kept), asked)?;
        let mut table = Table::default();
        let laid: Vec<RoundLayout> = rounds.iter().map(|round| round.lay(&mut table)).collect();
        let levels = merging.levels.iter().map(|level| {
            let merges = slots.merge(level);
            (merges.lay(&mut table), merges)
        });
        let levels: Vec<_> = levels.collect();
        let (mut tops, mut done) = (Merges::default(), 0);
        for inputs in &merging.tops {
            let rows = slots.all[inputs[0]].rows;
            tops.add(inputs.iter().flat_map(|slot| slots.addresses(*slot)), rows, done);
            done += rows;
        }
        let top = tops.lay(&mut table);
        let sent = self.send(&table)?;
        for (round, places) in rounds.iter().zip(laid) {
            self.attend_round(heads, round, &places, &sent)?;
        }
        for (at, merges) in &levels {
            self.merge_laid(heads, merges, (&sent, *at), MergeTarget::Rows(slots.memory.pointer))?;
        }
        let out = self.empty(&[done, heads.query * heads.dim], dtype)?;
        self.merge_laid(heads, &tops, (&sent, top), MergeTarget::Outputs(&out))?;
        Ok(Some(out))
    }

    /// Slots for each ask's ranges, and those given; memory for them and for what is merged. `rows` are those of all slots.
    pub(super) fn slots(
        &self,
        heads: Heads,
        ranges: &[usize],
        given: &[Tensor],
        rows: &[usize],
    ) -> Result<TreeSlots, KernelError> {
        let (asked, others) = rows.split_at(ranges.len());
        let (given_rows, merged) = others.split_at(given.len());
        let each = 4 * heads.packed_row();
        let held = ranges.iter().zip(asked).map(|(ranges, rows)| ranges * rows).chain(merged.iter().copied());
        let memory = self.alloc(each * held.sum::<usize>())?;
        let mut slots = TreeSlots { all: Vec::with_capacity(rows.len()), next: memory.pointer, memory, each };
        for (&ranges, &rows) in ranges.iter().zip(asked) {
            let at = slots.take(ranges * rows);
            slots.all.push(Slot { rows, at, ranges });
        }
        let given = given.iter().zip(given_rows);
        slots.all.extend(given.map(|(given, &rows)| Slot { rows, at: given.pointer(), ranges: 1 }));
        Ok(slots)
    }
}

impl TreeSlots {
    /// Memory for so many rows.
    fn take(&mut self, rows: usize) -> u64 {
        let at = self.next;
        self.next += (self.each * rows) as u64;
        at
    }

    /// Where rows of a slot are.
    pub fn addresses(&self, slot: usize) -> impl Iterator<Item = u64> + use<> {
        let (Slot { rows, at, ranges }, each) = (self.all[slot], self.each);
        (0..ranges).map(move |range| at + (range * rows * each) as u64)
    }

    /// What a level merges, each to a slot of its own behind those that there are.
    pub fn merge(&mut self, level: &[Vec<usize>]) -> Merges {
        let (mut merges, mut merged) = (Merges::default(), Vec::with_capacity(level.len()));
        for inputs in level {
            let rows = self.all[inputs[0]].rows;
            let at = self.take(rows);
            let partials = inputs.iter().flat_map(|slot| self.addresses(*slot));
            merges.add(partials, rows, (at - self.memory.pointer) as usize / self.each);
            merged.push(Slot { rows, at, ranges: 1 });
        }
        self.all.append(&mut merged);
        merges
    }
}

/// Rows of all slots: of asks, of what is given, and of what is merged level by level.
fn checked_rows(
    heads: Heads,
    q: &Tensor,
    (asks, given): (&[Ask<'_, CudaKv>], &[Tensor]),
    merging: &Merging,
) -> Result<Vec<usize>, KernelError> {
    check_asks(heads, q.shape(), asks, |ask| ask.kv.len())?;
    let of_given = given.iter().map(|rows| rows.matrix("attend_tree").map(|(rows, _)| rows));
    let of_given = of_given.collect::<Result<Vec<_>, _>>()?;
    let rows = merging.rows(asks, of_given.into_iter())?;
    match given.iter().find(|rows| rows.shape[1] != heads.packed_row() || rows.dtype != DType::F32) {
        Some(wrong) => {
            let expected = format!("f32 rows of {} values", heads.packed_row());
            Err(KernelError::shape("attend_tree", expected, &[&wrong.shape]))
        }
        None => Ok(rows),
    }
}
