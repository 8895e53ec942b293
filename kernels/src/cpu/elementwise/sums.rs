//! Sums and multiples of rows outside a linear layer, and the weighted rows of experts. Sums in f32, rounded once for each.

use std::ops::Range;

use super::super::compute::Compute;
use super::super::lanes::{Element, Kernel, Lanes, load_some, store_some};
use super::super::pool::DisjointBuffer;
use super::by_rows;

/// `x + y` of each element.
pub fn sum<E: Element>(x: &[E], y: &[E], compute: &Compute) -> Vec<E> {
    by_rows(x.len(), (1, 2), compute, |elements, to| {
        compute.set.run(Sum { x, y: Some(y), factor: 1.0, elements, to });
    })
}

/// `factor * x` of each element.
pub fn multiple<E: Element>(x: &[E], factor: f32, compute: &Compute) -> Vec<E> {
    by_rows(x.len(), (1, 2), compute, |elements, to| compute.set.run(Sum { x, y: None, factor, elements, to }))
}

/// `factor * x`, plus `y` if there is one.
struct Sum<'a, E> {
    x: &'a [E],
    y: Option<&'a [E]>,
    factor: f32,
    elements: Range<usize>,
    to: &'a DisjointBuffer<E>,
}

impl<E: Element> Kernel for Sum<'_, E> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let (end, factor) = (self.elements.end, L::splat(self.factor));
        for at in self.elements.step_by(L::N) {
            // SAFETY: no more is touched than the task has left, and these elements of the output are its own.
            unsafe {
                let x: L = load_some(self.x.as_ptr().add(at), end - at);
                let sum = match self.y {
                    Some(y) => x.add(load_some(y.as_ptr().add(at), end - at)),
                    None => x.mul(factor),
                };
                store_some(self.to.at(at), end - at, sum);
            }
        }
    }
}

/// `x (t, e)` with `weights[i]` times row `i` of `y` added to row `rows[i]`.
pub fn add_rows<E: Element>(x: &[E], (rows, weights): (&[u32], &[f32]), y: &[E], e: usize) -> Vec<E> {
    let mut sums = x.to_vec();
    for ((row, weight), y) in rows.iter().zip(weights).zip(y.chunks_exact(e.max(1))) {
        let to = &mut sums[*row as usize * e..][..e];
        to.iter_mut().zip(y).for_each(|(to, y)| *to = E::narrow(to.widen() + weight * y.widen()));
    }
    sums
}
