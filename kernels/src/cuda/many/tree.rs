//! All that attention is to a step whose context is on this device: one table, launches behind each other, nobody waited for.

use super::super::device::Device;
use super::super::tensor::Tensor;
use super::merges::{Merges, To};
use super::rounds::{Asked, Place, Places};
use super::{Table, parts_of};
use crate::cuda::Kv;
use crate::packed::check_asks;
use crate::{Ask, DType, Heads, KernelError, Merging};

/// Packed rows in device memory.
struct Slot {
    rows: usize,
    /// One address for each range that holes leave of an ask's keys: merged with whatever the slot is merged with.
    at: Vec<u64>,
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
        check_asks(heads, q.shape(), asks, |ask| ask.kv.len())?;
        let given_rows = given.iter().map(|rows| rows.matrix("attend_tree").map(|(rows, _)| rows));
        let given_rows = given_rows.collect::<Result<Vec<_>, _>>()?;
        let rows = merging.rows(asks, given_rows.iter().copied())?;
        if let Some(wrong) = given.iter().find(|rows| rows.shape[1] != heads.packed_row() || rows.dtype != DType::F32) {
            let expected = format!("f32 rows of {} values", heads.packed_row());
            return Err(KernelError::shape("attend_tree", expected, &[&wrong.shape]));
        }
        if !self.cuts(heads, q, asks) {
            return Ok(None);
        }
        let parts: Vec<_> = asks.iter().map(|ask| parts_of(std::slice::from_ref(ask))).collect();
        let (asked_rows, merged_rows) = (&rows[..asks.len()], &rows[asks.len() + given.len()..]);
        let each = 4 * heads.packed_row();
        let held =
            parts.iter().zip(asked_rows).map(|(parts, rows)| parts.len() * rows).chain(merged_rows.iter().copied());
        let partials = self.alloc(each * held.sum::<usize>())?;
        let mut next = partials.pointer;
        let mut take = |rows: usize| {
            let at = next;
            next += (each * rows) as u64;
            at
        };
        let mut slots: Vec<Slot> = Vec::with_capacity(rows.len());
        for (parts, &rows) in parts.iter().zip(asked_rows) {
            slots.push(Slot { rows, at: parts.iter().map(|_| take(rows)).collect() });
        }
        let q = q.token_major(heads.query)?;
        let places = slots.iter().flat_map(|slot| slot.at.iter().copied());
        let asked = parts.iter().flatten().zip(places).map(|((ask, keys), out)| Asked {
            q: q.part(ask.rows.start, ask.rows.end),
            keys: ask.kv.view(keys.start, keys.end),
            mask: ask.mask,
            place: Place::packed(heads, out),
        });
        let (rounds, _held) = self.rounds(heads, asked)?;
        slots.extend(given.iter().zip(given_rows).map(|(given, rows)| Slot { rows, at: vec![given.pointer()] }));
        let mut table = Table::default();
        let laid: Vec<Places> = rounds.iter().map(|round| round.lay(&mut table)).collect();
        let mut levels = Vec::with_capacity(merging.levels.len());
        for level in &merging.levels {
            let (mut merges, mut merged) = (Merges::default(), Vec::with_capacity(level.len()));
            for inputs in level {
                let rows = slots[inputs[0]].rows;
                let at = take(rows);
                let to = (at - partials.pointer) as usize / each;
                merges.add(addresses(&slots, inputs), rows, to);
                merged.push(Slot { rows, at: vec![at] });
            }
            slots.append(&mut merged);
            levels.push((merges.lay(&mut table), merges));
        }
        let (mut tops, mut done) = (Merges::default(), 0);
        for inputs in &merging.tops {
            let rows = slots[inputs[0]].rows;
            tops.add(addresses(&slots, inputs), rows, done);
            done += rows;
        }
        let top = tops.lay(&mut table);
        let table = self.upload_bytes(&table.0)?;
        for (round, places) in rounds.iter().zip(laid) {
            self.attend_round(heads, round, &places, table.pointer)?;
        }
        let placed = |at: [u64; 2]| at.map(|at| table.pointer + at);
        for (at, merges) in &levels {
            self.merge_laid(heads, merges, placed(*at), To::Rows(partials.pointer))?;
        }
        let out = self.empty(&[done, heads.query * heads.dim], dtype)?;
        self.merge_laid(heads, &tops, placed(top), To::Outputs(&out))?;
        Ok(Some(out))
    }
}

fn addresses(slots: &[Slot], inputs: &[usize]) -> impl Iterator<Item = u64> {
    inputs.iter().flat_map(|slot| slots[*slot].at.iter().copied())
}
