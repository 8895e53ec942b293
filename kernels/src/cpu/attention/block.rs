//! One block of keys: scores, weights, weighted values, and the merge with the blocks before.

use std::ops::Range;

use super::super::lanes::{Element, Lanes, PANEL, store_some};
use super::super::tile::{Extent, Left, Right, Sums, product};
use super::{Attention, KEYS, Piece, Results};

/// Rows of a run where the mask cuts a block: those of a register tile.
const RUN: usize = 6;
/// Stands for minus infinity as a maximum, where a difference of two must be a number.
const LOWEST: f32 = -1e30;

/// What one thread works in. Vectors of rows are padded so that whole lanes can be read.
pub(super) struct Scratch {
    pub q: Vec<f32>,
    /// Scores, then weights: `(rows, KEYS)`.
    pub scores: Vec<f32>,
    /// Sum of weighted values so far, `(rows, stride)`, relative to `max`.
    pub output: Vec<f32>,
    pub max: Vec<f32>,
    pub sum: Vec<f32>,
    pub block_max: Vec<f32>,
    pub block_sum: Vec<f32>,
    /// What the sums so far, and the block's, are multiplied by.
    pub keep: Vec<f32>,
    pub take: Vec<f32>,
}

impl Scratch {
    pub fn new(rows: usize, stride: usize) -> Self {
        let padded = rows.next_multiple_of(PANEL);
        let each = || vec![0.0; padded];
        Self {
            q: Vec::new(),
            scores: vec![0.0; rows * KEYS],
            output: vec![0.0; rows * stride],
            max: each(),
            sum: each(),
            block_max: each(),
            block_sum: each(),
            keep: each(),
            take: each(),
        }
    }

    pub fn reset(&mut self) {
        self.output.fill(0.0);
        self.max.fill(LOWEST);
        self.sum.fill(0.0);
        self.block_max.fill(LOWEST);
        self.block_sum.fill(0.0);
    }

    /// Takes a block's maxima and sums into the running ones, and leaves the factors for the outputs.
    #[inline(always)]
    pub fn absorb<L: Lanes>(&mut self, scale: f32) {
        for at in (0..self.max.len()).step_by(L::N) {
            // SAFETY: all of these are equally long, in whole vectors.
            unsafe {
                let (old, block) = (L::load(self.max.as_ptr().add(at)), L::load(self.block_max.as_ptr().add(at)));
                let (new, scale) = (old.max(block), L::splat(scale));
                let keep = old.sub(new).mul(scale).exp2();
                let take = block.sub(new).mul(scale).exp2();
                let sum = L::load(self.sum.as_ptr().add(at));
                let block_sum = L::load(self.block_sum.as_ptr().add(at));
                sum.mul_add(keep, block_sum.mul(take)).store(self.sum.as_mut_ptr().add(at));
                new.store(self.max.as_mut_ptr().add(at));
                keep.store(self.keep.as_mut_ptr().add(at));
                take.store(self.take.as_mut_ptr().add(at));
            }
        }
    }
}

