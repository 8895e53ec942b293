//! Attention over listed keys. They are taken in blocks of fixed size from the first listed on, copied side by side unless they
//! lie so already; a row sees the listed keys that do not come after it, so a prefix. Selects nothing.

use std::ops::Range;

use super::super::compute::Compute;
use super::super::lanes::{Element, Kernel, Lanes};
use super::super::pool::{DisjointBuffer, Tasks, filled};
use super::block::{Block, Results, Sizes, TILE_ROWS, Tile, Visibility};
use super::cache::{BLOCK_KEYS, Head, PanelCache};
use crate::{Heads, KeySets};

/// Tiles of [`TILE_ROWS`] rows that share a block once it is copied, at most.
const SHARED_TILES: usize = 8;

/// One causal sequence: `q (query heads, tokens, dim)` over as many keys.
pub(in super::super) struct CausalSequence<'a, E> {
    pub q: &'a [E],
    pub cache: &'a PanelCache<E>,
    pub heads: Heads,
    pub tokens: usize,
}

/// Output `(query heads, tokens, dim)`, log-sum-exp and highest scaled score `(query heads, tokens)`.
pub(in super::super) struct SelectedOutput {
    pub output: Vec<f32>,
    pub lse: Vec<f32>,
    pub maxima: Vec<f32>,
}

impl<E: Element> CausalSequence<'_, E> {
    /// Attends to the listed keys, which must be the sequence's.
    pub(in super::super) fn attend(&self, keys: &KeySets, compute: &Compute) -> SelectedOutput {
        let CausalSequence { q, cache, heads: Heads { query, dim, .. }, tokens } = *self;
        let rows = query * tokens;
        assert!(q.len() == rows * dim && cache.len == tokens && keys.end() <= tokens);
        assert!(keys.heads() == query && keys.groups() == tokens.div_ceil(keys.rows()));
        let (mut lse, mut maxima) = (vec![0.0; rows], vec![0.0; rows]);
        let (logs, highest) = (DisjointBuffer::new(&mut lse), DisjointBuffer::new(&mut maxima));
        let pieces = pieces(keys, tokens, SHARED_TILES * TILE_ROWS, compute.pool.threads());
        let tasks = Tasks { count: pieces.len(), cost: 2 * dim * keys.pairs(tokens) as usize };
        let write = |output: DisjointBuffer<f32>| {
            let result = Results { output, lse: logs, maxima: Some(highest) };
            let scratch = || ThreadScratch::new(self.sizes());
            compute.pool.each_with(tasks, scratch, |scratch, task| {
                compute.set.run(SelectedTask { sequence: self, keys, piece: &pieces[task], result: &result, scratch });
            });
        };
        // SAFETY: the pieces cover every row.
        let output = unsafe { filled(rows * dim, write) };
        SelectedOutput { output, lse, maxima }
    }

    pub(super) fn sizes(&self) -> Sizes {
        Sizes { dim: self.heads.dim, stride: self.cache.stride(), cap: self.cache.cap }
    }

    /// The cached head that a query head reads.
    pub(super) fn cached(&self, head: usize) -> &Head<E> {
        &self.cache.heads[head / (self.heads.query / self.heads.kv)]
    }

    /// Queries of some rows of a head.
    pub(in super::super) fn queries(&self, head: usize, rows: Range<usize>) -> &[E] {
        let dim = self.heads.dim;
        &self.q[(head * self.tokens + rows.start) * dim..][..rows.len() * dim]
    }
}

/// Rows of each head, at most `most`, that lie in one group; the last, which see the most, go first.
pub(super) fn pieces(keys: &KeySets, tokens: usize, most: usize, threads: usize) -> Vec<(usize, Range<usize>)> {
    let heads = keys.heads();
    let most = (heads * tokens).div_ceil(4 * threads).next_multiple_of(TILE_ROWS).min(most);
    let mut pieces = Vec::new();
    for group in (0..keys.groups()).rev() {
        let rows = group * keys.rows()..tokens.min((group + 1).saturating_mul(keys.rows()));
        let step = rows.len().div_ceil(rows.len().div_ceil(most));
        for start in rows.clone().step_by(step).rev() {
            pieces.extend((0..heads).map(|head| (head, start..rows.end.min(start + step))));
        }
    }
    pieces
}

