//! What touches each element once: norm, gated activation, rotation, and moves between layouts. Sums in f32, whatever is stored.

mod gated;
mod sums;

use std::ops::Range;

use super::compute::Compute;
use super::lanes::{Element, Kernel, Lanes, load_some, store_some};
use super::pool::{DisjointBuffer, Tasks, filled};
use crate::{Heads, Rotary};

pub(super) use gated::gated;
pub(super) use sums::{add_rows, multiple, sum};

/// Elements that a task takes.
const ELEMENT_TASK: usize = 1 << 15;

/// `x (t, e)` normalised by the root mean square of each row, times `weight (e)`.
pub(super) fn rms_norm<E: Element>(x: &[E], weight: &[E], eps: f32, compute: &Compute) -> Vec<E> {
    let e = weight.len();
    by_rows(x.len() / e.max(1), (e, e), compute, |rows, to| compute.set.run(Norm { x, weight, eps, rows, to }))
}

struct Norm<'a, E> {
    x: &'a [E],
    weight: &'a [E],
    eps: f32,
    rows: Range<usize>,
    to: &'a DisjointBuffer<E>,
}

impl<E: Element> Kernel for Norm<'_, E> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let e = self.weight.len();
        for row in self.rows {
            let x = &self.x[row * e..][..e];
            let mut squares = L::zero();
            for at in (0..e).step_by(L::N) {
                // SAFETY: no more is read than the row has left.
                let x: L = unsafe { load_some(x.as_ptr().add(at), e - at) };
                squares = x.mul_add(x, squares);
            }
            let scale = L::splat(1.0 / (squares.sum() / e as f32 + self.eps).sqrt());
            for at in (0..e).step_by(L::N) {
                // SAFETY: as above; the row of the output is this task's.
                unsafe {
                    let x: L = load_some(x.as_ptr().add(at), e - at);
                    let weight: L = load_some(self.weight.as_ptr().add(at), e - at);
                    store_some(self.to.at(row * e + at), e - at, x.mul(scale).mul(weight));
                }
            }
        }
    }
}

/// `silu(gate) * up` of `gate_up (t, 2 f)`: `(t, f)`.
pub(super) fn gated_silu<E: Element>(gate_up: &[E], f: usize, compute: &Compute) -> Vec<E> {
    let rows = gate_up.len() / (2 * f).max(1);
    by_rows(rows, (f, 4 * f), compute, |rows, to| compute.set.run(GatedSilu { gate_up, f, rows, to }))
}

struct GatedSilu<'a, E> {
    gate_up: &'a [E],
    f: usize,
    rows: Range<usize>,
    to: &'a DisjointBuffer<E>,
}

impl<E: Element> Kernel for GatedSilu<'_, E> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let f = self.f;
        for row in self.rows {
            let (gates, ups) = self.gate_up[row * 2 * f..][..2 * f].split_at(f);
            for at in (0..f).step_by(L::N) {
                // SAFETY: no more is touched than the row has left; the row of the output is this task's.
                unsafe {
                    let gate: L = load_some(gates.as_ptr().add(at), f - at);
                    let up: L = load_some(ups.as_ptr().add(at), f - at);
                    store_some(self.to.at(row * f + at), f - at, silu_of(gate).mul(up));
                }
            }
        }
    }
}

#[inline(always)]
fn silu_of<L: Lanes>(x: L) -> L {
    // 2^127 stands for all larger powers: the quotient is nothing beside any f32.
    let power = L::splat(-127.0).max(x.mul(L::splat(std::f32::consts::LOG2_E)));
    x.div(L::splat(1.0).add(L::zero().sub(power).exp2()))
}

/// `silu(x)` of each element.
pub(super) fn silu<E: Element>(x: &[E], compute: &Compute) -> Vec<E> {
    by_rows(x.len(), (1, 4), compute, |elements, to| compute.set.run(Silu { x, elements, to }))
}

struct Silu<'a, E> {
    x: &'a [E],
    elements: Range<usize>,
    to: &'a DisjointBuffer<E>,
}

