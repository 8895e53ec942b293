//! Some query rows over one block of keys: scores, weights, weighted values, and the merge with the blocks before. Knows no call.

use std::ops::Range;

use half::bf16;

use super::super::lanes::{
    Element, Extent, Lanes, LeftOperand, Loaded, PANEL, RightOperand, Sums, product, store_some,
};
use super::super::pool::DisjointBuffer;
use super::cache::{BLOCK_KEYS, Head};
use super::eight::turn_query;
use super::integers::{BlockValues, IntegerRows, ScaledKeys};
use super::sums::{Merged, Raw};

/// Query rows that share a block of keys.
pub(super) const TILE_ROWS: usize = 96;

/// Where rows' results go.
pub(super) struct Results {
    pub output: DisjointBuffer<f32>,
    pub lse: DisjointBuffer<f32>,
    /// Highest scaled score of each row, where it is wanted.
    pub maxima: Option<DisjointBuffer<f32>>,
}

impl<E: Loaded> Head<E> {
    /// The block that begins at `token`, a multiple of [`BLOCK_KEYS`], taken for keys `first..`.
    pub(super) fn at(&self, token: usize, first: usize, sizes: Sizes) -> Block<E> {
        let keys = self.keys.as_ptr().wrapping_add(token * sizes.dim.next_multiple_of(E::BESIDE));
        let scales = [0, 1].map(|which: usize| self.scales[which].as_ptr().wrapping_add(token));
        Block { keys, values: self.values.as_ptr().wrapping_add(token * sizes.stride), scales, first }
    }
}

/// Rows of a run where the mask cuts a block: those of a register tile.
const RUN: usize = 6;
/// Stands for minus infinity as a maximum, where a difference of two must be a number.
const LOWEST: f32 = -1e30;

/// Keys and values of one block as the cache lays them out.
pub(super) struct Block<E> {
    /// Panels of keys.
    pub keys: *const E,
    /// Panels of values, [`BLOCK_KEYS`] rows each.
    pub values: *const E,
    /// Scales of its keys and of its values, where these are [`Loaded::SCALED`].
    pub scales: [*const bf16; 2],
    /// Index of the block's first key among those that [`Tile`] counts.
    pub first: usize,
}

/// Sizes that the inner loops share.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub dim: usize,
    /// `dim`, padded to whole panels.
    pub stride: usize,
    /// Bound of the scaled scores, if they have one.
    pub cap: Option<f32>,
}

/// What a query row may see: keys before `end`, less those hidden.
pub(super) struct Visibility {
    pub end: usize,
    pub hidden: Range<usize>,
}

/// Blocks that some row of a tile sees: the first `head`, and `tail`.
pub(super) struct LiveBlocks {
    head: usize,
    tail: Range<usize>,
}

impl LiveBlocks {
    pub(super) fn len(&self) -> usize {
        self.head + self.tail.len()
    }

    pub(super) fn at(&self, index: usize) -> usize {
        if index < self.head { index } else { self.tail.start + index - self.head }
    }
}

/// Some query rows and the softmax over what they have seen so far. Vectors of rows are padded so that whole lanes can be read.
pub(super) struct Tile {
    q: Vec<f32>,
    /// The same, where codes are multiplied as integers.
    integers: IntegerRows,
    /// What each row sees.
    sights: Vec<Visibility>,
    /// Keys hidden to any row, and whatever lies between.
    hidden: Range<usize>,
    /// Keys that no row sees, ascending.
    holes: Vec<Range<usize>>,
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

impl Tile {
    pub(super) fn new(rows: usize, stride: usize) -> Self {
        let padded = rows.next_multiple_of(PANEL);
        let each = || vec![0.0; padded];
        Self {
            q: Vec::new(),
            integers: IntegerRows::default(),
            sights: Vec::new(),
            hidden: 0..0,
            holes: Vec::new(),
            output: vec![0.0; rows * stride],
            max: each(),
            sum: each(),
            block_max: each(),
            block_sum: each(),
            keep: each(),
            take: each(),
        }
    }

    /// Room for the scores, then weights, of a block: `(rows, BLOCK_KEYS)`.
    pub(super) fn scores(rows: usize) -> Vec<f32> {
        vec![0.0; rows * BLOCK_KEYS]
    }

