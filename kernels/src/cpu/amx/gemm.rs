//! `y = x W^T` over packed weights, with bias, residual and rounding in the epilogue. Allocates only scratch.
//!
//! Sums run over the inner dimension in one order whatever the number of rows, so a row of `y` depends on its own row of
//! `x` alone.

use std::cell::RefCell;

use half::bf16;

use super::buffer::AmxBuffer;
use super::engine::{BLOCK_SIDE, Engine, Product, RESULT_BLOCK, Rows, STEP_ELEMENTS, Sink, Target};
use super::weights::AmxWeights;
use super::{Parallel, dispatch};

/// What becomes of `x W^T + b (m, n)`, which is f32 until then.
pub enum GemmOutput<'a> {
    /// Kept in single precision.
    F32(&'a mut [f32]),
    /// Rounded to bf16.
    Bf16(&'a mut [bf16]),
    /// Added to what the slice holds, then rounded to bf16.
    AddBf16(&'a mut [bf16]),
    /// Added to the second slice, rounded to bf16 and written to the first.
    SumBf16(&'a mut [bf16], &'a [bf16]),
}

/// `x (m, k) -> (m, n)`.
pub fn gemm(x: &[bf16], weights: &AmxWeights, output: GemmOutput<'_>, parallel: Parallel<'_>) {
    let (x, sink) = operands(x, weights, output);
    dispatch!(gemm_with(x, weights, sink, parallel))
}

/// Checks that the operands fit one another.
fn operands(x: &[bf16], weights: &AmxWeights, output: GemmOutput<'_>) -> (Rows, Sink) {
    let (n, k) = (weights.outputs(), weights.inputs());
    assert!(k > 0 && x.len().is_multiple_of(k), "x must be (m, {k})");
    let m = x.len() / k;
    let (target, residual) = match output {
        GemmOutput::F32(y) => (check(y.len(), m * n, Target::F32(y.as_mut_ptr())), std::ptr::null()),
        GemmOutput::Bf16(y) => (check(y.len(), m * n, Target::Bf16(y.as_mut_ptr().cast())), std::ptr::null()),
        GemmOutput::AddBf16(y) => {
            let start = y.as_mut_ptr().cast::<u16>();
            (check(y.len(), m * n, Target::Bf16(start)), start.cast_const())
        }
        GemmOutput::SumBf16(y, residual) => {
            assert_eq!(residual.len(), m * n, "the residual must be as large as the result");
            (check(y.len(), m * n, Target::Bf16(y.as_mut_ptr().cast())), residual.as_ptr().cast())
        }
    };
    let sink = Sink { target, residual, bias: weights.bias(), stride: n };
    (Rows { data: x.as_ptr().cast(), stride: k, rows: m, columns: k }, sink)
}

fn check(got: usize, wanted: usize, target: Target) -> Target {
    assert_eq!(got, wanted, "the result must be (m, n)");
    target
}

/// Inner steps at a time: a panel of `x` and one of `W` of this depth share the first-level cache.
const DEPTH: usize = 9;
/// Inner steps from which `W` is read once for all rows of a task, with sums in the second-level cache.
const DEEP: usize = 65;
/// Panels of `W` at a time in that case.
const WIDE: usize = 16;
/// bf16 elements of `W` that stay in the second-level cache while the rows of a task pass.
const RESIDENT: usize = 1 << 18;

/// One task's part of the product: some rows of `x`, some panels of `W`.
struct GemmPart<'a> {
    x: Rows,
    weights: &'a AmxWeights,
    columns: std::ops::Range<usize>,
    sink: Sink,
}

/// # Safety
/// The machine must suit the engine; `x` and `sink` must be `(m, k)` and `(m, n)`.
unsafe fn gemm_with<E: Engine>(x: Rows, weights: &AmxWeights, sink: Sink, parallel: Parallel<'_>) {
    // Sixteen tasks at least where the shape has them: a few rows are split by columns.
    const GEMM_TASKS: usize = 16;
    if x.rows == 0 || weights.outputs() == 0 {
        return;
    }
    let rows = match weights.are_in_blocks() {
        // Those are widened for each task anew.
        true => 256,
        false if weights.steps() >= DEEP => 192,
        false => 128,
    };
    let rows = rows.min(x.rows.div_ceil(4).next_multiple_of(BLOCK_SIDE));
    let panels = weights.outputs().div_ceil(BLOCK_SIDE);
    let bands = x.rows.div_ceil(rows);
    let width = panels.div_ceil(GEMM_TASKS.div_ceil(bands).min(panels));
    let splits = panels.div_ceil(width);
    parallel(bands * splits, &|task| {
        let (band, split) = (task / splits, task % splits);
        let first = band * rows;
        let (x, sink) = (&x, &sink);
        let part = GemmPart {
            x: Rows { data: x.data.wrapping_add(first * x.stride), rows: rows.min(x.rows - first), ..*x },
            weights,
            columns: split * width..panels.min((split + 1) * width),
            // SAFETY: row `first` of the result exists.
            sink: unsafe { sink.at(first, 0) },
        };
        // SAFETY: the caller's promise; parts of different tasks are disjoint in the result.
        unsafe { part.compute::<E>() }
    });
}

thread_local! {
    /// Panels of `x`, blocks of sums and panels of widened weights, kept between calls.
    static GEMM_SCRATCH: RefCell<[AmxBuffer; 3]> = RefCell::new([0; 3].map(AmxBuffer::new));
}

impl GemmPart<'_> {
    /// # Safety
    /// The machine must suit the engine, and the part's rows and columns exist.
    unsafe fn compute<E: Engine>(&self) {
        let steps = self.weights.steps();
        if self.x.rows <= E::FEW {
            // SAFETY: the caller's promise.
            return unsafe { self.few::<E>() };
        }
        let panels = self.x.rows.div_ceil(BLOCK_SIDE);
        let deep = steps >= DEEP;
        let wide = if deep { WIDE } else { (RESIDENT / (steps * STEP_ELEMENTS)).next_multiple_of(GROUP) };
        GEMM_SCRATCH.with_borrow_mut(|[left, sums, wide_panels]| {
            left.reserve(panels * steps * STEP_ELEMENTS * size_of::<u16>());
            sums.reserve(if deep { panels * WIDE } else { GROUP } * RESULT_BLOCK * size_of::<f32>());
            let left = left.pointer::<u16>();
            for panel in 0..panels {
                // SAFETY: a band lies within `x`, and the buffer holds a panel for each.
                unsafe { E::pack_rows(self.x.band(panel * BLOCK_SIDE), left.add(panel * steps * STEP_ELEMENTS)) }
            }
            // SAFETY: the caller's promise.
            let session = unsafe { E::begin() };
            let (sums, right) = (sums.pointer(), (std::ptr::null(), 0));
            let mut blocks = GemmBlocks::<E> { part: self, session, left, right, sums };
            for first in self.columns.clone().step_by(wide) {
                let columns = first..self.columns.end.min(first + wide);
                // SAFETY: the columns are the part's.
                blocks.right = (unsafe { self.weights.panels::<E>(columns.clone(), wide_panels) }, first);
                // SAFETY: the scratch was sized for this, and the columns are the part's.
                unsafe { if deep { blocks.deep(panels, columns) } else { blocks.shallow(panels, columns) } }
            }
        });
    }
}