impl<E: Element> Kernel for Silu<'_, E> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let end = self.elements.end;
        for at in self.elements.step_by(L::N) {
            // SAFETY: no more is touched than the task has left, and these elements of the output are its own.
            unsafe { store_some(self.to.at(at), end - at, silu_of::<L>(load_some(self.x.as_ptr().add(at), end - at))) };
        }
    }
}

/// `(heads, t, dim)` -> `(t, heads dim)`.
pub(super) fn join_heads<E: Element>(x: &[f32], heads: usize, dim: usize, compute: &Compute) -> Vec<E> {
    let t = x.len() / (heads * dim).max(1);
    by_rows(t, (heads * dim, heads * dim), compute, |rows, to| {
        compute.set.run(JoinHeads { x, heads, t, dim, rows, to });
    })
}

struct JoinHeads<'a, E> {
    x: &'a [f32],
    heads: usize,
    t: usize,
    dim: usize,
    rows: Range<usize>,
    to: &'a DisjointBuffer<E>,
}

impl<E: Element> Kernel for JoinHeads<'_, E> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        for row in self.rows {
            for head in 0..self.heads {
                let from = &self.x[(head * self.t + row) * self.dim..][..self.dim];
                // SAFETY: the row of the output is this task's.
                unsafe { convert::<L, f32, E>(from, self.to.at((row * self.heads + head) * self.dim)) };
            }
        }
    }
}

/// Rows `ids` of `table (vocab, e)`.
pub(super) fn embed<E: Element>(table: &[E], e: usize, ids: &[u32]) -> Vec<E> {
    let mut x = Vec::with_capacity(ids.len() * e);
    for &id in ids {
        x.extend_from_slice(&table[id as usize * e..][..e]);
    }
    x
}

/// `x` in another type.
pub(super) fn cast<F: Element, E: Element>(x: &[F], compute: &Compute) -> Vec<E> {
    let width = ELEMENT_TASK.min(x.len()).max(1);
    let tasks = Tasks { count: x.len().div_ceil(width), cost: x.len() };
    let write = |to: DisjointBuffer<E>| {
        compute.pool.each(tasks, |task| {
            let from = &x[task * width..x.len().min((task + 1) * width)];
            compute.set.run(Cast { from, to: &to, at: task * width });
        });
    };
    // SAFETY: the tasks cover every element.
    unsafe { filled(x.len(), write) }
}

struct Cast<'a, F, E> {
    from: &'a [F],
    to: &'a DisjointBuffer<E>,
    at: usize,
}

impl<F: Element, E: Element> Kernel for Cast<'_, F, E> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        // SAFETY: these elements of the output are this task's.
        unsafe { convert::<L, F, E>(self.from, self.to.at(self.at)) };
    }
}

/// Cosines and sines of a call's rotations: `(t, 2, half)`.
pub(super) struct Angles {
    positions: Vec<u32>,
    inv_freq: Vec<f32>,
    factor: f32,
    values: Vec<f32>,
}

impl Angles {
    pub(super) fn new(positions: &[u32], Rotary { inv_freq, factor }: Rotary<'_>, compute: &Compute) -> Self {
        let half = inv_freq.len();
        let values = by_rows(positions.len(), (2 * half, 64 * half), compute, |rows, to| {
            for row in rows {
                for (j, freq) in inv_freq.iter().enumerate() {
                    let (sin, cos) = (positions[row] as f32 * freq).sin_cos();
                    let factor = if *freq == 0.0 { 1.0 } else { factor };
                    // SAFETY: the row of the output is this task's.
                    unsafe {
                        *to.at(row * 2 * half + j) = cos * factor;
                        *to.at((row * 2 + 1) * half + j) = sin * factor;
                    }
                }
            }
        });
        Self { positions: positions.to_vec(), inv_freq: inv_freq.to_vec(), factor, values }
    }

    /// Whether these are the angles of that call.
    pub(super) fn fit(&self, positions: &[u32], rotary: Rotary<'_>) -> bool {
        self.positions == positions && Rotary { inv_freq: &self.inv_freq, factor: self.factor } == rotary
    }
}

