//! Attention of many rows in 8-bit floats, for heads of 128 elements on Hopper: what it is given is made 8-bit floats for each call.

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
    lse: u64,
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
    scale: f32,
    unused: [u64; 3],
}

const _: () = assert!(size_of::<Call>() == 512, "without gaps");

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
        let means = self.empty(&[k.heads, DIM], DType::F32)?;
        let q_scales = self.empty(&[2, q.heads, q.rows], DType::F32)?;
        let kv_scales = self.empty(&[2, k.heads, blocks], DType::F32)?;
        let [q_codes, k_codes] = [self.alloc(q.heads * q.rows * DIM)?, self.alloc(k.heads * k.rows * DIM)?];
        let v_codes = self.alloc(k.heads * blocks * KEYS * DIM)?;
        let [q_scale, k_scale] = [&q_scales, &kv_scales].map(|scales| scales.pointer());
        let q_shift = q_scale + (4 * q.heads * q.rows) as u64;
        let v_scale = k_scale + (4 * k.heads * blocks) as u64;

        let spread = |blocks, threads| LaunchShape { blocks, threads, shared: 0 };
        launch!(self, "centre_float8", spread((k.heads, 1), 1024), Matrix::of(k), means.pointer())?;
        let (to, mean) = (q_codes.pointer, means.pointer());
        let of_rows = spread((q.rows.div_ceil(8), q.heads), 256);
        launch!(self, "queries_float8", of_rows, Matrix::of(q), to, q_scale, q_shift, mean, group as i32, scale)?;
        let of_blocks = spread((blocks, k.heads), 256);
        launch!(self, "keys_float8", of_blocks, Matrix::of(k), k_codes.pointer, k_scale, mean)?;
        launch!(self, "values_float8", of_blocks, Matrix::of(v), v_codes.pointer, v_scale)?;

        // Elements of maps are two codes.
        let map = |pointer, [heads, rows, columns]: [usize; 3], copied| {
            let at = Strides { head: (rows * columns / 2) as i64, row: (columns / 2) as i64 };
            encode(Lies { pointer, sizes: [heads, rows, columns / 2], at, copied: [1, copied] })
        };
        let maps = [
            map(q_codes.pointer, [q.heads, q.rows, DIM], ROWS as u32)?,
            map(k_codes.pointer, [k.heads, k.rows, DIM], KEYS as u32)?,
            map(v_codes.pointer, [k.heads, DIM, blocks * KEYS], DIM as u32)?,
        ];
        let whole = Call {
            maps,
            q_scale,
            q_shift,
            k_scale,
            v_scale,
            out: out.pointer,
            lse: lse.pointer(),
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
            scale,
            unused: [0; 3],
        };
        let (tiles, operations) =
            (q.rows.div_ceil(ROWS) * q.heads, (4 * DIM * q.heads) as f64 * pairs(q.rows, k.rows, mask));
        let processors = self.room().processors();
        let stretch = stretch(tiles, operations, processors);
        for first in (0..tiles).step_by(stretch) {
            let end = tiles.min(first + stretch);
            let part = Call { first: first as i32, end: end as i32, ..whole };
            let spread =
                LaunchShape { blocks: (processors.min(end - first), 1), threads: FLOAT8_THREADS, shared: SHARED };
            launch!(self, "attend_float8", spread, part)?;
            self.queued(q.rows, operations * (end - first) as f64 / tiles as f64)?;
        }
        Ok(())
    }
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
}
