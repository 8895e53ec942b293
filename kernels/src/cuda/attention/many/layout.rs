//! What the layers of a step of sequences whose keys are all on this device have in common: it lies in one table, and a layer is four
//! launches, however many sequences there are. The arithmetic is that of each call alone.

use std::ops::Range;

use super::super::super::device::{Carried, Device, DeviceBuffer, LaunchShape, launch};
use super::super::super::kv::CudaKv;
use super::super::super::kv::tails::OwnRun;
use super::super::super::tensor::Tensor;
use super::super::call::Tiled;
use super::super::mapped::Reach;
use super::super::own::{CHUNK, combining};
use super::merges::{MergeTarget, Merges};
use super::rounds::{AskedRows, HELD, Item, ResultAddress, Round, RoundCall, RoundLayout};
use super::table::{Sent, Table};
use super::tree::TreeSlots;
use crate::{DType, Heads, KernelError, KvFormat, Mask, Merging};

/// As `hopper.cu` and `codes.cu` declare it.
#[repr(C)]
#[derive(Clone, Copy)]
struct LaidCall {
    call: Tiled,
    settled: i64,
}

/// As `moves.cu` declares it: where a row's key goes in the first layer, and how far from it are its value and that of the next layer.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct PlacedRow {
    key: u64,
    value: u64,
    layer: u64,
}

impl PlacedRow {
    /// Of a row of a sequence, whose own keys end with these.
    fn of(run: &OwnRun, row: usize) -> Self {
        let [key, value, layer] = run.place(row);
        Self { key, value, layer }
    }
}

/// What the layers of a step have in common, on the device.
pub struct Laid {
    pub heads: Heads,
    table: Sent,
    /// The calls once more, where they are few: they are with the kernels then, whatever went through the cache since.
    few: Option<FewCalls>,
    /// Where the table has the places of each call's maps, and of the rows.
    maps: u64,
    places: u64,
    /// Queries `(t, query heads dim)` of the layer that is attended to: bf16, or as keys in 8 bits are asked.
    pub q: Tensor,
    round: Round,
    layout: RoundLayout,
    merging: LaidMerging,
    slots: TreeSlots,
    _held: [DeviceBuffer; 2],
}

/// Calls that go with the kernels, and where they, their items and the places of their maps are among them.
struct FewCalls {
    carried: Box<Carried>,
    calls: i32,
    items: [i32; 2],
    maps: i32,
}

impl FewCalls {
    fn of(calls: &[LaidCall], items: &[Vec<Item>; 2], maps: &[u64]) -> Option<Self> {
        // Of many calls no table is made in vain.
        let of_items = items.iter().map(|items| size_of_val(&items[..])).sum::<usize>();
        if !Carried::has_room(size_of_val(calls) + of_items + size_of_val(maps)) {
            return None;
        }
        let mut table = Table::default();
        let calls = table.push(calls) as i32;
        let items = items.each_ref().map(|items| table.push(items) as i32);
        let maps = table.push(maps) as i32;
        Carried::of(&table.0).map(|carried| Self { carried: Box::new(carried), calls, items, maps })
    }
}

/// How the calls' results become those of rows.
enum LaidMerging {
    /// Combined and merged at once: rows, the most calls of one, and where the table has the rows and their calls.
    AtOnce { rows: usize, inputs: usize, places: [u64; 2] },
    /// Level by level.
    Levels { levels: Vec<(Merges, [u64; 2])>, tops: (Merges, [u64; 2]) },
}

/// Calls that are merged at once at most, as the kernel has it.
const INPUTS: usize = 4;
/// Most calls of a row, and most pieces of one, that have a kernel of fewer steps.
const FLAT_INPUTS: usize = 2;
const FLAT_PIECES: usize = 2;

/// As `combine.cu` declares it.
#[repr(C)]
#[derive(Clone, Copy)]
struct TopRow {
    first: i32,
    count: i32,
    row: i32,
    to: i32,
}

impl Laid {
    fn at(&self, place: u64) -> u64 {
        match &self.table {
            Sent::Lies(table) => table.pointer + place,
            Sent::Carried(_) => unreachable!("a step's table lies in memory"),
        }
    }

    /// The rows of a layer to where each belongs.
    pub fn place(&self, device: &Device, layer: usize, [q, k, v]: [&Tensor; 3]) -> Result<(), KernelError> {
        let Heads { query, kv, dim } = self.heads;
        if self.round.kept == KvFormat::Q8 {
            return device.place_codes([query, kv, dim], [q, k, v], (&self.q, self.at(self.places)), layer);
        }
        let rows = self.q.shape[0];
        let (to, layer) = (self.at(self.places), layer as i32);
        let [q_steps, kv_steps] = [query, kv].map(|heads| (heads * dim / 8) as i32);
        let (q, k, v, queries) = (q.pointer(), k.pointer(), v.pointer(), self.q.pointer());
        launch!(device, "place_rows", LaunchShape::new(rows, 256), q, k, v, queries, to, q_steps, kv_steps, layer)
    }

