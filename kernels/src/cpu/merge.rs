//! Exact merge of partial attention over disjoint keys (Star Attention, algorithm 2, in its max form).

use std::ops::Range;

use super::compute::Compute;
use super::elementwise::convert;
use super::lanes::{Element, Kernel, Lanes, load_some, store_some};
use super::pool::{Shared, Tasks, filled};
use crate::Heads;

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
        let mut weights = Vec::with_capacity(self.partials.len());
        for row in self.rows {
            let parts = self.partials.iter().map(|(output, lse)| (&output[row * self.dim..][..self.dim], lse[row]));
            // SAFETY: this row of the results is this task's.
            unsafe {
                *self.lse.at(row) = merge_row::<L>(parts, &mut weights, self.dim, self.output.at(row * self.dim));
            }
        }
    }
}

/// Packed partials of each part (`crate::packed`), merged and joined: `(rows of all parts, query heads dim)`.
pub(super) fn merge_packed<E: Element>(heads: Heads, parts: &[Vec<&[f32]>], compute: &Compute) -> Vec<E> {
    let width = heads.query * heads.dim;
    let row_of_part = |(part, partials): (usize, &Vec<&[f32]>)| {
        (0..partials[0].len() / heads.packed_row()).map(move |row| (part, row)).collect::<Vec<_>>()
    };
    let rows: Vec<(usize, usize)> = parts.iter().enumerate().flat_map(row_of_part).collect();
    let most = parts.iter().map(Vec::len).max().unwrap_or(0);
    let each = (TASK / heads.query).max(1);
    let tasks = Tasks { count: rows.len().div_ceil(each), cost: 2 * most * rows.len() * (width + 10 * heads.query) };
    let write = |output: Shared<E>| {
        compute.pool.each(tasks, |task| {
            let rows = (task * each..rows.len().min((task + 1) * each)).map(|at| (at, rows[at]));
            compute.set.run(MergePacked { heads, parts, rows, output: &output });
        });
    };
    // SAFETY: the tasks cover every row.
    unsafe { filled(rows.len() * width, write) }
}

struct MergePacked<'a, E, R> {
    heads: Heads,
    parts: &'a [Vec<&'a [f32]>],
    /// Place of the row among the results, its part and its place in that.
    rows: R,
    output: &'a Shared<E>,
}

impl<E: Element, R: Iterator<Item = (usize, (usize, usize))>> Kernel for MergePacked<'_, E, R> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Heads { query, dim, .. } = self.heads;
        let (mut weights, mut merged) = (Vec::new(), vec![0.0; dim]);
        for (at, (part, row)) in self.rows {
            for head in 0..query {
                let parts = self.parts[part].iter().map(|packed| {
                    let row = &packed[row * self.heads.packed_row()..][..self.heads.packed_row()];
                    (&row[head * dim..][..dim], row[query * dim + head])
                });
                // SAFETY: `merged` has room for a row; this row of the results is this task's.
                unsafe {
                    merge_row::<L>(parts, &mut weights, dim, merged.as_mut_ptr());
                    convert::<L, f32, E>(&merged, self.output.at((at * query + head) * dim));
                }
            }
        }
    }
}

/// Merges one row of one head from its outputs and log-sum-exps. Returns the log-sum-exp of all.
///
/// # Safety
/// `to` has room for `dim` values; outputs are `dim` long.
#[inline(always)]
unsafe fn merge_row<'a, L: Lanes>(
    parts: impl Iterator<Item = (&'a [f32], f32)> + Clone,
    weights: &mut Vec<f32>,
    dim: usize,
    to: *mut f32,
) -> f32 {
    let max = parts.clone().map(|(_, lse)| lse).fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    weights.clear();
    for (_, lse) in parts.clone() {
        // Without any key there is no difference to take.
        let weight = if lse == f32::NEG_INFINITY { 0.0 } else { (lse - max).exp() };
        weights.push(weight);
        sum += weight;
    }
    let inverse = if sum == 0.0 { 0.0 } else { 1.0 / sum };
    for at in (0..dim).step_by(L::N) {
        let left = dim - at;
        let mut total = L::zero();
        for (weight, (output, _)) in weights.iter().zip(parts.clone()) {
            // SAFETY: no more is read than the row has left.
            let part: L = unsafe { load_some(output[at..].as_ptr(), left) };
            total = part.mul_add(L::splat(weight * inverse), total);
        }
        // SAFETY: no more is written than the row has left.
        unsafe { store_some(to.add(at), left, total) };
    }
    max + sum.ln()
}
