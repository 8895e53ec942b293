//! Few rows of many calls at once: one launch over the pieces of all keys, one that combines them, one that merges groups, one copy
//! to the host. The arithmetic is that of each call alone.

mod merges;
mod rounds;
mod tree;

use std::ops::Range;

use merges::{Merges, To};
use rounds::{Asked, Place, Places};

use super::device::{Buffer, Device};
use super::moves::Carried;
use super::tensor::{Tensor, View};
use super::{FEW_ROWS, Kv};
use crate::operands::packed::{around, check_asks, check_groups};
use crate::{Ask, DType, Heads, KernelError, Mask};

/// Structures as kernels declare them, one behind the other, to be uploaded together.
#[derive(Default)]
struct Table(Vec<u8>);

impl Table {
    /// Appends and returns the place.
    fn push<T: Copy>(&mut self, values: &[T]) -> u64 {
        let at = self.begin::<T>(values.len());
        self.add(values);
        at
    }

    /// As [`Table::push`], of values as they are made.
    fn append<T: Copy>(&mut self, values: impl ExactSizeIterator<Item = T>) -> u64 {
        let at = self.begin::<T>(values.len());
        values.for_each(|value| self.add(&[value]));
        at
    }

    /// Where so many values begin, for which there is room then.
    fn begin<T>(&mut self, count: usize) -> u64 {
        let at = self.0.len().next_multiple_of(align_of::<T>().max(16));
        self.0.reserve(at - self.0.len() + count * size_of::<T>());
        self.0.resize(at, 0);
        at as u64
    }

    fn add<T: Copy>(&mut self, values: &[T]) {
        // SAFETY: these are C structures of numbers without gaps.
        self.0.extend_from_slice(unsafe {
            std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), std::mem::size_of_val(values))
        });
    }
}

/// A table as kernels get it: with their arguments, or in device memory.
enum Sent {
    Carried(Box<Carried>),
    Lies(Buffer),
}

impl Device {
    /// Sends a table to the kernels behind.
    fn send(&self, table: &Table) -> Result<Sent, KernelError> {
        Ok(match Carried::of(&table.0) {
            Some(carried) => Sent::Carried(Box::new(carried)),
            None => Sent::Lies(self.upload_bytes(&table.0)?),
        })
    }

