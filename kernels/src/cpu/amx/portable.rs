//! The scalar engine: the tile unit's arithmetic, step by step. The oracle of the other one, and what runs without it.

use half::bf16;

use super::engine::{Engine, LANES, Rows, SIDE, STEP, Sink, Softmax, TILE, Target};
use super::panels;

/// Plain Rust on any machine.
pub(super) struct Portable;

impl Engine for Portable {
    type Session = ();

    unsafe fn begin() {}

    /// In the order of the unit (Intel SDM, TDPBF16PS): within a step the even and the odd inner indices are summed
    /// apart, then both into the result. A product of two bf16 is exact in f32, so fused or not is the same.
    unsafe fn product(a: *const u16, b: *const u16, steps: usize, c: *mut f32, accumulate: bool) {
        for row in 0..SIDE {
            for half in 0..2 {
                // SAFETY: the caller's pointers cover two panels of `steps` steps and a block.
                unsafe {
                    let line = c.add(row * SIDE + half * LANES).cast::<[f32; LANES]>();
                    let mut sum = if accumulate { *line } else { [0.0; LANES] };
                    for step in 0..steps {
                        let left = a.add(step * STEP + row * SIDE);
                        let right = b.add(step * STEP + half * TILE);
                        let mut parts = [[0.0f32; 2]; LANES];
                        for inner in 0..SIDE {
                            for (lane, part) in parts.iter_mut().enumerate() {
                                part[inner % 2] += widen(*left.add(inner))
                                    * widen(*right.add(inner / 2 * SIDE + lane * 2 + inner % 2));
                            }
                        }
                        for (sum, part) in sum.iter_mut().zip(parts) {
                            *sum += part[0] + part[1];
                        }
                    }
                    *line = sum;
                }
            }
        }
    }

    unsafe fn pack_rows(source: Rows, panel: *mut u16) {
        // SAFETY: the caller's promise is passed on.
        unsafe { panels::pack_rows(source, panel) }
    }

    unsafe fn pack_transposed(source: Rows, tile: *mut u16) {
        // SAFETY: as above; a tile is 16 x 16 pairs.
        unsafe {
            panels::interleave(source, tile);
            Self::transpose(tile.cast());
        }
    }

    unsafe fn transpose(tile: *mut u32) {
        for row in 0..LANES {
            for column in 0..row {
                // SAFETY: both lie within the 16 x 16 elements the caller gives.
                unsafe { std::ptr::swap(tile.add(row * LANES + column), tile.add(column * LANES + row)) }
            }
        }
    }

    unsafe fn store(block: *const f32, rows: usize, columns: usize, sink: Sink) {
        for row in 0..rows {
            for column in 0..columns {
                let at = row * sink.stride + column;
                // SAFETY: `rows x columns` of the block and of the sink belong to the caller.
                unsafe {
                    let mut value = *block.add(row * SIDE + column);
                    if !sink.bias.is_null() {
                        value += *sink.bias.add(column);
                    }
                    if !sink.residual.is_null() {
                        value += widen(*sink.residual.add(at));
                    }
                    match sink.target {
                        Target::F32(start) => *start.add(at) = value,
                        Target::Bf16(start) => *start.add(at) = narrow(value),
                    }
                }
            }
        }
    }

    unsafe fn observe(scores: *const f32, keys: usize, scale: f32, softmax: *mut Softmax) -> bool {
        let mut peak = [f32::NEG_INFINITY; LANES];
        for key in 0..keys {
            for (lane, peak) in peak.iter_mut().enumerate() {
                // SAFETY: `keys` rows of 32 scores belong to the caller.
                *peak = peak.max(unsafe { *scores.add(key * SIDE + lane) });
            }
        }
        // SAFETY: the caller's state, which nobody else uses meanwhile.
        unsafe { (*softmax).advance(&peak, scale) }
    }

    unsafe fn exponentials(scores: *const f32, scale: f32, softmax: *mut Softmax, weights: *mut u16) {
        // SAFETY: the caller's state, 32 rows of scores and a tile.
        unsafe {
            let softmax = &mut *softmax;
            for lane in 0..LANES {
                let mut sum = 0.0;
                for key in 0..SIDE {
                    let weight = ((*scores.add(key * SIDE + lane) - softmax.reference[lane]) * scale).exp2();
                    sum += weight;
                    *weights.add(key / 2 * SIDE + lane * 2 + key % 2) = narrow(weight);
                }
                softmax.sum[lane] += sum;
            }
        }
    }
}

fn widen(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

fn narrow(value: f32) -> u16 {
    bf16::from_f32(value).to_bits()
}