impl GemmPart<'_> {
    /// A few rows: `W` is read once, and nothing is packed.
    ///
    /// # Safety
    /// As [`GemmPart::compute`].
    unsafe fn few<E: Engine>(&self) {
        let (steps, Rows { data, stride, rows, columns }) = (self.weights.steps(), self.x);
        GEMM_SCRATCH.with_borrow_mut(|[left, sums, wide]| {
            left.reserve(rows * steps * BLOCK_SIDE * size_of::<f32>());
            sums.reserve(RESULT_BLOCK * size_of::<f32>());
            let (left, sums) = (left.pointer::<f32>(), sums.pointer::<f32>());
            for row in 0..rows {
                for at in 0..steps * BLOCK_SIDE {
                    // SAFETY: the scratch has whole steps, and `x` its columns.
                    unsafe {
                        let bits = if at < columns { *data.add(row * stride + at) } else { 0 };
                        left.add(row * steps * BLOCK_SIDE + at).write(bf16::from_bits(bits).to_f32());
                    }
                }
            }
            for column in self.columns.clone() {
                let outputs = BLOCK_SIDE.min(self.weights.outputs() - column * BLOCK_SIDE);
                // SAFETY: the rows were just widened, the panel exists, and the block's columns are the part's.
                unsafe {
                    let panel = self.weights.panels::<E>(column..column + 1, wide);
                    E::product_of_few(left, rows, panel, steps, sums);
                    E::store(sums, rows, outputs, self.sink.at(0, column * BLOCK_SIDE));
                }
            }
        });
    }
}

