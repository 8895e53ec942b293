//! All that attention is to a step whose context is on this device: one table, launches behind each other, nobody waited for.

use std::ops::Range;

use super::super::device::{Buffer, Device};
use super::super::tensor::Tensor;
use super::merges::{Merges, To};
use super::rounds::Places;
use super::{Table, asked_of, parts_of};
use crate::cuda::Kv;
use crate::packed::check_asks;
use crate::{Ask, DType, Heads, KernelError, Merging};

/// Packed rows in device memory.
struct Slot {
    rows: usize,
    /// One address for each range that holes leave of an ask's keys: merged with whatever the slot is merged with.
    at: Vec<u64>,
}

/// The slots of asks, of what was given, and of what is merged of them, and memory for all but the given.
struct Slots {
    all: Vec<Slot>,
    memory: Buffer,
    next: u64,
    /// Bytes of a packed row.
    each: usize,
}

impl Device {
    /// As `Backend::attend_tree`, where the kernels that cut keys take all asks.
    pub(in super::super) fn attend_tree(
        &self,
        heads: Heads,
        q: &Tensor,
        (asks, given): (&[Ask<'_, Kv>], &[Tensor]),
        (merging, dtype): (&Merging, DType),
    ) -> Result<Option<Tensor>, KernelError> {
        let rows = checked_rows(heads, q, (asks, given), merging)?;
        if !self.cuts(heads, q, asks) {
            return Ok(None);
        }
        let parts: Vec<_> = asks.iter().map(|ask| parts_of(std::slice::from_ref(ask))).collect();
        let mut slots = self.slots(heads, &parts, given, &rows)?;
        let places: Vec<u64> = slots.all[..asks.len()].iter().flat_map(|slot| slot.at.iter().copied()).collect();
        let asked = asked_of(heads, q.token_major(heads.query)?, &parts, places.into_iter());
        let (rounds, _held) = self.rounds(heads, asked)?;
        let mut table = Table::default();
        let laid: Vec<Places> = rounds.iter().map(|round| round.lay(&mut table)).collect();
        let levels = merging.levels.iter().map(|level| {
            let merges = slots.merge(level);
            (merges.lay(&mut table), merges)
        });
        let levels: Vec<_> = levels.collect();
        let (mut tops, mut done) = (Merges::default(), 0);
        for inputs in &merging.tops {
            let rows = slots.all[inputs[0]].rows;
            tops.add(slots.addresses(inputs), rows, done);
            done += rows;
        }
        let top = tops.lay(&mut table);
        let sent = self.send(&table)?;
        for (round, places) in rounds.iter().zip(laid) {
            self.attend_round(heads, round, &places, &sent)?;
        }
        for (at, merges) in &levels {
            self.merge_laid(heads, merges, (&sent, *at), To::Rows(slots.memory.pointer))?;
        }
        let out = self.empty(&[done, heads.query * heads.dim], dtype)?;
        self.merge_laid(heads, &tops, (&sent, top), To::Outputs(&out))?;
        Ok(Some(out))
    }

    /// Slots for each ask's parts, and those given; memory for them and for what is merged. `rows` are those of all slots.
    fn slots(
        &self,
        heads: Heads,
        parts: &[Vec<(&Ask<'_, Kv>, Range<usize>)>],
        given: &[Tensor],
        rows: &[usize],
    ) -> Result<Slots, KernelError> {
        let (asked, others) = rows.split_at(parts.len());
        let (given_rows, merged) = others.split_at(given.len());
        let each = 4 * heads.packed_row();
        let held = parts.iter().zip(asked).map(|(parts, rows)| parts.len() * rows).chain(merged.iter().copied());
        let memory = self.alloc(each * held.sum::<usize>())?;
        let mut slots = Slots { all: Vec::with_capacity(rows.len()), next: memory.pointer, memory, each };
        for (parts, &rows) in parts.iter().zip(asked) {
            let at = parts.iter().map(|_| slots.take(rows)).collect();
            slots.all.push(Slot { rows, at });
        }
        slots.all.extend(given.iter().zip(given_rows).map(|(given, &rows)| Slot { rows, at: vec![given.pointer()] }));
        Ok(slots)
    }
}

impl Slots {
    /// Memory for so many rows.
    fn take(&mut self, rows: usize) -> u64 {
        let at = self.next;
        self.next += (self.each * rows) as u64;
        at
    }

    fn addresses(&self, inputs: &[usize]) -> impl Iterator<Item = u64> {
        inputs.iter().flat_map(|slot| self.all[*slot].at.iter().copied())
    }

    /// What a level merges, each to a slot of its own behind those that there are.
    fn merge(&mut self, level: &[Vec<usize>]) -> Merges {
        let (mut merges, mut merged) = (Merges::default(), Vec::with_capacity(level.len()));
        for inputs in level {
            let rows = self.all[inputs[0]].rows;
            let at = self.take(rows);
            merges.add(self.addresses(inputs), rows, (at - self.memory.pointer) as usize / self.each);
            merged.push(Slot { rows, at: vec![at] });
        }
        self.all.append(&mut merged);
        merges
    }
}

/// Rows of all slots: of asks, of what is given, and of what is merged level by level.
fn checked_rows(
    heads: Heads,
    q: &Tensor,
    (asks, given): (&[Ask<'_, Kv>], &[Tensor]),
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