    /// Takes up rows `q (rows, dim)`, which may see every key.
    pub(super) fn start<E: Element>(&mut self, q: &[E], sights: impl Iterator<Item = Visibility>) {
        self.q.clear();
        self.q.extend(q.iter().map(|x| x.widen()));
        self.sights.clear();
        self.sights.extend(sights);
        self.holes.clear();
        let holes = || self.sights.iter().map(|sight| &sight.hidden).filter(|hidden| !hidden.is_empty());
        let start = holes().map(|hidden| hidden.start).min().unwrap_or(0);
        self.hidden = start..holes().map(|hidden| hidden.end).max().unwrap_or(0);
        self.output.fill(0.0);
        self.max.fill(LOWEST);
        self.sum.fill(0.0);
        self.block_max.fill(LOWEST);
        self.block_sum.fill(0.0);
    }

    /// Makes the queries ready for codes: turned as keys in 8 bits are turned, and as integers where vectors `L` multiply these.
    #[inline(always)]
    pub(super) fn turn<L: Lanes>(&mut self, sizes: Sizes) {
        self.q.chunks_exact_mut(sizes.dim).for_each(turn_query);
        self.integers.take::<L>(&self.q, sizes.dim);
    }

    /// Hides keys from all rows, ascending.
    pub(super) fn hide(&mut self, holes: &[Range<usize>]) {
        self.holes.extend_from_slice(holes);
    }

    /// Those of the holes that reach into a block's keys.
    #[inline(always)]
    fn holes_from(&self, first: usize) -> impl Iterator<Item = &Range<usize>> {
        self.holes[self.holes.partition_point(|hole| hole.end <= first)..]
            .iter()
            .take_while(move |hole| hole.start < first + BLOCK_KEYS)
    }

    pub(super) fn rows(&self) -> usize {
        self.sights.len()
    }

    /// One past the last key that any row sees.
    pub(super) fn end(&self) -> usize {
        self.sights.iter().map(|sight| sight.end).max().unwrap_or(0)
    }

    /// Blocks that some row sees.
    pub(super) fn live(&self) -> LiveBlocks {
        let (mut start, mut end) = (0, usize::MAX);
        for Visibility { end: seen, hidden } in &self.sights {
            start = start.max(hidden.start);
            if hidden.end < *seen {
                end = end.min(hidden.end);
            }
        }
        let blocks = self.end().div_ceil(BLOCK_KEYS);
        let head = start.div_ceil(BLOCK_KEYS).min(blocks);
        LiveBlocks { head, tail: (end / BLOCK_KEYS).max(head)..blocks.max(head) }
    }

    /// Keys of a block that row `row` sees, up to the last.
    #[inline(always)]
    pub(super) fn seen(&self, row: usize, first: usize) -> usize {
        self.sights[row].end.saturating_sub(first).min(BLOCK_KEYS)
    }

    /// Runs of rows, with the keys of the block, up to the last, that any of them sees. Where the mask cuts the block,
    /// runs are short, and most of what it hides is never computed.
    #[inline(always)]
    fn runs(&self, first: usize) -> impl Iterator<Item = (Range<usize>, usize)> {
        let rows = self.sights.len();
        let whole = self.hidden.end <= first || first + BLOCK_KEYS <= self.hidden.start;
        // Within a head later rows see more, and heads see alike.
        let even = whole && self.seen(0, first) == self.seen(rows - 1, first);
        let step = if even { rows } else { RUN };
        let of_row = move |row: usize| {
            let (seen, hidden) = (self.seen(row, first), &self.sights[row].hidden);
            if hidden.start <= first && first + seen <= hidden.end { 0 } else { seen }
        };
        (0..rows).step_by(step).map(move |from| {
            let to = rows.min(from + step);
            let most = if even { to - 1..to } else { from..to };
            (from..to, most.map(of_row).max().unwrap_or(0))
        })
    }