/// Blocks whose sums are in flight at once when the inner dimension takes several passes.
const GROUP: usize = 4;

/// The loops over blocks.
struct GemmBlocks<'a, E: Engine> {
    part: &'a GemmPart<'a>,
    session: E::Session,
    left: *const u16,
    /// Panels of `W`, and which the first of them is.
    right: (*const u16, usize),
    sums: *mut f32,
}

impl<E: Engine> GemmBlocks<'_, E> {
    /// Each group of blocks over the whole inner dimension, its sums in the first-level cache.
    ///
    /// # Safety
    /// As [`GemmPart::compute`].
    unsafe fn shallow(&mut self, panels: usize, columns: std::ops::Range<usize>) {
        let (steps, depth) = self.passes();
        for panel in 0..panels {
            for first in columns.clone().step_by(GROUP) {
                for step in (0..steps).step_by(depth) {
                    for column in first..columns.end.min(first + GROUP) {
                        // SAFETY: the scratch holds the blocks of a group.
                        unsafe {
                            self.multiply((panel, column), step, depth, self.sums.add((column - first) * RESULT_BLOCK))
                        }
                    }
                }
            }
        }
    }

    /// Every block of the part a pass at a time, so that `W` is read once; sums in the second-level cache.
    ///
    /// # Safety
    /// As [`GemmPart::compute`].
    unsafe fn deep(&mut self, panels: usize, columns: std::ops::Range<usize>) {
        let (steps, depth) = self.passes();
        for step in (0..steps).step_by(depth) {
            for panel in 0..panels {
                for column in columns.clone() {
                    // SAFETY: the scratch holds every block of these columns.
                    unsafe {
                        let sums = self.sums.add((panel * WIDE + column - columns.start) * RESULT_BLOCK);
                        self.multiply((panel, column), step, depth, sums);
                    }
                }
            }
        }
    }

    /// Inner steps, and how many to take at a time.
    fn passes(&self) -> (usize, usize) {
        let steps = self.part.weights.steps();
        (steps, steps.div_ceil(steps.div_ceil(DEPTH)))
    }

    /// Adds up to `depth` steps to a block, and stores it after the last.
    ///
    /// # Safety
    /// The block must exist, and `sums` be its scratch.
    #[inline(always)]
    unsafe fn multiply(&mut self, (panel, column): (usize, usize), step: usize, depth: usize, sums: *mut f32) {
        let GemmPart { x, weights, sink, .. } = self.part;
        let steps = weights.steps();
        // SAFETY: both panels exist from `step` on, for `steps - step` steps; the block's rows and columns lie within the
        // part's result.
        unsafe {
            let a = self.left.add((panel * steps + step) * STEP_ELEMENTS);
            let b = self.right.0.add(((column - self.right.1) * steps + step) * STEP_ELEMENTS);
            let product = Product {
                a,
                b,
                steps: depth.min(steps - step),
                c: sums,
                accumulate: step > 0,
                narrow: false,
                prefetch: 0,
            };
            E::product(&mut self.session, product);
            if step + depth >= steps {
                let (row, column) = (panel * BLOCK_SIDE, column * BLOCK_SIDE);
                let (rows, columns) = (BLOCK_SIDE.min(x.rows - row), BLOCK_SIDE.min(weights.outputs() - column));
                E::store(sums, rows, columns, sink.at(row, column));
            }
        }
    }
}

#[cfg(test)]
mod tests;
