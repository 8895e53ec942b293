//! Calls of few rows in rounds of a bounded memory: what each launch of a round is told.

use super::super::super::device::{Device, DeviceBuffer, LaunchShape, launch};
use super::super::super::kv::keys::Keys;
use super::super::super::tensor::View;
use super::super::call::{Pieces, Tiled};
use super::super::mapped::{Mapped, Reach, Scaled};
use super::super::own::{CHUNK, PIECE, Tiling, combining};
use super::table::{Sent, Table};
use crate::{Heads, KernelError, KvFormat, Mask};

/// Bytes of partials of pieces that are held at a time, if a call has no more.
pub(super) const HELD: usize = 256 << 20;

/// As `attention.cu` declares it: what a block of threads does.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Item {
    call: i32,
    tile: i32,
    piece: i32,
    pieces: i32,
}

/// As `attention.cu` declares it.
#[repr(C)]
#[derive(Clone, Copy)]
struct PlacedCombination {
    pieces: Pieces,
    place: ResultAddress,
}

/// Where results go: outputs, log-sum-exps unless 0, and elements from row to row.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ResultAddress {
    pub out: u64,
    pub lse: u64,
    pub row: i64,
}

impl ResultAddress {
    /// Packed rows from `out` on.
    pub fn packed(heads: Heads, out: u64) -> Self {
        Self { out, lse: out + (4 * heads.query * heads.dim) as u64, row: heads.packed_row() as i64 }
    }

    /// The same, `rows` rows further on.
    fn after(self, rows: usize) -> Self {
        let bytes = 4 * rows as u64 * self.row as u64;
        Self { out: self.out + bytes, lse: if self.lse == 0 { 0 } else { self.lse + bytes }, ..self }
    }
}

/// Rows, the keys that they see, and where their results go.
pub(super) struct AskedRows<'a> {
    pub q: View<'a>,
    pub keys: Keys<'a>,
    pub mask: Mask,
    pub place: ResultAddress,
}

/// Up to [`CHUNK`] rows of an ask, and where their packed rows go.
pub(super) struct RoundCall {
    asking: Tiled,
    reach: Reach,
    pieces: usize,
    place: ResultAddress,
    /// Whether its results go to their place without partials.
    is_placed: bool,
}

/// Keys of a call up to which the kernels for Hopper put its results where they belong: those of half a piece.
const PLACED_KEYS: usize = PIECE / 2;

/// Calls whose partials are held together.
#[derive(Default)]
pub(super) struct Round {
    pub calls: Vec<(Tiled, Reach)>,
    combinations: Vec<PlacedCombination>,
    /// What blocks of threads do, of calls in small tiles and of calls in large ones.
    pub items: [Vec<Item>; 2],
    /// Most packed rows and pieces of a call.
    most: [usize; 2],
    /// How the keys of all are kept.
    pub kept: KvFormat,
}

/// Where a round's structures lie in the table.
pub(super) struct RoundLayout {
    pub calls: u64,
    pub combinations: u64,
    pub items: [u64; 2],
}

impl Device {
    /// The asks' rows in calls, each with its place, in rounds that hold no more than they may, one after the other in the same
    /// memory. All keys are kept so.
    pub(super) fn rounds<'a>(
        &self,
        (heads, kept): (Heads, KvFormat),
        asked: impl Iterator<Item = AskedRows<'a>>,
    ) -> Result<(Vec<Round>, [DeviceBuffer; 2]), KernelError> {
        let (mut rounds, mut held, mut most) = (Vec::new(), [0; 2], [0; 2]);
        let (least, most_asked) = asked.size_hint();
        let mut calls = Vec::with_capacity(most_asked.unwrap_or(least));
        let places = self.places_results(kept);
        for asked in asked {
            let reach = self.reach(asked.keys)?;
            for call in asked.calls(reach, places) {
                let [outputs, statistics] = call.bytes(heads);
                if held[0] > 0 && held[0] + outputs > HELD {
                    rounds.push(std::mem::take(&mut calls));
                    held = [0; 2];
                }
                held = [held[0] + outputs, held[1] + statistics];
                most = [most[0].max(held[0]), most[1].max(held[1])];
                calls.push(call);
            }
        }
        rounds.extend((!calls.is_empty()).then_some(calls));
        let memory = [self.alloc(most[0])?, self.alloc(most[1])?];
        let at = [memory[0].pointer, memory[1].pointer];
        let tilings = self.tilings(heads.dim, kept);
        Ok((rounds.into_iter().map(|calls| Round::of((heads, kept), calls, at, &tilings)).collect(), memory))
    }

    /// Whether the kernels for keys that are kept so put the results of calls of few keys where they belong.
    pub(super) fn places_results(&self, kept: KvFormat) -> bool {
        self.is_hopper() && kept == KvFormat::Computed
    }

    pub(super) fn attend_round(
        &self,
        heads: Heads,
        round: &Round,
        places: &RoundLayout,
        sent: &Sent,
    ) -> Result<(), KernelError> {
        let Heads { kv, dim, .. } = heads;
        for ((tiling, items), place) in self.tilings(dim, round.kept).iter().zip(&round.items).zip(places.items) {
            if !items.is_empty() {
                let (name, spread) = self.tiled(tiling, (items.len(), kv));
                match sent {
                    Sent::Carried(table) => {
                        let (name, at) = (format!("attend_listed_{name}_carried_{dim}"), [places.calls, place]);
                        let [calls, list] = at.map(|at| at as i32);
                        launch!(self, &name, spread, **table, calls, list)?;
                    }
                    Sent::Lies(table) => {
                        let [calls, list] = [places.calls, place].map(|at| table.pointer + at);
                        launch!(self, &format!("attend_listed_{name}_{dim}"), spread, calls, list)?;
                    }
                }
            }
        }
        self.combine_round(heads, round, places, sent)
    }

    /// Puts the pieces of a round's calls together.
    pub(super) fn combine_round(
        &self,
        Heads { query, kv, dim }: Heads,
        round: &Round,
        places: &RoundLayout,
        sent: &Sent,
    ) -> Result<(), KernelError> {
        if round.combinations.is_empty() {
            return Ok(());
        }
        let [packed, pieces] = round.most_of_a_call();
        let (depth, spread) = combining(pieces, packed);
        let spread = LaunchShape { blocks: (round.combinations.len() * spread.blocks.0, kv), ..spread };
        let (list, packed, group) = (places.combinations, packed as i32, (query / kv) as i32);
        match sent {
            Sent::Carried(table) => {
                let list = list as i32;
                let name = format!("combine_placed_carried{depth}_{dim}");
                launch!(self, &name, spread, **table, list, packed, group)
            }
            Sent::Lies(table) => {
                let list = table.pointer + list;
                launch!(self, &format!("combine_placed{depth}_{dim}"), spread, list, packed, group)
            }
        }
    }
}