/// Heads of `qkv (t, (query + 2 kv) dim)`, queries and keys rotated: `q, k, v (heads, t, dim)`.
pub(super) fn split_rotate<E: Element>(
    qkv: &[E],
    heads: Heads,
    angles: &Angles,
    compute: &Compute,
) -> (Vec<E>, Vec<E>, Vec<E>) {
    let (t, Heads { query, kv, dim }) = (angles.positions.len(), heads);
    let (mut k, mut v) = (Vec::new(), Vec::new());
    let block = (ELEMENT_TASK / ((query + 2 * kv) * dim).max(1)).max(1);
    let tasks = Tasks { count: t.div_ceil(block), cost: 2 * qkv.len() };
    let size = |heads: usize| heads * t * dim;
    // SAFETY: the tasks cover every row of the three.
    let q = unsafe {
        filled(size(query), |q| {
            k = filled(size(kv), |k| {
                v = filled(size(kv), |v| {
                    let to = [&q, &k, &v];
                    compute.pool.each(tasks, |task| {
                        let rows = task * block..t.min((task + 1) * block);
                        compute.set.run(SplitRotate { qkv, heads, angles, rows, to });
                    });
                });
            });
        })
    };
    (q, k, v)
}

struct SplitRotate<'a, E> {
    qkv: &'a [E],
    heads: Heads,
    angles: &'a Angles,
    rows: Range<usize>,
    to: [&'a DisjointBuffer<E>; 3],
}

impl<E: Element> Kernel for SplitRotate<'_, E> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let (t, Heads { query, kv, dim }) = (self.angles.positions.len(), self.heads);
        let [q, k, v] = self.to;
        for row in self.rows.clone() {
            let angles = &self.angles.values[row * dim / 2 * 2..][..dim / 2 * 2];
            for head in 0..query + 2 * kv {
                let from = &self.qkv[(row * (query + 2 * kv) + head) * dim..][..dim];
                // SAFETY: this row of each output is this task's.
                unsafe {
                    if head < query {
                        rotate::<L, E>(from, angles, q.at((head * t + row) * dim));
                    } else if head < query + kv {
                        rotate::<L, E>(from, angles, k.at(((head - query) * t + row) * dim));
                    } else {
                        convert::<L, E, E>(from, v.at(((head - query - kv) * t + row) * dim));
                    }
                }
            }
        }
    }
}

/// # Safety
/// `to` must be writable for `from.len()` elements, and `angles` as long.
#[inline(always)]
unsafe fn rotate<L: Lanes, E: Element>(from: &[E], angles: &[f32], to: *mut E) {
    let half = from.len() / 2;
    for at in (0..half).step_by(L::N) {
        let left = half - at;
        // SAFETY: the caller's promise; no more is touched than each half has left.
        unsafe {
            let (a, b): (L, L) =
                (load_some(from.as_ptr().add(at), left), load_some(from.as_ptr().add(half + at), left));
            let cos: L = load_some(angles.as_ptr().add(at), left);
            let sin: L = load_some(angles.as_ptr().add(half + at), left);
            store_some(to.add(at), left, a.mul(cos).sub(b.mul(sin)));
            store_some(to.add(half + at), left, b.mul(cos).add(a.mul(sin)));
        }
    }
}

/// # Safety
/// `to` must be writable for `from.len()` elements.
#[inline(always)]
pub(super) unsafe fn convert<L: Lanes, F: Element, E: Element>(from: &[F], to: *mut E) {
    for at in (0..from.len()).step_by(L::N) {
        let left = from.len() - at;
        // SAFETY: the caller's promise.
        unsafe { store_some(to.add(at), left, load_some::<L, F>(from.as_ptr().add(at), left)) };
    }
}

/// An output of `rows` rows, `(width, cost)` a row, written by `work`, which must write all of the rows it is given.
fn by_rows<E: Copy + Send>(
    rows: usize,
    (width, cost): (usize, usize),
    compute: &Compute,
    work: impl Fn(Range<usize>, &DisjointBuffer<E>) + Sync,
) -> Vec<E> {
    let block = (ELEMENT_TASK / width.max(1)).max(1);
    let tasks = Tasks { count: rows.div_ceil(block), cost: rows * cost };
    let write = |to: DisjointBuffer<E>| {
        compute.pool.each(tasks, |task| work(task * block..rows.min((task + 1) * block), &to));
    };
    // SAFETY: the tasks cover every row.
    unsafe { filled(rows * width, write) }
}