    /// Attention of a layer's queries.
    pub fn attend(&self, device: &Device, layer: usize) -> Result<Tensor, KernelError> {
        let Self { heads, round, layout, slots, .. } = self;
        let (calls, maps, layer) = (self.at(layout.calls), self.at(self.maps), layer as i32);
        for (which, tiling) in device.tilings(heads.dim, round.kept).iter().enumerate() {
            let items = &round.items[which];
            if items.is_empty() {
                continue;
            }
            let (name, spread) = device.tiled(tiling, (items.len(), heads.kv));
            match &self.few {
                Some(few) => {
                    let (name, list) = (format!("attend_laid_{name}_carried_{}", heads.dim), few.items[which]);
                    launch!(device, &name, spread, *few.carried, few.calls, list, few.maps, layer)?;
                }
                None => {
                    let (name, list) = (format!("attend_laid_{name}_{}", heads.dim), self.at(layout.items[which]));
                    launch!(device, &name, spread, calls, list, maps, layer)?;
                }
            }
        }
        let out = device.empty(&self.q.shape, DType::Bf16)?;
        match &self.merging {
            LaidMerging::AtOnce { rows, inputs: most, places } => {
                let (pieces, group) = (round.most_of_a_call()[1], heads.query / heads.kv);
                let (depth, spread) = combining(pieces, group);
                let flat = *most <= FLAT_INPUTS && pieces <= FLAT_PIECES;
                let spread = LaunchShape { blocks: (rows * spread.blocks.0, heads.kv), ..spread };
                let ([list, inputs], combinations) = (places.map(|at| self.at(at)), self.at(layout.combinations));
                let (to, group, query) = (out.pointer(), group as i32, heads.query as i32);
                let name = format!("combine_merged{}_{}", if flat { "_flat" } else { depth }, heads.dim);
                launch!(device, &name, spread, combinations, list, inputs, to, group, query)?;
            }
            LaidMerging::Levels { levels, tops: (tops, at) } => {
                device.combine_round(*heads, round, layout, &self.table)?;
                for (merges, at) in levels {
                    device.merge_laid(*heads, merges, (&self.table, *at), MergeTarget::Rows(slots.memory.pointer))?;
                }
                device.merge_laid(*heads, tops, (&self.table, *at), MergeTarget::Outputs(&out))?;
            }
        }
        Ok(out)
    }
}

/// Keys of a shard in every layer, or of a sequence's own, and the rows that ask them.
pub struct LaidAsk<'b> {
    pub layers: &'b [&'b CudaKv],
    /// Those of the step's rows included.
    pub keys: usize,
    pub rows: Range<usize>,
    pub mask: Mask,
}

/// Where the maps of an ask's first layer are, and whether nothing that is under way may write its keys.
pub type KeptPlace = (u64, bool);

