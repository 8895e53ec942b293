//! Gated products by activations other than silu. Sums in f32, whatever is stored.

use std::ops::Range;

use super::super::compute::Compute;
use super::super::lanes::{Element, Kernel, Lanes, load_some, store_some};
use super::super::pool::DisjointBuffer;
use super::by_rows;
use crate::Activation;

/// The activation of `gate_up (t, 2 f)`: `(t, f)`.
pub fn gated<E: Element>(gate_up: &[E], f: usize, activation: Activation, compute: &Compute) -> Vec<E> {
    let rows = gate_up.len() / (2 * f).max(1);
    by_rows(rows, (f, 4 * f), compute, |rows, to| compute.set.run(Gated { gate_up, f, activation, rows, to }))
}

struct Gated<'a, E> {
    gate_up: &'a [E],
    f: usize,
    activation: Activation,
    rows: Range<usize>,
    to: &'a DisjointBuffer<E>,
}

impl<E: Element> Kernel for Gated<'_, E> {
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
                    store_some(self.to.at(row * f + at), f - at, bent(gate, up, self.activation));
                }
            }
        }
    }
}

#[inline(always)]
fn bent<L: Lanes>(gate: L, up: L, activation: Activation) -> L {
    match activation {
        Activation::Silu => gate.mul(sigmoid(gate)).mul(up),
        Activation::GeluTanh => {
            // (1 + tanh x) / 2 is the sigmoid of 2 x.
            let twice = L::splat(2.0 * (2.0 / std::f32::consts::PI).sqrt());
            let cubic = gate.mul(gate).mul(gate).mul_add(L::splat(0.044_715), gate);
            gate.mul(sigmoid(cubic.mul(twice))).mul(up)
        }
        Activation::ClampedSilu { limit, alpha } => {
            let limit = L::splat(limit);
            let gate = least(gate, limit);
            let up = L::zero().sub(limit).max(least(up, limit));
            gate.mul(sigmoid(gate.mul(L::splat(alpha)))).mul(up.add(L::splat(1.0)))
        }
    }
}

#[inline(always)]
fn least<L: Lanes>(a: L, b: L) -> L {
    L::zero().sub(L::zero().sub(a).max(L::zero().sub(b)))
}

#[inline(always)]
fn sigmoid<L: Lanes>(x: L) -> L {
    // 2^127 stands for all larger powers: the quotient is nothing beside any f32.
    let power = L::splat(-127.0).max(x.mul(L::splat(std::f32::consts::LOG2_E)));
    L::splat(1.0).div(L::splat(1.0).add(L::zero().sub(power).exp2()))
}
