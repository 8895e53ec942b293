//! Attention of many rows in 8-bit floats, for heads of 128 elements on Hopper: what it is given is made 8-bit floats for each call, but
//! for keys that lie in a cache which keeps their codes.

use super::super::super::codes::KeyCodes;
use super::super::super::device::layout::{Lies, Map, Strides, encode};
use super::super::super::device::{Device, LaunchShape, QUANTUM_OPERATIONS, launch};
use super::super::super::tensor::View;
use super::super::call::CudaAttentionCall;
use super::super::parts::pairs;
use crate::{DType, KernelError, Mask};

/// Elements of a head, keys of a block, rows of a tile, threads and bytes of shared memory, as the kernel has them.
const DIM: usize = 128;
const KEYS: usize = 128;
const ROWS: usize = 192;
const FLOAT8_THREADS: u32 = 512;
/// First keys of a head, of which the mean is taken, as the kernel has them.
const SAMPLE: usize = 1024;
/// Most runs of keys, least blocks of one, and the part of the time that processors are to be busy.
const MOST_RUNS: usize = 4;
const RUN_BLOCKS: usize = 64;
const BUSY: f64 = 0.9;
const SHARED: usize = 2 * ROWS * DIM + 5 * 2 * KEYS * DIM + 1024;

/// As `float8.cu` declares it.
#[repr(C)]
struct Matrix {
    at: u64,
    head: i64,
    row: i64,
    rows: i32,
    unused: i32,
}

impl Matrix {
    fn of(x: View<'_>) -> Self {
        Self { at: x.pointer, head: x.at.head, row: x.at.row, rows: x.rows as i32, unused: 0 }
    }
}

/// As `float8.cu` declares it.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Call {
    maps: [Map; 3],
    q_scale: u64,
    q_shift: u64,
    k_scale: u64,
    v_scale: u64,
    out: u64,
    before: u64,
    lse: u64,
    before_lse: u64,
    out_head: i64,
    out_row: i64,
    lse_head: i64,
    heads: i32,
    group: i32,
    rows: i32,
    keys: i32,
    causal: i32,
    first: i32,
    end: i32,
    runs: i32,
    blocks: i32,
    scale: f32,
}

const _: () = assert!(size_of::<Call>() == 512, "without gaps");

impl KeyCodes {
    fn with_room(device: &Device, heads: usize, tokens: usize) -> Result<Self, KernelError> {
        let blocks = tokens.div_ceil(KEYS);
        let [k, v] = [device.alloc(heads * blocks * KEYS * DIM)?, device.alloc(heads * blocks * KEYS * DIM)?];
        let [means, scales] = [device.alloc(4 * heads * DIM)?, device.alloc(4 * 2 * heads * blocks)?];
        Ok(Self { means, scales, k, v, blocks, keys: 0 })
    }

    /// Makes codes of those that have none, and of all in a block with such.
    fn take(&mut self, device: &Device, k: View<'_>, v: View<'_>) -> Result<(), KernelError> {
        let mean = self.means.pointer;
        // Codes are those that they would be if all were made now: whole blocks stand, and the mean where it is of as many keys.
        let stand = match self.keys.min(k.rows) {
            keys if keys < SAMPLE => 0,
            keys => keys / KEYS,
        };
        if stand == 0 {
            let of_heads = LaunchShape { blocks: (k.heads, 1), threads: 1024, shared: 0 };
            launch!(device, "centre_float8", of_heads, Matrix::of(k), mean)?;
        }
        let others = k.rows.div_ceil(KEYS) - stand;
        if others > 0 {
            let of_blocks = LaunchShape { blocks: (others, k.heads), threads: 256, shared: 0 };
            let (from, blocks, [k_scale, v_scale]) = (stand as i32, self.blocks as i32, self.scales());
            launch!(device, "keys_float8", of_blocks, Matrix::of(k), self.k.pointer, k_scale, from, blocks, mean)?;
            launch!(device, "values_float8", of_blocks, Matrix::of(v), self.v.pointer, v_scale, from, blocks)?;
        }
        self.keys = k.rows;
        Ok(())
    }

    fn scales(&self) -> [u64; 2] {
        let each = self.scales.bytes / 2;
        [0, each].map(|at| self.scales.pointer + at as u64)
    }
}

impl CudaAttentionCall<'_> {
    /// Whether there is a kernel for it in 8-bit floats.
    pub(in super::super) fn suits_float8(&self) -> bool {
        let (rows, keys) = (self.q.rows, self.k.rows);
        let mask = self.mask == Mask::None || (self.mask == Mask::Causal && keys >= rows);
        self.tiled() && self.q.dim == DIM && self.out.dtype == DType::Bf16 && mask && keys > 0
    }
}