impl Device {
    /// The table of a step, sent, the last asks being those of own keys; nothing where the partials of its pieces are too large to be held together.
    pub(super) fn lay(
        &self,
        heads: Heads,
        (asks, kept, owns): (&[LaidAsk<'_>], &[KeptPlace], &[OwnRun]),
        merging: &Merging,
    ) -> Result<Option<Laid>, KernelError> {
        let rows = merging.rows_of(asks.iter().map(|ask| ask.rows.len()).collect())?;
        let mut slots = self.slots(heads, &vec![1; asks.len()], &[], &rows)?;
        let count = asks.iter().map(|ask| ask.rows.end).max().unwrap_or(0);
        let kept_as = owns.first().map_or(KvFormat::Computed, |run| run.kept());
        let of_queries = if kept_as == KvFormat::Q8 { DType::F32 } else { DType::Bf16 };
        let q = self.empty(&[count, heads.query * heads.dim], of_queries)?;
        let few_calls = are_few(merging, asks.len());
        let places = !few_calls && self.places_results(kept_as);
        let (calls, of_ask) = self.calls_of((heads, places), &q, asks, &slots)?;
        let bytes = calls.iter().map(|call| call.bytes(heads)).fold([0; 2], |[a, b], [c, d]| [a + c, b + d]);
        if bytes[0] > HELD {
            return Ok(None);
        }
        let held = [self.alloc(bytes[0])?, self.alloc(bytes[1])?];
        let at = [held[0].pointer, held[1].pointer];
        let tilings = self.tilings(heads.dim, kept_as);
        let (round, mut table) = (Round::of((heads, kept_as), calls, at, &tilings), Table::default());
        let of_call = round.calls.iter().zip(&of_ask);
        let laid = of_call.map(|((call, _), ask)| LaidCall { call: *call, settled: i64::from(kept[*ask].1) });
        let laid: Vec<LaidCall> = laid.collect();
        let maps: Vec<u64> = of_ask.iter().map(|ask| kept[*ask].0).collect();
        let few = match kept_as {
            KvFormat::Computed => FewCalls::of(&laid, &round.items, &maps),
            KvFormat::Q8 => None,
        };
        let laid = table.push(&laid);
        let layout = round.lay_behind(laid, &mut table);
        let merging = match few_calls {
            true => at_once(merging, asks, &of_ask, &mut table),
            false => level_by_level(merging, &mut slots, &mut table),
        };
        let maps = table.push(&maps);
        let rows = owns.iter().flat_map(|run| (0..run.rows()).map(move |row| (run, row)));
        let places = match kept_as {
            KvFormat::Q8 => table.push(&rows.map(|(run, row)| run.codes_place(row)).collect::<Vec<_>>()),
            KvFormat::Computed => table.push(&rows.map(|(run, row)| PlacedRow::of(run, row)).collect::<Vec<_>>()),
        };
        let table = Sent::Lies(self.upload_bytes(&table.0)?);
        Ok(Some(Laid { heads, table, few, maps, places, q, round, layout, merging, slots, _held: held }))
    }

    /// The calls of all asks, whose results go to their place where they can, and the ask of each.
    fn calls_of(
        &self,
        (heads, places): (Heads, bool),
        q: &Tensor,
        asks: &[LaidAsk<'_>],
        slots: &TreeSlots,
    ) -> Result<(Vec<RoundCall>, Vec<usize>), KernelError> {
        let view = q.token_major(heads.query)?;
        let (mut calls, mut of_ask) = (Vec::with_capacity(asks.len()), Vec::with_capacity(asks.len()));
        for (number, ask) in asks.iter().enumerate() {
            let (kv, out) = (ask.layers[0], slots.addresses(number).next().expect("an ask has a slot"));
            let (q, keys) = (view.part(ask.rows.start, ask.rows.end), kv.keys(0, ask.keys));
            let asked = AskedRows { q, keys, mask: ask.mask, place: ResultAddress::packed(heads, out) };
            // Where the keys of a layer are is kept elsewhere.
            calls.extend(asked.calls(Reach::Addresses, places));
            of_ask.resize(calls.len(), number);
        }
        Ok((calls, of_ask))
    }
}

/// Whether all rows are of few of so many asks each.
fn are_few(merging: &Merging, asks: usize) -> bool {
    let few = |inputs: &Vec<usize>| inputs.len() <= INPUTS && inputs.iter().all(|slot| *slot < asks);
    merging.levels.iter().all(Vec::is_empty) && merging.tops.iter().all(few)
}

/// Rows of few calls each, all of which the step asks, in the order of the results.
fn at_once(merging: &Merging, asks: &[LaidAsk<'_>], of_ask: &[usize], table: &mut Table) -> LaidMerging {
    let first_call = |ask: &usize| of_ask.partition_point(|of| of < ask);
    let (mut rows, mut calls) = (Vec::new(), Vec::<i32>::new());
    for inputs in &merging.tops {
        let firsts: Vec<usize> = inputs.iter().map(first_call).collect();
        for row in 0..asks[inputs[0]].rows.len() {
            let (first, count) = (calls.len() as i32, inputs.len() as i32);
            calls.extend(firsts.iter().map(|call| (call + row / CHUNK) as i32));
            rows.push(TopRow { first, count, row: (row % CHUNK) as i32, to: rows.len() as i32 });
        }
    }
    let inputs = merging.tops.iter().map(Vec::len).max().unwrap_or(0);
    LaidMerging::AtOnce { rows: rows.len(), inputs, places: [table.push(&rows), table.push(&calls)] }
}

fn level_by_level(merging: &Merging, slots: &mut TreeSlots, table: &mut Table) -> LaidMerging {
    let mut levels = Vec::with_capacity(merging.levels.len());
    for level in merging.levels.iter().filter(|level| !level.is_empty()) {
        let merges = slots.merge(level);
        let at = merges.lay(table);
        levels.push((merges, at));
    }
    let (mut tops, mut done) = (Merges::default(), 0);
    for inputs in &merging.tops {
        let rows = slots.all[inputs[0]].rows;
        tops.add(inputs.iter().flat_map(|slot| slots.addresses(*slot)), rows, done);
        done += rows;
    }
    let at = tops.lay(table);
    LaidMerging::Levels { levels, tops: (tops, at) }
}