/// What one thread works in.
struct ThreadScratch<E> {
    tiles: Vec<Tile>,
    scores: Vec<f32>,
    /// The keys of a block, copied side by side.
    copied: Head<E>,
}

impl<E: Element> ThreadScratch<E> {
    fn new(Sizes { dim, stride, .. }: Sizes) -> Self {
        Self { tiles: Vec::new(), scores: Tile::scores(TILE_ROWS), copied: Head::block(dim, stride) }
    }
}

struct SelectedTask<'a, E> {
    sequence: &'a CausalSequence<'a, E>,
    keys: &'a KeySets,
    piece: &'a (usize, Range<usize>),
    result: &'a Results,
    scratch: &'a mut ThreadScratch<E>,
}

impl<E: Element> Kernel for SelectedTask<'_, E> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Self { sequence, keys, piece: (head, rows), result, scratch } = self;
        let (sizes, cached) = (sequence.sizes(), sequence.cached(*head));
        let ranges = keys.ranges(*head, rows.start / keys.rows());
        let ThreadScratch { tiles, scores, copied } = scratch;
        let count = rows.len().div_ceil(TILE_ROWS);
        let step = rows.len().div_ceil(count);
        tiles.resize_with(tiles.len().max(count), || Tile::new(TILE_ROWS, sizes.stride));
        let mut listed = ListedCount::new(ranges);
        let mut seen = 0;
        for (tile, start) in tiles.iter_mut().zip(rows.clone().step_by(step)) {
            let of_tile = start..rows.end.min(start + step);
            let sight = |row: usize| {
                seen = listed.up_to(row);
                Visibility { end: seen, hidden: seen..seen }
            };
            tile.start(sequence.queries(*head, of_tile.clone()), of_tile.map(sight));
        }
        let mut keys = Cursor { ranges, used: 0 };
        for first in (0..seen).step_by(BLOCK_KEYS) {
            let block = keys.block(first, BLOCK_KEYS.min(seen - first), cached, copied, sizes);
            for tile in tiles.iter_mut().take(count).filter(|tile| tile.end() > first) {
                // SAFETY: the block holds the keys listed from `first` on, as many as any row sees.
                unsafe { tile.attend::<L, E>(sizes, &block, scores) };
            }
        }
        for (tile, start) in tiles.iter().zip(rows.clone().step_by(step)) {
            tile.finish::<L>(sizes, head * sequence.tokens + start, result);
        }
    }
}

/// Counts listed keys, row after row.
pub(super) struct ListedCount<'a> {
    /// Ranges that end after the last row asked for.
    ranges: &'a [Range<u32>],
    /// Keys of the ranges before.
    before: usize,
}

impl<'a> ListedCount<'a> {
    pub(super) fn new(ranges: &'a [Range<u32>]) -> Self {
        Self { ranges, before: 0 }
    }

    /// Listed keys that do not come after `row`, which does not come before the last one asked for.
    pub(super) fn up_to(&mut self, row: usize) -> usize {
        while let Some((range, rest)) = self.ranges.split_first().filter(|(range, _)| range.end as usize <= row + 1) {
            self.before += range.len();
            self.ranges = rest;
        }
        self.before + self.ranges.first().map_or(0, |range| (row + 1).saturating_sub(range.start as usize))
    }
}

/// Where the next block of listed keys begins.
struct Cursor<'a> {
    ranges: &'a [Range<u32>],
    /// Keys of the first range that are used up.
    used: usize,
}

impl Cursor<'_> {
    /// The next `count` keys, at most a block, as keys `first..`: where they lie if they fill a block of the cache, else copied.
    fn block<E: Element>(
        &mut self,
        first: usize,
        count: usize,
        source: &Head<E>,
        copied: &mut Head<E>,
        sizes: Sizes,
    ) -> Block<E> {
        let (mut taken, mut block) = (0, copied.at(0, first, sizes));
        while taken < count {
            let start = self.ranges[0].start as usize + self.used;
            let left = self.ranges[0].len() - self.used;
            let take = left.min(count - taken);
            if take == count && start.is_multiple_of(BLOCK_KEYS) {
                block = source.at(start, first, sizes);
            } else {
                copied.copy(taken, source, start, take, [sizes.dim, sizes.stride]);
            }
            taken += take;
            self.used += take;
            if take == left {
                (self.ranges, self.used) = (&self.ranges[1..], 0);
            }
        }
        block
    }
}
