//! One block of keys: scores, weights, weighted values, and the merge with the blocks before.

use std::ops::Range;

use super::super::cache::BLOCK as KEYS;
use super::super::lanes::{Element, Lanes, PANEL, store_some};
use super::super::tile::{Extent, Left, Right, Sums, product};
use super::{Attention, Piece, Results};

/// Rows of a run where the mask cuts a block: those of a register tile.
const RUN: usize = 6;
/// Stands for minus infinity as a maximum, where a difference of two must be a number.
const LOWEST: f32 = -1e30;

/// What one thread works in. Vectors of rows are padded so that whole lanes can be read.
pub(super) struct Scratch {
    q: Vec<f32>,
    /// Keys that each row sees.
    visible: Vec<usize>,
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
            visible: Vec::new(),
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

    /// Takes up a piece; returns how many keys its rows see at most.
    pub fn start<E: Element>(&mut self, call: &Attention<'_, E>, piece: &Piece) -> usize {
        let (dim, queries) = (call.shape.heads.dim, call.shape.queries);
        self.q.clear();
        self.q.extend(call.q[call.first_row(piece) * dim..][..piece.rows.len() * dim].iter().map(|x| x.widen()));
        self.visible.clear();
        self.visible.extend(piece.rows.clone().map(|row| call.shape.visible(row % queries)));
        self.output.fill(0.0);
        self.max.fill(LOWEST);
        self.sum.fill(0.0);
        self.block_max.fill(LOWEST);
        self.block_sum.fill(0.0);
        self.visible.iter().copied().max().unwrap_or(0)
    }

    /// Runs of rows, with the keys of the block that any of them sees. Where the mask cuts the block, runs are short, and
    /// most of what it hides is never computed.
    #[inline(always)]
    fn runs(&self, block: usize) -> impl Iterator<Item = (Range<usize>, usize)> {
        let (rows, seen) = (self.visible.len(), move |visible: usize| visible.saturating_sub(block * KEYS).min(KEYS));
        // Within a head later rows see more, and heads see alike.
        let even = seen(self.visible[0]) == seen(self.visible[rows - 1]);
        let step = if even { rows } else { RUN };
        (0..rows).step_by(step).map(move |from| {
            let to = rows.min(from + step);
            let most = if even { to - 1..to } else { from..to };
            (from..to, self.visible[most].iter().map(|visible| seen(*visible)).max().unwrap_or(0))
        })
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

    /// Scores one block and turns the scores into weights, with each row's maximum and sum.
    #[inline(always)]
    pub(super) fn weigh<L: Lanes>(&self, piece: &Piece, block: usize, scratch: &mut Scratch) {
        let (dim, scores) = (self.shape.heads.dim, scratch.scores.as_mut_ptr());
        let (maxima, sums) = (scratch.block_max.as_mut_ptr(), scratch.block_sum.as_mut_ptr());
        let keys = &self.cache.heads[piece.head].keys;
        // SAFETY: the queries of the piece are in `q`, the panels of the seen keys in the cache, and scores and maxima have
        // room for all rows. The maxima come before the weights, so that rows overlap in the processor.
        unsafe {
            for (rows, seen) in scratch.runs(block) {
                let scores = scores.add(rows.start * KEYS);
                if seen > 0 {
                    let extent = Extent { rows: rows.len(), k: dim, panels: seen.div_ceil(PANEL) };
                    let left = Left { data: scratch.q.as_ptr().add(rows.start * dim), row: dim };
                    let right = Right { data: keys.as_ptr().add(block * KEYS * dim), panel: dim * PANEL, row: PANEL };
                    product::<L, E, _>(extent, left, right, &Raw { output: scores, stride: KEYS });
                }
                for (i, row) in rows.clone().enumerate() {
                    let sees = scratch.visible[row].saturating_sub(block * KEYS).min(KEYS);
                    *maxima.add(row) = largest::<L>(scores.add(i * KEYS), sees, seen);
                }
            }
            for (rows, seen) in scratch.runs(block) {
                for row in rows {
                    let sum = weights::<L>(scores.add(row * KEYS), seen, *maxima.add(row), self.scale());
                    *sums.add(row) = sum;
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
        scratch: &Scratch,
        sums: impl Fn(usize) -> S,
    ) {
        let stride = self.cache.stride();
        let values = &self.cache.heads[piece.head].values;
        for (rows, seen) in scratch.runs(block) {
            let extent = Extent { rows: rows.len(), k: seen, panels: stride / PANEL };
            // SAFETY: weights of these rows, and values of the seen keys, are there.
            unsafe {
                let left = Left { data: scratch.scores.as_ptr().add(rows.start * KEYS), row: KEYS };
                let data = values.as_ptr().add(block * KEYS * stride);
                product::<L, E, S>(extent, left, Right { data, panel: KEYS * PANEL, row: PANEL }, &sums(rows.start));
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

/// Vectors of scores under way at once.
const AT_ONCE: usize = 4;

/// The largest of a row of scores of which the first `sees` count; the others, up to those that [`weights`] reads, become
/// minus infinity.
///
/// # Safety
/// `scores` must hold [`KEYS`] elements.
#[inline(always)]
unsafe fn largest<L: Lanes>(scores: *mut f32, sees: usize, seen: usize) -> f32 {
    let width = seen.next_multiple_of(AT_ONCE * L::N);
    let mut max = [L::splat(LOWEST); AT_ONCE];
    // SAFETY: `width` is at most KEYS, a multiple of every vector's AT_ONCE lanes.
    unsafe {
        for at in sees..width {
            *scores.add(at) = f32::NEG_INFINITY;
        }
        for at in (0..width).step_by(AT_ONCE * L::N) {
            for (v, max) in max.iter_mut().enumerate() {
                *max = max.max(L::load(scores.add(at + v * L::N)));
            }
        }
    }
    max[0].max(max[1]).max(max[2].max(max[3])).largest()
}

/// Turns a row of scores into weights `2^((s - max) scale)`; returns their sum.
///
/// # Safety
/// As [`largest`], which must have gone before.
#[inline(always)]
unsafe fn weights<L: Lanes>(scores: *mut f32, seen: usize, max: f32, scale: f32) -> f32 {
    let (factor, offset) = (L::splat(scale), L::splat(-max * scale));
    let mut sum = [L::zero(); AT_ONCE];
    for at in (0..seen).step_by(AT_ONCE * L::N) {
        for (v, sum) in sum.iter_mut().enumerate() {
            // SAFETY: as in `largest`.
            unsafe {
                let score = scores.add(at + v * L::N);
                let weight = L::load(score).mul_add(factor, offset).exp2();
                weight.store(score);
                *sum = sum.add(weight);
            }
        }
    }
    sum[0].add(sum[1]).add(sum[2].add(sum[3])).sum()
}

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