impl<'a> AskedRows<'a> {
    /// Its rows in calls, whose results go to their place without partials where the kernels do that and there are few keys.
    pub fn calls(self, reach: Reach, places: bool) -> impl Iterator<Item = RoundCall> + 'a {
        let Self { q, keys, mask, place } = self;
        let (count, rows) = (keys.tokens(), q.shape()[1]);
        let is_placed = places && count <= PLACED_KEYS;
        (0..rows).step_by(CHUNK).map(move |first| RoundCall {
            asking: Tiled::asking(q, keys, mask, (first, CHUNK.min(rows - first))),
            reach,
            pieces: count.div_ceil(PIECE).max(1),
            place: place.after(first),
            is_placed,
        })
    }
}

impl RoundCall {
    /// Of partials.
    pub fn bytes(&self, heads: Heads) -> [usize; 2] {
        match self.is_placed {
            true => [0; 2],
            false => Pieces::bytes(heads.kv, self.pieces, self.asking.packed(), heads.dim),
        }
    }
}

impl Round {
    /// With its partials from these addresses on.
    pub fn of(
        (heads, kept): (Heads, KvFormat),
        calls: Vec<RoundCall>,
        mut at: [u64; 2],
        tilings: &[Tiling; 2],
    ) -> Self {
        let mut round = Self { kept, ..Self::default() };
        for call in calls {
            let packed = call.asking.packed();
            let pieces = Pieces::at(at, heads.kv, call.pieces, packed);
            let [outputs, statistics] = call.bytes(heads);
            at = [at[0] + outputs as u64, at[1] + statistics as u64];
            let (which, number) = (Tiling::which(tilings, packed), round.calls.len() as i32);
            let tiles = packed.div_ceil(tilings[which].tile);
            for piece in 0..call.pieces as i32 {
                let item = |tile| Item { call: number, tile, piece, pieces: call.pieces as i32 };
                round.items[which].extend((0..tiles as i32).map(item));
            }
            let ResultAddress { out, lse, row } = call.place;
            if call.is_placed {
                round.calls.push((call.asking.placed([out, lse], row), call.reach));
                continue;
            }
            round.calls.push((call.asking.in_pieces(&pieces), call.reach));
            round.combinations.push(PlacedCombination { pieces, place: call.place });
            round.most = [round.most[0].max(packed), round.most[1].max(call.pieces)];
        }
        round
    }

    pub fn lay(&self, table: &mut Table) -> RoundLayout {
        let calls = match self.calls.first() {
            Some((_, Reach::Maps(_))) => table.append(self.calls.iter().map(|(call, reach)| match reach {
                Reach::Maps(maps) => Mapped::of(*call, *maps),
                _ => unreachable!("all keys are reached alike"),
            })),
            Some((_, Reach::Scales(_))) => table.append(self.calls.iter().map(|(call, reach)| match reach {
                Reach::Scales(scales) => Scaled { call: *call, scales: *scales },
                _ => unreachable!("all keys are reached alike"),
            })),
            _ => table.append(self.calls.iter().map(|(call, _)| *call)),
        };
        self.lay_behind(calls, table)
    }

    /// Most packed rows and pieces of a call.
    pub fn most_of_a_call(&self) -> [usize; 2] {
        self.most
    }

    /// All of it but its calls, which are there.
    pub fn lay_behind(&self, calls: u64, table: &mut Table) -> RoundLayout {
        let combinations = table.push(&self.combinations);
        let items = [0, 1].map(|at: usize| table.push(&self.items[at]));
        RoundLayout { calls, combinations, items }
    }
}
