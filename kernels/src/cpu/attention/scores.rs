//! Scores of keys by their mean query. Selects nothing.

use std::ops::Range;

use super::super::compute::Compute;
use super::super::lanes::{Element, Kernel, Lanes, load_some};
use super::super::pool::{DisjointBuffer, Tasks, filled};
use super::super::tensor::{CpuTensor, cube, elements};
use crate::KernelError;

/// Keys that a task takes.
const SCORE_TASK: usize = 512;

/// `k . mean(q)` of each key, over all rows of the query heads that share its head: `(kv heads, t)`.
pub(in super::super) fn key_scores<E: Element>(
    q: &CpuTensor,
    k: &CpuTensor,
    compute: &Compute,
) -> Result<Vec<f32>, KernelError> {
    let ((query, rows, dim), (kv, keys, key_dim)) = (cube("key_scores", q)?, cube("key_scores", k)?);
    if dim != key_dim || rows == 0 || kv == 0 || query == 0 || !query.is_multiple_of(kv) {
        let expected = "q (a multiple of kv heads, at least 1, dim), k (kv heads, t, dim)";
        return Err(KernelError::shape("key_scores", expected, &[q.dims(), k.dims()]));
    }
    let (q, k) = (elements::<E>("key_scores", q)?, elements::<E>("key_scores", k)?);
    let group = query / kv * rows;
    let means: Vec<f32> = (0..kv).flat_map(|head| mean(&q[head * group * dim..][..group * dim], dim)).collect();
    let blocks = keys.div_ceil(SCORE_TASK);
    let tasks = Tasks { count: kv * blocks, cost: kv * keys * dim };
    let write = |to: DisjointBuffer<f32>| {
        compute.pool.each(tasks, |task| {
            let (head, first) = (task / blocks, task % blocks * SCORE_TASK);
            let range = head * keys + first..head * keys + keys.min(first + SCORE_TASK);
            compute.set.run(Dots { mean: &means[head * dim..][..dim], k, range, to: &to });
        });
    };
    // SAFETY: the tasks cover every key of every head.
    Ok(unsafe { filled(kv * keys, write) })
}

/// Mean of rows of `dim`.
pub(in super::super) fn mean<E: Element>(rows: &[E], dim: usize) -> Vec<f32> {
    let mut mean = vec![0.0; dim];
    for row in rows.chunks_exact(dim) {
        mean.iter_mut().zip(row).for_each(|(sum, x)| *sum += x.widen());
    }
    let count = (rows.len() / dim) as f32;
    mean.iter_mut().for_each(|sum| *sum /= count);
    mean
}

struct Dots<'a, E> {
    mean: &'a [f32],
    k: &'a [E],
    range: Range<usize>,
    to: &'a DisjointBuffer<f32>,
}

impl<E: Element> Kernel for Dots<'_, E> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let dim = self.mean.len();
        for row in self.range {
            let key = &self.k[row * dim..][..dim];
            let mut sum = L::zero();
            for at in (0..dim).step_by(L::N) {
                // SAFETY: no more is read than each row has left.
                let (a, b): (L, L) = unsafe {
                    (load_some(self.mean.as_ptr().add(at), dim - at), load_some(key.as_ptr().add(at), dim - at))
                };
                sum = a.mul_add(b, sum);
            }
            // SAFETY: this element is the task's.
            unsafe { *self.to.at(row) = sum.sum() };
        }
    }
}