impl<E: Element> Attention<'_, E> {
    /// `1 / sqrt(dim)`, for powers of two.
    pub(super) fn scale(&self) -> f32 {
        std::f32::consts::LOG2_E / (self.shape.heads.dim as f32).sqrt()
    }

    /// Runs of rows of `piece`, counted from its first, with the keys of the block that any of them sees. Where the mask
    /// cuts the block, runs are short, and most of what it hides is never computed.
    fn segments(&self, piece: &Piece, block: usize) -> impl Iterator<Item = (Range<usize>, usize)> {
        let seen = move |row: usize| self.visible(row).saturating_sub(block * KEYS).min(KEYS);
        let (start, rows) = (piece.rows.start, piece.rows.len());
        // Within a head later rows see more, and heads see alike.
        let even = seen(start) == seen(piece.rows.end - 1);
        let step = if even { rows } else { RUN };
        (0..rows).step_by(step).map(move |from| {
            let to = rows.min(from + step);
            (from..to, (from..to).map(|row| seen(start + row)).max().unwrap_or(0))
        })
    }

    /// Scores one block and turns the scores into weights, with each row's maximum and sum.
    #[inline(always)]
    pub(super) fn weigh<L: Lanes>(&self, piece: &Piece, block: usize, scratch: &mut Scratch) {
        let dim = self.shape.heads.dim;
        let keys = &self.cache.heads[piece.head].keys;
        for (rows, seen) in self.segments(piece, block) {
            let extent = Extent { rows: rows.len(), k: dim, panels: seen.div_ceil(PANEL) };
            // SAFETY: the queries of the piece are in `q`, the panels of the seen keys in the cache, and the scores take
            // KEYS columns for each row.
            unsafe {
                let scores = scratch.scores.as_mut_ptr().add(rows.start * KEYS);
                if seen > 0 {
                    let left = Left { data: scratch.q.as_ptr().add(rows.start * dim), row: dim };
                    let data = keys.as_ptr().add(block * KEYS * dim);
                    let right = Right { data, panel: dim * PANEL, row: PANEL };
                    product::<L, E, _>(extent, left, right, &Scores(scores));
                }
                for row in rows.clone() {
                    let sees = self.visible(piece.rows.start + row).saturating_sub(block * KEYS).min(KEYS);
                    let scores = scores.add((row - rows.start) * KEYS);
                    let (max, sum) = softmax::<L>(scores, sees, seen, self.scale());
                    (scratch.block_max[row], scratch.block_sum[row]) = (max, sum);
                }
            }
        }
    }

    /// Multiplies the block's weights with its values.
    #[inline(always)]
    pub(super) fn gather<L: Lanes, S: Sums>(
        &self,
        piece: &Piece,
        block: usize,
        scores: &[f32],
        sums: impl Fn(usize) -> S,
    ) {
        let stride = self.cache.stride();
        let values = &self.cache.heads[piece.head].values;
        for (rows, seen) in self.segments(piece, block) {
            let extent = Extent { rows: rows.len(), k: seen, panels: stride / PANEL };
            // SAFETY: weights of these rows, and values of the seen keys, are there.
            unsafe {
                let left = Left { data: scores.as_ptr().add(rows.start * KEYS), row: KEYS };
                let right = Right { data: values.as_ptr().add(block * KEYS * stride), panel: PANEL, row: stride };
                product::<L, E, S>(extent, left, right, &sums(rows.start));
            }
        }
    }

    /// Normalises and writes a piece.
    #[inline(always)]
    pub(super) fn finish<L: Lanes>(&self, piece: &Piece, scratch: &Scratch, result: &Results) {
        let (dim, stride, first) = (self.shape.heads.dim, self.cache.stride(), self.first_row(piece));
        for row in 0..piece.rows.len() {
            let (max, sum) = (scratch.max[row], scratch.sum[row]);
            let (inverse, lse) = match sum {
                0.0 => (0.0, f32::NEG_INFINITY),
                _ => (1.0 / sum, max / (dim as f32).sqrt() + sum.ln()),
            };
            // SAFETY: this piece's rows of the results are this task's alone.
            unsafe {
                *result.lse.at(first + row) = lse;
                for d in (0..dim).step_by(L::N) {
                    let y = L::load(scratch.output.as_ptr().add(row * stride + d)).mul(L::splat(inverse));
                    store_some(result.output.at((first + row) * dim + d), dim - d, y);
                }
            }
        }
    }
}

/// The maximum of a row of scores of which the first `sees` count, the scores as weights `2^((s - max) scale)`, and their
/// sum. Scores from `sees` to `seen` become 0.
///
/// # Safety
/// `scores` must hold [`KEYS`] elements.
#[inline(always)]
unsafe fn softmax<L: Lanes>(scores: *mut f32, sees: usize, seen: usize, scale: f32) -> (f32, f32) {
    const AT_ONCE: usize = 4;
    let width = seen.next_multiple_of(AT_ONCE * L::N);
    // SAFETY: `width` is at most KEYS, a multiple of every vector's AT_ONCE lanes.
    unsafe {
        for at in sees..width {
            *scores.add(at) = f32::NEG_INFINITY;
        }
        let mut max = [L::splat(LOWEST); AT_ONCE];
        for at in (0..width).step_by(AT_ONCE * L::N) {
            for (v, max) in max.iter_mut().enumerate() {
                *max = max.max(L::load(scores.add(at + v * L::N)));
            }
        }
        let max = max[0].max(max[1]).max(max[2].max(max[3])).largest();
        let (factor, offset) = (L::splat(scale), L::splat(-max * scale));
        let mut sum = [L::zero(); AT_ONCE];
        for at in (0..width).step_by(AT_ONCE * L::N) {
            for (v, sum) in sum.iter_mut().enumerate() {
                let score = scores.add(at + v * L::N);
                let weight = L::load(score).mul_add(factor, offset).exp2();
                weight.store(score);
                *sum = sum.add(weight);
            }
        }
        (max, sum[0].add(sum[1]).add(sum[2].add(sum[3])).sum())
    }
}

/// # Safety
/// `to` must be a whole vector of the output.
#[inline(always)]
pub(super) unsafe fn merge<L: Lanes>(to: *mut f32, block: L, keep: L, take: L) {
    // SAFETY: the caller's promise.
    unsafe { L::load(to).mul_add(keep, block.mul(take)).store(to) }
}

/// Scores, stored as they are.
struct Scores(*mut f32);

impl Sums for Scores {
    #[inline(always)]
    unsafe fn finish<L: Lanes, const R: usize, const V: usize>(&self, row: usize, column: usize, sums: [[L; V]; R]) {
        // SAFETY: the caller's promise, rows being KEYS apart.
        unsafe { Raw { output: self.0, stride: KEYS }.finish(row, column, sums) }
    }
}

/// Weighted values of a block, stored as they are.
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