    /// Takes a block's maxima and sums into the running ones, and leaves the factors for the outputs.
    #[inline(always)]
    pub(super) fn absorb<L: Lanes>(&mut self, sizes: Sizes) {
        for at in (0..self.max.len()).step_by(L::N) {
            // SAFETY: all of these are equally long, in whole vectors.
            unsafe {
                let (old, block) = (L::load(self.max.as_ptr().add(at)), L::load(self.block_max.as_ptr().add(at)));
                let (new, scale) = (old.max(block), L::splat(sizes.scale()));
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

    /// Scores one block and turns the scores into weights, with each row's maximum and sum; where values have scales, weights are
    /// multiplied with them afterwards.
    ///
    /// # Safety
    /// The block must hold the panels of the keys seen, and `scores` have room for the rows.
    #[inline(always)]
    pub unsafe fn weigh<L: Lanes, E: Loaded>(&mut self, sizes: Sizes, block: &Block<E>, scores: &mut [f32]) {
        let (first, scores) = (block.first, scores.as_mut_ptr());
        let (maxima, sums) = (self.block_max.as_mut_ptr(), self.block_sum.as_mut_ptr());
        // SAFETY: the queries of the rows are in `q`, maxima and sums have room for all rows; the rest is the caller's promise.
        // The maxima come before the weights, so that rows overlap in the processor.
        unsafe {
            for (rows, seen) in self.runs(first) {
                let scores = scores.add(rows.start * BLOCK_KEYS);
                if seen > 0 {
                    self.score::<L, E>(sizes, block, (rows.clone(), seen), scores);
                    if let Some(cap) = sizes.raw_cap() {
                        for row in 0..rows.len() {
                            bound::<L>(scores.add(row * BLOCK_KEYS), seen, cap);
                        }
                    }
                }
                for (i, row) in rows.clone().enumerate() {
                    let scores = scores.add(i * BLOCK_KEYS);
                    for hidden in self.holes_from(first).chain([&self.sights[row].hidden]) {
                        for key in hidden.start.max(first)..hidden.end.min(first + seen) {
                            *scores.add(key - first) = f32::NEG_INFINITY;
                        }
                    }
                    *maxima.add(row) = largest::<L>(scores, self.seen(row, first).min(seen), seen);
                }
            }
            // Out of the tile while its masks are read.
            let mut integers = std::mem::take(&mut self.integers);
            for (rows, seen) in self.runs(first) {
                for row in rows {
                    let scores = scores.add(row * BLOCK_KEYS);
                    *sums.add(row) = weights::<L>(scores, seen, *maxima.add(row), sizes.scale());
                    if E::SCALED {
                        scale_keys::<L>(scores, seen, block.scales[1]);
                        if integers.taken() {
                            integers.take_weights::<L>(row, scores, seen);
                        }
                    }
                }
            }
            self.integers = integers;
        }
    }

    /// Scores of some rows, not scaled yet, with the first `seen` keys of a block.
    ///
    /// # Safety
    /// As [`Tile::weigh`]; `scores` are those of the rows.
    #[inline(always)]
    unsafe fn score<L: Lanes, E: Loaded>(
        &self,
        sizes: Sizes,
        block: &Block<E>,
        (rows, seen): (Range<usize>, usize),
        scores: *mut f32,
    ) {
        let (dim, panels) = (sizes.dim, seen.div_ceil(PANEL));
        // SAFETY: the queries of the rows are there; the rest is the caller's promise. What is scaled are codes.
        unsafe {
            if E::SCALED && self.integers.taken() {
                let keys = ScaledKeys { codes: block.keys.cast(), scales: block.scales[0], panels };
                return self.integers.score(rows, keys, scores);
            }
            let extent = Extent { rows: rows.len(), k: dim, panels };
            let left = LeftOperand { data: self.q.as_ptr().add(rows.start * dim), row: dim };
            let right = RightOperand { data: block.keys, panel: dim.next_multiple_of(E::BESIDE) * PANEL, row: PANEL };
            product::<L, E, _>(extent, left, right, &Raw { output: scores, stride: BLOCK_KEYS });
            if E::SCALED {
                for row in 0..rows.len() {
                    scale_keys::<L>(scores.add(row * BLOCK_KEYS), seen, block.scales[0]);
                }
            }
        }
    }

    /// Multiplies the block's weights with its values.
    ///
    /// # Safety
    /// As [`Tile::weigh`], which must have gone before; `sums(row)` must have room for the rows from there on.
    #[inline(always)]
    pub unsafe fn gather<L: Lanes, E: Loaded, S: Sums>(
        &self,
        sizes: Sizes,
        block: &Block<E>,
        scores: &[f32],
        sums: impl Fn(usize) -> S,
    ) {
        for (rows, seen) in self.runs(block.first) {
            let panels = sizes.stride / PANEL;
            let extent = Extent { rows: rows.len(), k: seen, panels };
            // SAFETY: weights of these rows, and values of the seen keys, are there. What is scaled are codes.
            unsafe {
                if E::SCALED && self.integers.taken() {
                    let values = BlockValues { codes: block.values.cast(), seen, panels };
                    self.integers.gather::<L, S>(rows.clone(), values, &sums(rows.start));
                    continue;
                }
                let left = LeftOperand { data: scores.as_ptr().add(rows.start * BLOCK_KEYS), row: BLOCK_KEYS };
                let right = RightOperand { data: block.values, panel: BLOCK_KEYS * PANEL, row: PANEL };
                product::<L, E, S>(extent, left, right, &sums(rows.start));
            }
        }
    }

    /// All of one block: scores, weights, and the values merged into the sums so far.
    ///
    /// # Safety
    /// As [`Tile::weigh`].
    #[inline(always)]
    pub unsafe fn attend<L: Lanes, E: Loaded>(&mut self, sizes: Sizes, block: &Block<E>, scores: &mut [f32]) {
        // SAFETY: the caller's promise; the outputs are the tile's rows.
        unsafe {
            self.weigh::<L, E>(sizes, block, scores);
            self.absorb::<L>(sizes);
            let output = self.output.as_mut_ptr();
            self.gather::<L, E, _>(sizes, block, scores, |row| Merged {
                output: output.add(row * sizes.stride),
                stride: sizes.stride,
                keep: &self.keep[row..],
                take: &self.take[row..],
            });
        }
    }

    /// Normalises and writes the rows as `first..` of the results, which must be nobody else's.
    #[inline(always)]
    pub(super) fn finish<L: Lanes>(&self, sizes: Sizes, first: usize, result: &Results) {
        let Sizes { dim, stride, .. } = sizes;
        for row in 0..self.rows() {
            let (max, sum) = (self.max[row], self.sum[row]);
            let natural = max / (dim as f32).sqrt();
            let (inverse, lse) = match sum {
                0.0 => (0.0, f32::NEG_INFINITY),
                _ => (1.0 / sum, natural + sum.ln()),
            };
            // SAFETY: these rows of the results are this task's alone.
            unsafe {
                *result.lse.at(first + row) = lse;
                if let Some(maxima) = &result.maxima {
                    *maxima.at(first + row) = natural;
                }
                for d in (0..dim).step_by(L::N) {
                    let y = L::load(self.output.as_ptr().add(row * stride + d)).mul(L::splat(inverse));
                    store_some(result.output.at((first + row) * dim + d), dim - d, y);
                }
            }
        }
    }
}

impl Sizes {
    /// `1 / sqrt(dim)`, for powers of two.
    #[inline(always)]
    pub(super) fn scale(&self) -> f32 {
        std::f32::consts::LOG2_E / (self.dim as f32).sqrt()
    }

    /// The bound of scores that are not scaled yet.
    #[inline(always)]
    fn raw_cap(&self) -> Option<f32> {
        self.cap.map(|cap| cap * (self.dim as f32).sqrt())
    }
}

/// Multiplies what a row has of each key with the scale of the key.
///
/// # Safety
/// As [`largest`], and there must be as many scales.
#[inline(always)]
unsafe fn scale_keys<L: Lanes>(row: *mut f32, seen: usize, scales: *const bf16) {
    for at in (0..seen.next_multiple_of(PANEL)).step_by(L::N) {
        // SAFETY: the caller's promise; a block is whole panels, and a panel whole vectors.
        unsafe { L::load(row.add(at)).mul(L::load_bf16(scales.add(at))).store(row.add(at)) }
    }
}

/// Turns a row of scores `s` into `cap tanh(s / cap)`.
///
/// # Safety
/// As [`largest`].
#[inline(always)]
unsafe fn bound<L: Lanes>(scores: *mut f32, seen: usize, cap: f32) {
    let (cap, twice, one) = (L::splat(cap), L::splat(2.0 * std::f32::consts::LOG2_E / cap), L::splat(1.0));
    for at in (0..seen.next_multiple_of(PANEL)).step_by(L::N) {
        // SAFETY: the caller's promise; a block is whole panels, and a panel whole vectors.
        unsafe {
            let power = L::splat(-127.0).max(L::load(scores.add(at)).mul(twice));
            let sigmoid = one.div(one.add(L::zero().sub(power).exp2()));
            cap.mul(sigmoid.add(sigmoid).sub(one)).store(scores.add(at));
        }
    }
}

/// Vectors of scores under way at once.
const AT_ONCE: usize = 4;

/// The largest of a row of scores of which the first `sees` count; the others, up to those that [`weights`] reads, become
/// minus infinity.
///
/// # Safety
/// `scores` must hold [`BLOCK_KEYS`] elements.
#[inline(always)]
unsafe fn largest<L: Lanes>(scores: *mut f32, sees: usize, seen: usize) -> f32 {
    let width = seen.next_multiple_of(AT_ONCE * L::N);
    let mut max = [L::splat(LOWEST); AT_ONCE];
    // SAFETY: `width` is at most BLOCK_KEYS, a multiple of every vector's AT_ONCE lanes.
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
