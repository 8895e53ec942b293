//! The scalar engine: the tile unit's arithmetic, step by step. The oracle of the other one, and what runs without it.

use half::bf16;

use super::engine::{
    BLOCK_SIDE, Engine, Exponentials, LANES, Product, Rows, STEP_ELEMENTS, Sink, Softmax, TILE_ELEMENTS, Target,
};
use super::panels;
use crate::cpu::tensor::BlockPanels;

/// Plain Rust on any machine.
pub(super) struct PortableEngine;

impl Engine for PortableEngine {
    type Session = ();

    const FEW: usize = 0;

    unsafe fn begin() {}

    /// In the order of the unit (Intel SDM, TDPBF16PS): within a step the even and the odd inner indices are summed
    /// apart, then both into the result. A product of two bf16 is exact in f32, so fused or not is the same.
    unsafe fn product((): &mut (), Product { a, b, steps, c, accumulate, narrow, prefetch: _ }: Product) {
        for row in 0..BLOCK_SIDE {
            for half in 0..if narrow { 1 } else { 2 } {
                // SAFETY: the caller's pointers cover two panels of `steps` steps and a block.
                unsafe {
                    let line = c.add(row * BLOCK_SIDE + half * LANES).cast::<[f32; LANES]>();
                    let mut sum = if accumulate { *line } else { [0.0; LANES] };
                    for step in 0..steps {
                        let left = a.add(step * STEP_ELEMENTS + row * BLOCK_SIDE);
                        let right = b.add(step * STEP_ELEMENTS + half * TILE_ELEMENTS);
                        let mut parts = [[0.0f32; 2]; LANES];
                        for inner in 0..BLOCK_SIDE {
                            for (lane, part) in parts.iter_mut().enumerate() {
                                part[inner % 2] += widen(*left.add(inner))
                                    * widen(*right.add(inner / 2 * BLOCK_SIDE + lane * 2 + inner % 2));
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

    unsafe fn product_of_few(_: *const f32, _: usize, _: *const u16, _: usize, _: *mut f32) {
        unreachable!("it takes no rows");
    }

    unsafe fn exponentials(session: &mut (), work: Exponentials, products: &[Product]) {
        // SAFETY: the caller's products, state, 32 rows of scores and tile.
        unsafe {
            for &product in products {
                Self::product(session, product);
            }
            let softmax = &mut *work.softmax;
            for lane in 0..LANES {
                let mut sum = 0.0;
                for key in 0..BLOCK_SIDE {
                    let score = *work.scores.add(key * BLOCK_SIDE + lane);
                    let weight = ((score - softmax.reference[lane]) * work.scale).exp2();
                    sum += weight;
                    *work.weights.add(key / 2 * BLOCK_SIDE + lane * 2 + key % 2) = narrow(weight);
                }
                softmax.sum[lane] += sum;
            }
        }
    }

    unsafe fn settle((): &mut ()) {}

    unsafe fn pack_rows(source: Rows, panel: *mut u16) {
        // SAFETY: the caller's promise is passed on.
        unsafe { panels::pack_rows(source, panel) }
    }

    unsafe fn pack_transposed(source: Rows, tile: *mut u16) {
        for row in 0..BLOCK_SIDE {
            for column in 0..LANES {
                let present = row < source.rows && column < source.columns;
                // SAFETY: the element is the source's where it has one; a tile is 16 rows of 32.
                unsafe {
                    let value = if present { *source.data.add(row * source.stride + column) } else { 0 };
                    tile.add(column * BLOCK_SIDE + row).write(value);
                }
            }
        }
    }

    unsafe fn widen(blocks: &BlockPanels, index: usize, panel: *mut u16) {
        // SAFETY: the caller's promise.
        unsafe { panels::widen::<[u32; LANES]>(blocks, index, panel) }
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
                    let mut value = *block.add(row * BLOCK_SIDE + column);
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

    unsafe fn observe(scores: *const f32, scale: f32, softmax: *mut Softmax) -> bool {
        let mut peak = [f32::NEG_INFINITY; LANES];
        for key in 0..BLOCK_SIDE {
            for (lane, peak) in peak.iter_mut().enumerate() {
                // SAFETY: 32 rows of scores belong to the caller.
                *peak = peak.max(unsafe { *scores.add(key * BLOCK_SIDE + lane) });
            }
        }
        // SAFETY: the caller's state, which nobody else uses meanwhile.
        unsafe { (*softmax).advance(&peak, scale) }
    }
}

fn widen(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

fn narrow(value: f32) -> u16 {
    bf16::from_f32(value).to_bits()
}
