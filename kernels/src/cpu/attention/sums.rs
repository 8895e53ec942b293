//! Where the products of weights and values go: as they are, or merged into the sums so far.

use super::super::lanes::{Lanes, Sums};

/// # Safety
/// `to` must be a whole vector of the output.
#[inline(always)]
pub(super) unsafe fn merge<L: Lanes>(to: *mut f32, block: L, keep: L, take: L) {
    // SAFETY: the caller's promise.
    unsafe { L::load(to).mul_add(keep, block.mul(take)).store(to) }
}

/// Sums, stored as they are.
pub(super) struct Raw {
    pub output: *mut f32,
    pub stride: usize,
}

impl Sums for Raw {
    #[inline(always)]
    unsafe fn finish<L: Lanes, const R: usize, const V: usize>(&self, row: usize, column: usize, sums: [[L; V]; R]) {
        for (r, sums) in sums.into_iter().enumerate() {
            for (v, sum) in sums.into_iter().enumerate() {
                // SAFETY: the caller's promise.
                unsafe { sum.store(self.output.add((row + r) * self.stride + column + v * L::N)) };
            }
        }
    }
}

/// Weighted values of a block, merged into the sums so far.
pub(super) struct Merged<'a> {
    pub output: *mut f32,
    pub stride: usize,
    pub keep: &'a [f32],
    pub take: &'a [f32],
}

impl Sums for Merged<'_> {
    #[inline(always)]
    unsafe fn finish<L: Lanes, const R: usize, const V: usize>(&self, row: usize, column: usize, sums: [[L; V]; R]) {
        for (r, sums) in sums.into_iter().enumerate() {
            let (keep, take) = (L::splat(self.keep[row + r]), L::splat(self.take[row + r]));
            for (v, sum) in sums.into_iter().enumerate() {
                // SAFETY: the caller's promise.
                unsafe { merge(self.output.add((row + r) * self.stride + column + v * L::N), sum, keep, take) };
            }
        }
    }
}
