//! `y = x W^T` over packed weights, with bias, residual and rounding in the epilogue. Allocates only scratch.
//!
//! Sums run over the inner dimension in one order whatever the number of rows, so a row of `y` depends on its own row of
//! `x` alone.

use std::cell::RefCell;

use half::bf16;

use super::buffer::Buffer;
use super::engine::{BLOCK, Engine, Rows, SIDE, STEP, Sink, Target};
use super::weights::Weights;
use super::{Parallel, dispatch};

/// What becomes of `x W^T + b (m, n)`, which is f32 until then.
pub enum Output<'a> {
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
pub fn gemm(x: &[bf16], weights: &Weights, output: Output<'_>, parallel: Parallel<'_>) {
    let (x, sink) = operands(x, weights, output);
    dispatch!(gemm_with(x, weights, sink, parallel))
}

/// Checks that the operands fit one another.
fn operands(x: &[bf16], weights: &Weights, output: Output<'_>) -> (Rows, Sink) {
    let (n, k) = (weights.outputs(), weights.inputs());
    assert!(k > 0 && x.len().is_multiple_of(k), "x must be (m, {k})");
    let m = x.len() / k;
    let (target, residual) = match output {
        Output::F32(y) => (check(y.len(), m * n, Target::F32(y.as_mut_ptr())), std::ptr::null()),
        Output::Bf16(y) => (check(y.len(), m * n, Target::Bf16(y.as_mut_ptr().cast())), std::ptr::null()),
        Output::AddBf16(y) => {
            let start = y.as_mut_ptr().cast::<u16>();
            (check(y.len(), m * n, Target::Bf16(start)), start.cast_const())
        }
        Output::SumBf16(y, residual) => {
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
/// bf16 elements of `W` that stay in the second-level cache while the rows of a task pass.
const RESIDENT: usize = 1 << 18;

/// One task's part of the product: some rows of `x`, some panels of `W`.
struct Part<'a> {
    x: Rows,
    weights: &'a Weights,
    columns: std::ops::Range<usize>,
    sink: Sink,
}

/// # Safety
/// The machine must suit the engine; `x` and `sink` must be `(m, k)` and `(m, n)`.
unsafe fn gemm_with<E: Engine>(x: Rows, weights: &Weights, sink: Sink, parallel: Parallel<'_>) {
    // Sixteen tasks at least where the shape has them: a few rows are split by columns.
    const TASKS: usize = 16;
    if x.rows == 0 || weights.outputs() == 0 {
        return;
    }
    let rows = if weights.steps() >= DEEP { 192 } else { 128 };
    let rows = rows.min(x.rows.div_ceil(4).next_multiple_of(SIDE));
    let panels = weights.outputs().div_ceil(SIDE);
    let bands = x.rows.div_ceil(rows);
    let width = panels.div_ceil(TASKS.div_ceil(bands).min(panels));
    let splits = panels.div_ceil(width);
    parallel(bands * splits, &|task| {
        let (band, split) = (task / splits, task % splits);
        let first = band * rows;
        let (x, sink) = (&x, &sink);
        let part = Part {
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
    /// Panels of `x` and blocks of sums, kept between calls.
    static SCRATCH: RefCell<(Buffer, Buffer)> = RefCell::new((Buffer::new(0), Buffer::new(0)));
}

impl Part<'_> {
    /// # Safety
    /// The machine must suit the engine, and the part's rows and columns exist.
    unsafe fn compute<E: Engine>(&self) {
        let steps = self.weights.steps();
        let panels = self.x.rows.div_ceil(SIDE);
        let deep = steps >= DEEP;
        let wide = if deep { 16 } else { (RESIDENT / (steps * STEP)).next_multiple_of(4) };
        // SAFETY: the caller's promise.
        let _session = unsafe { E::begin() };
        SCRATCH.with_borrow_mut(|(left, sums)| {
            left.reserve(panels * steps * STEP * size_of::<u16>());
            sums.reserve(if deep { panels * wide } else { ROWS * GROUP + 1 } * BLOCK * size_of::<f32>());
            let left = left.pointer::<u16>();
            for panel in 0..panels {
                // SAFETY: a band lies within `x`, and the buffer holds a panel for each.
                unsafe { E::pack_rows(self.x.band(panel * SIDE), left.add(panel * steps * STEP)) }
            }
            let mut blocks = Blocks { part: self, left, sums: sums.pointer(), finished: None };
            for first in self.columns.clone().step_by(wide) {
                let columns = first..self.columns.end.min(first + wide);
                // SAFETY: the scratch was sized for this, and the columns are the part's.
                unsafe {
                    if deep { blocks.deep::<E>(panels, columns, wide) } else { blocks.shallow::<E>(panels, columns) }
                }
            }
            // SAFETY: as above.
            unsafe { blocks.store::<E>() }
        });
    }
}

/// Column panels whose sums are in flight at once when the inner dimension takes several passes.
const GROUP: usize = 4;
/// Row panels that use a panel of `W` one after the other.
const ROWS: usize = 1;

/// The loops over blocks. The epilogue of a block follows the next block's product, so that the vector unit works while
/// the tile unit does.
struct Blocks<'a> {
    part: &'a Part<'a>,
    left: *const u16,
    sums: *mut f32,
    /// Row panel, column panel and sums of a block whose product is complete.
    finished: Option<(usize, usize, *const f32)>,
}

impl Blocks<'_> {
    /// Each group of blocks over the whole inner dimension, its sums in the first-level cache.
    ///
    /// # Safety
    /// As [`Part::compute`].
    unsafe fn shallow<E: Engine>(&mut self, panels: usize, columns: std::ops::Range<usize>) {
        let steps = self.part.weights.steps();
        let depth = steps.div_ceil(steps.div_ceil(DEPTH));
        let group = if depth == steps { 1 } else { GROUP };
        let slots = ROWS * GROUP + 1;
        let mut slot = 0;
        for top in (0..panels).step_by(ROWS) {
            let bottom = panels.min(top + ROWS);
            for first in columns.clone().step_by(group) {
                let last = columns.end.min(first + group);
                for step in (0..steps).step_by(depth) {
                    let blocks = (first..last).flat_map(|column| (top..bottom).map(move |panel| (panel, column)));
                    for (index, block) in blocks.enumerate() {
                        // SAFETY: one slot more than a group, so none of the group is the one that awaits its store.
                        unsafe {
                            let sums = self.sums.add((slot + index) % slots * BLOCK);
                            self.multiply::<E>(block, step, depth, sums);
                        }
                    }
                }
                slot = (slot + (last - first) * (bottom - top)) % slots;
            }
        }
    }

    /// Every block of the part a pass at a time, so that `W` is read once; sums in the second-level cache.
    ///
    /// # Safety
    /// As [`Part::compute`].
    unsafe fn deep<E: Engine>(&mut self, panels: usize, columns: std::ops::Range<usize>, wide: usize) {
        let steps = self.part.weights.steps();
        let depth = steps.div_ceil(steps.div_ceil(DEPTH));
        // SAFETY: the sums of the columns before are about to be overwritten; their last block is complete.
        unsafe { self.store::<E>() }
        for step in (0..steps).step_by(depth) {
            for panel in 0..panels {
                for column in columns.clone() {
                    // SAFETY: the scratch holds `panels x wide` blocks.
                    unsafe {
                        let sums = self.sums.add((panel * wide + column - columns.start) * BLOCK);
                        self.multiply::<E>((panel, column), step, depth, sums);
                    }
                }
            }
        }
    }

    /// Adds `depth` steps to a block, then stores the block completed before it.
    ///
    /// # Safety
    /// The block must exist, and `sums` be its scratch.
    #[inline(always)]
    unsafe fn multiply<E: Engine>(&mut self, block: (usize, usize), step: usize, depth: usize, sums: *mut f32) {
        let weights = self.part.weights;
        let steps = weights.steps();
        // SAFETY: both panels exist from `step` on, for at most `steps - step` steps.
        unsafe {
            let left = self.left.add((block.0 * steps + step) * STEP);
            E::product(left, weights.panel(block.1, step), depth.min(steps - step), sums, step > 0);
            self.store::<E>();
        }
        if step + depth >= steps {
            self.finished = Some((block.0, block.1, sums));
        }
    }

    /// Runs the epilogue of the block that awaits it.
    ///
    /// # Safety
    /// Its sums must still be in place.
    #[inline(always)]
    unsafe fn store<E: Engine>(&mut self) {
        if let Some((panel, column, sums)) = self.finished.take() {
            let (row, column) = (panel * SIDE, column * SIDE);
            let rows = SIDE.min(self.part.x.rows - row);
            let columns = SIDE.min(self.part.weights.outputs() - column);
            // SAFETY: the block's rows and columns lie within the part's result.
            unsafe { E::store(sums, rows, columns, self.part.sink.at(row, column)) }
        }
    }
}

#[cfg(test)]
mod tests;
