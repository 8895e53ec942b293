//! Exact merge of partial attention over disjoint keys (Star Attention, algorithm 2, in its max form).

use std::ops::Range;

use super::compute::Compute;
use super::lanes::{Kernel, Lanes, load_some, store_some};
use super::pool::{Shared, Tasks, filled};

/// Rows that a task takes.
const TASK: usize = 256;

/// `(output (rows, dim), lse (rows))` of partials of that shape, in the order given.
pub(super) fn merge(partials: &[(&[f32], &[f32])], dim: usize, compute: &Compute) -> (Vec<f32>, Vec<f32>) {
    let rows = partials[0].1.len();
    assert!(partials.iter().all(|(output, lse)| output.len() == rows * dim && lse.len() == rows));
    let mut merged = vec![0.0; rows];
    let lse = Shared::new(&mut merged);
    let tasks = Tasks { count: rows.div_ceil(TASK), cost: 2 * partials.len() * rows * (dim + 10) };
    let write = |output: Shared<f32>| {
        compute.pool.each(tasks, |task| {
            let rows = task * TASK..rows.min((task + 1) * TASK);
            compute.set.run(Merge { partials, dim, rows, output: &output, lse: &lse });
        });
    };
    // SAFETY: the tasks cover every row.
    let output = unsafe { filled(rows * dim, write) };
    (output, merged)
}

struct Merge<'a> {
    partials: &'a [(&'a [f32], &'a [f32])],
    dim: usize,
    rows: Range<usize>,
    output: &'a Shared<f32>,
    lse: &'a Shared<f32>,
}

impl Kernel for Merge<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let mut weights = vec![0.0; self.partials.len()];
        for row in self.rows {
            let max = self.partials.iter().map(|(_, lse)| lse[row]).fold(f32::NEG_INFINITY, f32::max);
            let mut sum = 0.0;
            for (weight, (_, lse)) in weights.iter_mut().zip(self.partials) {
                // Without any key there is no difference to take.
                *weight = if lse[row] == f32::NEG_INFINITY { 0.0 } else { (lse[row] - max).exp() };
                sum += *weight;
            }
            let inverse = if sum == 0.0 { 0.0 } else { 1.0 / sum };
            // SAFETY: this row of the results is this task's.
            unsafe { *self.lse.at(row) = max + sum.ln() };
            for at in (0..self.dim).step_by(L::N) {
                let left = self.dim - at;
                let mut total = L::zero();
                for (weight, (output, _)) in weights.iter().zip(self.partials) {
                    // SAFETY: no more is read than the row has left.
                    let part: L = unsafe { load_some(output[row * self.dim + at..].as_ptr(), left) };
                    total = part.mul_add(L::splat(weight * inverse), total);
                }
                // SAFETY: this row of the results is this task's.
                unsafe { store_some(self.output.at(row * self.dim + at), left, total) };
            }
        }
    }
}