    /// As `Backend::attend_merged`, where the kernels that cut keys take all asks; says whether they do.
    pub(super) fn attend_merged(
        &self,
        heads: Heads,
        q: &Tensor,
        asks: (&[Ask<'_, Kv>], &[usize]),
        packed: &mut Vec<f32>,
    ) -> Result<bool, KernelError> {
        let Some(rows) = self.attend_groups(heads, q, asks)? else { return Ok(false) };
        self.download_floats(rows.pointer(), rows.elements(), packed)?;
        Ok(true)
    }

    /// The packed rows of each group, `(rows, packed row)` f32, on the device.
    pub(super) fn attend_groups(
        &self,
        heads: Heads,
        q: &Tensor,
        (asks, groups): (&[Ask<'_, Kv>], &[usize]),
    ) -> Result<Option<Tensor>, KernelError> {
        check_asks(heads, q.shape(), asks, |ask| ask.kv.len())?;
        check_groups(asks, groups)?;
        if !self.cuts(heads, q, asks) {
            return Ok(None);
        }
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
        let q = q.token_major(heads.query)?;
        let asked = asked_of(heads, q, parts.iter().flatten(), places.into_iter());
        let (rounds, _held) = self.rounds(heads, asked)?;
        let laid: Vec<Places> = rounds.iter().map(|round| round.lay(&mut table)).collect();
        let merge = merges.lay(&mut table);
        let sent = self.send(&table)?;
        for (round, places) in rounds.iter().zip(laid) {
            self.attend_round(heads, round, &places, &sent)?;
        }
        self.merge_laid(heads, &merges, (&sent, merge), To::Rows(results.pointer()))?;
        Ok(Some(results))
    }

    /// Whether the kernels that cut keys take all asks.
    fn cuts(&self, heads: Heads, q: &Tensor, asks: &[Ask<'_, Kv>]) -> bool {
        let suits = |ask: &Ask<'_, Kv>| {
            let [k, _] = ask.kv.view(0, ask.kv.len());
            ask.rows.len() <= FEW_ROWS && k.shape()[0] == heads.kv && k.shape()[2] == heads.dim && k.dtype == q.dtype
        };
        let tiled = q.dtype() == DType::Bf16 && matches!(heads.dim, 64 | 128) && q.pointer().is_multiple_of(16);
        tiled && asks.iter().all(suits)
    }

    /// Outputs of attention of each `(q (query heads, t, dim), keys, mask)`, in f32, where the kernels that cut keys take all.
    pub(super) fn attend_few_each(&self, calls: &[(Tensor, Kv, Mask)]) -> Result<Option<Vec<Tensor>>, KernelError> {
        let Some((first, ..)) = calls.first() else { return Ok(Some(Vec::new())) };
        let (query, _, dim) = first.cube("attention")?;
        let heads = Heads { query, kv: calls[0].1.view(0, 0)[0].shape()[0], dim };
        let suits = |(q, kv, _): &(Tensor, Kv, Mask)| {
            let ([k, _], shape) = (kv.view(0, kv.len()), q.shape());
            let fits = shape.len() == 3 && (shape[0], shape[2]) == (query, dim) && k.shape()[0] == heads.kv;
            let like = [q.dtype(), k.dtype] == [DType::Bf16; 2] && k.shape()[2] == dim;
            fits && like && shape[1] <= FEW_ROWS && q.pointer().is_multiple_of(16)
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
            let place = Place { out: out.pointer(), lse: 0, row: (query * dim) as i64 };
            asked.push(Asked { q: q.heads_first()?, keys: kv.view(0, kv.len()), mask: *mask, place });
            outputs.push(out);
        }
        let (rounds, _held) = self.rounds(heads, asked.into_iter())?;
        let mut table = Table::default();
        let laid: Vec<Places> = rounds.iter().map(|round| round.lay(&mut table)).collect();
        let sent = self.send(&table)?;
        for (round, places) in rounds.iter().zip(laid) {
            self.attend_round(heads, round, &places, &sent)?;
        }
        Ok(Some(outputs))
    }

    /// Appends `count` values from `pointer` on, once all work queued before is done.
    fn download_floats(&self, pointer: u64, count: usize, values: &mut Vec<f32>) -> Result<(), KernelError> {
        if count == 0 {
            return Ok(());
        }
        let start = values.len();
        values.resize(start + count, 0.0);
        // SAFETY: every bit pattern is a value of either type, and these are its bytes.
        let bytes = unsafe { std::slice::from_raw_parts_mut(values[start..].as_mut_ptr().cast::<u8>(), 4 * count) };
        self.download_bytes(pointer, bytes)
    }
}

/// An ask, and a range of its keys.
type AskedKeys<'a, 'b> = (&'a Ask<'b, Kv>, Range<usize>);

/// What holes leave of the keys of each ask, range by range.
fn parts_of<'a, 'b>(asks: &'a [Ask<'b, Kv>]) -> Vec<AskedKeys<'a, 'b>> {
    let mut parts = Vec::with_capacity(asks.len());
    asks.iter().for_each(|ask| add_parts(ask, &mut parts));
    parts
}

/// Adds those of an ask.
fn add_parts<'a, 'b>(ask: &'a Ask<'b, Kv>, parts: &mut Vec<AskedKeys<'a, 'b>>) {
    match ask.holes {
        [] => parts.push((ask, 0..ask.kv.len())),
        holes => parts.extend(around(holes, ask.kv.len()).into_iter().map(|keys| (ask, keys))),
    }
}

/// Each part of asks about rows of `q`, packed to its place.
fn asked_of<'a, 'b: 'a>(
    heads: Heads,
    q: View<'a>,
    parts: impl Iterator<Item = &'a AskedKeys<'a, 'b>>,
    places: impl Iterator<Item = u64>,
) -> impl Iterator<Item = Asked<'a>> {
    parts.zip(places).map(move |((ask, keys), out)| Asked {
        q: q.part(ask.rows.start, ask.rows.end),
        keys: ask.kv.view(keys.start, keys.end),
        mask: ask.mask,
        place: Place::packed(heads, out),
    })
}

/// The asks of each group.
fn grouped<'a, 'b>(asks: &'a [Ask<'b, Kv>], groups: &'a [usize]) -> impl Iterator<Item = &'a [Ask<'b, Kv>]> {
    let mut rest = asks;
    groups.iter().map(move |group| {
        let (of_group, after) = rest.split_at(*group);
        rest = after;
        of_group
    })
}