impl Device {
    /// Attention in 8-bit floats of a call that suits, queued in stretches of whole rounds over the processors.
    pub(in super::super) fn attend_float8(&self, call: &CudaAttentionCall<'_>) -> Result<(), KernelError> {
        let CudaAttentionCall { q, k, v, out, lse, mask } = *call;
        let (group, blocks, scale) = (q.heads / k.heads, k.rows.div_ceil(KEYS), 1.0 / (DIM as f32).sqrt());
        let mut kept = k.codes.map(|cached| cached.made());
        let mut own = None;
        let codes = match (&mut kept, k.codes) {
            (Some(kept), Some(cached)) => filled(kept, || KeyCodes::with_room(self, k.heads, cached.tokens))?,
            _ => filled(&mut own, || KeyCodes::with_room(self, k.heads, k.rows))?,
        };
        codes.take(self, k, v)?;
        let q_scales = self.empty(&[2, q.heads, q.rows], DType::F32)?;
        let (q_codes, q_scale) = (self.alloc(q.heads * q.rows * DIM)?, q_scales.pointer());
        let q_shift = q_scale + (4 * q.heads * q.rows) as u64;
        let (to, mean) = (q_codes.pointer, codes.means.pointer);
        let of_rows = LaunchShape { blocks: (q.rows.div_ceil(8), q.heads), threads: 256, shared: 0 };
        launch!(self, "queries_float8", of_rows, Matrix::of(q), to, q_scale, q_shift, mean, group as i32, scale)?;

        // Elements of maps are two codes.
        let map = |pointer, [heads, rows, columns]: [usize; 3], copied| {
            let at = Strides { head: (rows * columns / 2) as i64, row: (columns / 2) as i64 };
            encode(Lies { pointer, sizes: [heads, rows, columns / 2], at, copied: [1, copied] })
        };
        let maps = [
            map(q_codes.pointer, [q.heads, q.rows, DIM], ROWS as u32)?,
            map(codes.k.pointer, [k.heads, codes.blocks * KEYS, DIM], KEYS as u32)?,
            map(codes.v.pointer, [k.heads, DIM, codes.blocks * KEYS], DIM as u32)?,
        ];
        let (row_tiles, processors) = (q.rows.div_ceil(ROWS) * q.heads, self.room().processors());
        let runs = runs(row_tiles, blocks, processors);
        let before = self.empty(&[(runs - 1) * q.rows, q.heads * DIM], DType::Bf16)?;
        let before_lse = self.empty(&[(runs - 1) * q.heads, q.rows], DType::F32)?;
        let whole = Call {
            maps,
            q_scale,
            q_shift,
            k_scale: codes.scales()[0],
            v_scale: codes.scales()[1],
            out: out.pointer,
            before: before.pointer(),
            lse: lse.pointer(),
            before_lse: before_lse.pointer(),
            out_head: out.at.head,
            out_row: out.at.row,
            lse_head: lse.shape[1] as i64,
            heads: q.heads as i32,
            group: group as i32,
            rows: q.rows as i32,
            keys: k.rows as i32,
            causal: i32::from(mask == Mask::Causal),
            first: 0,
            end: 0,
            runs: runs as i32,
            blocks: codes.blocks as i32,
            scale,
        };
        let (tiles, operations) = (row_tiles * runs, (4 * DIM * q.heads) as f64 * pairs(q.rows, k.rows, mask));
        let stretch = stretch(tiles, operations, processors);
        for first in (0..tiles).step_by(stretch) {
            let end = tiles.min(first + stretch);
            let part = Call { first: first as i32, end: end as i32, ..whole };
            let spread =
                LaunchShape { blocks: (processors.min(end - first), 1), threads: FLOAT8_THREADS, shared: SHARED };
            launch!(self, "attend_float8", spread, part)?;
            self.queued(q.rows, operations * (end - first) as f64 / tiles as f64)?;
        }
        (0..runs - 1).try_for_each(|run| {
            let part = before.rows(run * q.rows, (run + 1) * q.rows)?;
            let of_part = before_lse.rows(run * q.heads, (run + 1) * q.heads)?;
            self.merge_into((out, lse, 0), (part.token_major(q.heads)?, &of_part, 0))
        })
    }
}

/// What there is, or what is made.
fn filled<T>(place: &mut Option<T>, make: impl FnOnce() -> Result<T, KernelError>) -> Result<&mut T, KernelError> {
    let made = match place.take() {
        Some(made) => made,
        None => make()?,
    };
    Ok(place.insert(made))
}

/// Into how many runs the keys are cut, of so many tiles over all of them: as few as leave no processor idle for more than a tenth of
/// the time, else as many as leave them idle the least. Runs are long, so that what merging them takes is little.
fn runs(tiles: usize, blocks: usize, processors: usize) -> usize {
    let busy = |runs: usize| {
        let all = tiles * runs;
        all as f64 / all.next_multiple_of(processors) as f64
    };
    let allowed = || 1..=(blocks / RUN_BLOCKS).clamp(1, MOST_RUNS);
    let best = || allowed().fold(1, |best, runs| if busy(runs) > busy(best) { runs } else { best });
    allowed().find(|runs| busy(*runs) >= BUSY).unwrap_or_else(best)
}

/// Tiles that are queued at once: as many whole rounds over the processors as a quantum takes.
fn stretch(tiles: usize, operations: f64, processors: usize) -> usize {
    let round = operations * processors as f64 / tiles as f64;
    processors * ((QUANTUM_OPERATIONS / round) as usize).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_are_whole_rounds_of_about_a_quantum() {
        let of = |rows: usize, keys| {
            let operations = (4 * DIM * 32) as f64 * pairs(rows, keys, Mask::None);
            stretch(rows.div_ceil(ROWS) * 32, operations, 132)
        };
        assert_eq!(of(8704, 131_072), 132 * 8);
        assert_eq!(of(1 << 17, 1 << 20), 132, "a round is longer than a quantum");
        assert!(of(600, 600) > 4 * 32, "all of it");
    }

    #[test]
    fn keys_are_cut_where_the_last_round_would_be_nearly_empty() {
        let of = |rows: usize, heads: usize, keys: usize| runs(rows.div_ceil(ROWS) * heads, keys / KEYS, 132);
        assert_eq!(of(1024, 32, 150 << 10), 2, "192 tiles take two rounds of 132, 384 three");
        assert_eq!(of(8704, 32, 131_072), 1, "1472 tiles: 11.2 rounds");
        assert_eq!(of(1024, 32, 8 << 10), 1, "runs would be short");
        assert_eq!(of(900, 28, 1 << 20), 4, "140 tiles: 0.53, 0.71, 0.80 and 0.85 busy");
    }
}
