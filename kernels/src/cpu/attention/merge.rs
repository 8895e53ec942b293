//! Exact merge of partial attention over disjoint keys (Star Attention, algorithm 2, in its max form).

use std::ops::Range;

use super::super::compute::Compute;
use super::super::elementwise::convert;
use super::super::lanes::{Element, Kernel, Lanes, load_some, store_some};
use super::super::pool::{DisjointBuffer, Tasks, filled};
use crate::Heads;

/// Rows that a task takes.
const MERGE_TASK: usize = 256;

/// `(output (rows, dim), lse (rows))` of partials of that shape, in the order given.
pub(in super::super) fn merge(partials: &[(&[f32], &[f32])], dim: usize, compute: &Compute) -> (Vec<f32>, Vec<f32>) {
    let rows = partials[0].1.len();
    assert!(partials.iter().all(|(output, lse)| output.len() == rows * dim && lse.len() == rows));
    let mut merged = vec![0.0; rows];
    let lse = DisjointBuffer::new(&mut merged);
    let tasks = Tasks { count: rows.div_ceil(MERGE_TASK), cost: 2 * partials.len() * rows * (dim + 10) };
    let write = |output: DisjointBuffer<f32>| {
        compute.pool.each(tasks, |task| {
            let rows = task * MERGE_TASK..rows.min((task + 1) * MERGE_TASK);
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
    output: &'a DisjointBuffer<f32>,
    lse: &'a DisjointBuffer<f32>,
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
pub(in super::super) fn merge_packed<E: Element>(heads: Heads, parts: &[Vec<&[f32]>], compute: &Compute) -> Vec<E> {
    let (rows, stride) = (rows_of(heads, parts), heads.query * heads.dim);
    let write = |output: DisjointBuffer<E>| {
        each_task(heads, parts, &rows, compute, |rows| {
            compute.set.run(MergePacked { heads, parts, rows, to: (&output, stride), lse: None });
        });
    };
    // SAFETY: the tasks cover every row.
    unsafe { filled(rows.len() * stride, write) }
}

/// The same as packed rows, which stay f32.
pub(in super::super) fn merge_rows(heads: Heads, parts: &[Vec<&[f32]>], compute: &Compute, packed: &mut Vec<f32>) {
    let (rows, stride, start) = (rows_of(heads, parts), heads.packed_row(), packed.len());
    packed.resize(start + rows.len() * stride, 0.0);
    let output = DisjointBuffer::new(&mut packed[start..]);
    each_task(heads, parts, &rows, compute, |rows| {
        compute.set.run(MergePacked { heads, parts, rows, to: (&output, stride), lse: Some(&output) });
    });
}

/// Each row by its part and its place in that.
fn rows_of(heads: Heads, parts: &[Vec<&[f32]>]) -> Vec<(usize, usize)> {
    let rows = |partials: &Vec<&[f32]>| partials[0].len() / heads.packed_row();
    parts.iter().enumerate().flat_map(|(part, partials)| (0..rows(partials)).map(move |row| (part, row))).collect()
}

fn each_task<'a>(
    heads: Heads,
    parts: &[Vec<&[f32]>],
    rows: &'a [(usize, usize)],
    compute: &Compute,
    work: impl Fn(PlacedRows<'a>) + Sync,
) {
    let most = parts.iter().map(Vec::len).max().unwrap_or(0);
    let each = (MERGE_TASK / heads.query).max(1);
    let cost = 2 * most * rows.len() * heads.query * (heads.dim + 10);
    compute.pool.each(Tasks { count: rows.len().div_ceil(each), cost }, |task| {
        work(PlacedRows { first: task * each, rows: &rows[task * each..rows.len().min((task + 1) * each)] });
    });
}

/// Rows of a task, and the place of the first among the results.
struct PlacedRows<'a> {
    first: usize,
    rows: &'a [(usize, usize)],
}

struct MergePacked<'a, E> {
    heads: Heads,
    parts: &'a [Vec<&'a [f32]>],
    rows: PlacedRows<'a>,
    /// Where outputs go, and how far its rows lie apart.
    to: (&'a DisjointBuffer<E>, usize),
    /// Where log-sum-exps go, behind the outputs of a row; the same buffer.
    lse: Option<&'a DisjointBuffer<f32>>,
}

impl<E: Element> Kernel for MergePacked<'_, E> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Heads { query, dim, .. } = self.heads;
        let ((output, stride), packed) = (self.to, self.heads.packed_row());
        let (mut weights, mut merged) = (Vec::new(), vec![0.0; dim]);
        for (place, &(part, row)) in self.rows.rows.iter().enumerate() {
            let start = (self.rows.first + place) * stride;
            for head in 0..query {
                let parts = self.parts[part].iter().map(|partial| {
                    let row = &partial[row * packed..][..packed];
                    (&row[head * dim..][..dim], row[query * dim + head])
                });
                // SAFETY: `merged` has room for a row; this row of the results is this task's.
                unsafe {
                    let lse = merge_row::<L>(parts, &mut weights, dim, merged.as_mut_ptr());
                    convert::<L, f32, E>(&merged, output.at(start + head * dim));
                    if let Some(to) = self.lse {
                        *to.at(start + query * dim + head) = lse;
                    }
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
