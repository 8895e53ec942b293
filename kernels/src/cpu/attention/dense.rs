//! Tiled attention with an online softmax, returning output and log-sum-exp. Keys are taken in blocks of fixed size, each with
//! its own maximum, and blocks are merged in order: so a row's result depends neither on the other rows of the call nor on
//! how blocks were dealt to threads. Memory is linear in queries and keys.

use std::ops::Range;

use super::super::compute::Compute;
use super::super::lanes::{Element, Kernel, Lanes, Loaded};
use super::super::pool::{DisjointBuffer, Tasks, filled};
use super::block::{Block, LiveBlocks, Results, Sizes, TILE_ROWS, Tile, Visibility};
use super::cache::{BLOCK_KEYS, PanelCache};
use super::sums::{Raw, merge};
use crate::Heads;
use crate::reference::AttentionShape;

/// Rows up to which the keys of one task may be dealt out: their unmerged blocks are kept in memory.
const SPLIT_ROWS: usize = 12;

/// One call: `q (query heads, queries, dim)`.
pub(in super::super) struct CpuAttentionCall<'a, Q, E> {
    pub q: &'a [Q],
    pub cache: &'a PanelCache<E>,
    pub shape: AttentionShape,
    /// Keys that no row sees, ascending.
    pub holes: &'a [Range<usize>],
}

/// Rows of one KV head's queries, which lie side by side: `(query heads of the group x queries)`.
#[derive(Clone)]
struct Piece {
    head: usize,
    rows: Range<usize>,
}

impl<Q: Element, E: Loaded> CpuAttentionCall<'_, Q, E> {
    /// Output `(query heads, queries, dim)` and log-sum-exp `(query heads, queries)`.
    pub(in super::super) fn run(self, compute: &Compute) -> (Vec<f32>, Vec<f32>) {
        let rows = self.shape.heads.query * self.shape.queries;
        assert!(self.q.len() == rows * self.shape.heads.dim && self.cache.len == self.shape.keys);
        let pieces = self.pieces(compute.pool.threads());
        let mut lse = vec![0.0; rows];
        let logs = DisjointBuffer::new(&mut lse);
        let write = |output: DisjointBuffer<f32>| {
            let result = Results { output, lse: logs, maxima: None };
            let narrow = pieces.iter().all(|piece| piece.rows.len() <= SPLIT_ROWS);
            if narrow && pieces.len() < 4 * compute.pool.threads() {
                self.run_split(compute, &pieces, &result);
            } else {
                self.run_whole(compute, &pieces, &result);
            }
        };
        // SAFETY: the pieces cover every row.
        let output = unsafe { filled(rows * self.shape.heads.dim, write) };
        (output, lse)
    }

    fn cost(&self) -> usize {
        (self.shape.flops() / 2.0) as usize
    }

    /// Each piece over all of its keys.
    fn run_whole(&self, compute: &Compute, pieces: &[Piece], result: &Results) {
        let tasks = Tasks { count: pieces.len(), cost: self.cost() };
        let scratch = || (Tile::new(TILE_ROWS, self.cache.stride()), Tile::scores(TILE_ROWS));
        // The last rows see the most keys: they go first.
        compute.pool.each_with(tasks, scratch, |(tile, scores), task| {
            let piece = &pieces[pieces.len() - 1 - task];
            compute.set.run(Whole { call: self, piece, result, tile, scores });
        });
    }

    /// Few rows over many keys: blocks of keys are dealt out, and merged in order afterwards.
    fn run_split(&self, compute: &Compute, pieces: &[Piece], result: &Results) {
        let stride = self.cache.stride();
        let mut tile = Tile::new(SPLIT_ROWS, stride);
        let live = |piece: &Piece| {
            self.start(&mut tile, piece);
            tile.live()
        };
        let lives: Vec<LiveBlocks> = pieces.iter().map(live).collect();
        let blocks = lives.iter().map(LiveBlocks::len).max().unwrap_or(0);
        let parts = (8 * compute.pool.threads()).div_ceil(pieces.len().max(1)).min(blocks.max(1));
        let each = partial_size(stride);
        let mut partials = vec![0.0; pieces.len() * blocks * each];
        let shared = DisjointBuffer::new(&mut partials);
        let scratch = || (Tile::new(SPLIT_ROWS, stride), Tile::scores(SPLIT_ROWS));
        let tasks = Tasks { count: pieces.len() * parts, cost: 2 * self.cost() };
        compute.pool.each_with(tasks, scratch, |(tile, scores), task| {
            let (piece, part) = (task / parts, task % parts);
            let (live, blocks_of_piece) = (&lives[piece], lives[piece].len());
            let part = blocks_of_piece * part / parts..blocks_of_piece * (part + 1) / parts;
            // SAFETY: the partials of this piece.
            let partials = unsafe { shared.at(piece * blocks * each) };
            compute.set.run(CacheBlocks { call: self, piece: &pieces[piece], live, part, partials, tile, scores });
        });
        for (index, piece) in pieces.iter().enumerate() {
            let partials = &mut partials[index * blocks * each..][..lives[index].len() * each];
            compute.set.run(Collect { call: self, piece, partials, result, tile: &mut tile });
        }
    }

    /// Takes up a piece.
    fn start(&self, tile: &mut Tile, piece: &Piece) {
        let AttentionShape { heads: Heads { dim, .. }, queries, .. } = self.shape;
        let sight = |row: usize| Visibility {
            end: self.shape.visible(row % queries),
            hidden: self.shape.hidden(row % queries),
        };
        tile.start(&self.q[self.first_row(piece) * dim..][..piece.rows.len() * dim], piece.rows.clone().map(sight));
        tile.hide(self.holes);
    }

    /// The same, ready to be multiplied.
    #[inline(always)]
    fn begin<L: Lanes>(&self, tile: &mut Tile, piece: &Piece) {
        self.start(tile, piece);
        if E::SCALED {
            tile.turn::<L>(self.sizes());
        }
    }

    fn sizes(&self) -> Sizes {
        Sizes { dim: self.shape.heads.dim, stride: self.cache.stride(), cap: self.cache.cap }
    }

    /// Block `index` of a KV head.
    fn block(&self, head: usize, index: usize) -> Block<E> {
        self.cache.heads[head].at(index * BLOCK_KEYS, index * BLOCK_KEYS, self.sizes())
    }

    fn pieces(&self, threads: usize) -> Vec<Piece> {
        let AttentionShape { heads, queries, .. } = self.shape;
        let group = heads.query / heads.kv;
        let wanted = (heads.query * queries).div_ceil(4 * threads).next_multiple_of(6).min(TILE_ROWS);
        let mut pieces = Vec::new();
        if queries == 0 {
            return pieces;
        }
        if wanted < queries {
            let per_head = queries.div_ceil(wanted);
            for at in 0..per_head {
                for head in 0..heads.query {
                    let start = head % group * queries;
                    let rows = start + at * wanted..start + queries.min((at + 1) * wanted);
                    pieces.push(Piece { head: head / group, rows });
                }
            }
        } else {
            let step = wanted / queries * queries;
            for head in 0..heads.kv {
                let starts = (0..group * queries).step_by(step);
                pieces.extend(starts.map(|start| Piece { head, rows: start..(start + step).min(group * queries) }));
            }
        }
        pieces
    }

    /// Index of a piece's first row among all rows.
    fn first_row(&self, piece: &Piece) -> usize {
        piece.head * (self.shape.heads.query / self.shape.heads.kv) * self.shape.queries + piece.rows.start
    }
}

/// Elements of a block's own result: maxima, sums and weighted values `(rows, stride)` for [`SPLIT_ROWS`] rows.
fn partial_size(stride: usize) -> usize {
    SPLIT_ROWS * (2 + stride)
}

struct Whole<'a, Q, E> {
    call: &'a CpuAttentionCall<'a, Q, E>,
    piece: &'a Piece,
    result: &'a Results,
    tile: &'a mut Tile,
    scores: &'a mut [f32],
}

impl<Q: Element, E: Loaded> Kernel for Whole<'_, Q, E> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Self { call, piece, result, tile, scores } = self;
        call.begin::<L>(tile, piece);
        let live = tile.live();
        for index in 0..live.len() {
            // SAFETY: the cache has the blocks that rows see, the scores room for a piece.
            unsafe { tile.attend::<L, E>(call.sizes(), &call.block(piece.head, live.at(index)), scores) };
        }
        tile.finish::<L>(call.sizes(), call.first_row(piece), result);
    }
}

struct CacheBlocks<'a, Q, E> {
    call: &'a CpuAttentionCall<'a, Q, E>,
    piece: &'a Piece,
    live: &'a LiveBlocks,
    /// Which of the live blocks.
    part: Range<usize>,
    /// One for each live block, whichever are asked for.
    partials: *mut f32,
    tile: &'a mut Tile,
    scores: &'a mut [f32],
}

impl<Q: Element, E: Loaded> Kernel for CacheBlocks<'_, Q, E> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Self { call, piece, live, part, partials, tile, scores } = self;
        let (sizes, rows) = (call.sizes(), piece.rows.len());
        call.begin::<L>(tile, piece);
        for index in part {
            let block = call.block(piece.head, live.at(index));
            // SAFETY: the cache has the block; its partial is this task's: maxima, sums, then rows.
            unsafe {
                tile.weigh::<L, E>(sizes, &block, scores);
                let partial = partials.add(index * partial_size(sizes.stride));
                partial.copy_from_nonoverlapping(tile.block_max.as_ptr(), rows);
                partial.add(SPLIT_ROWS).copy_from_nonoverlapping(tile.block_sum.as_ptr(), rows);
                let output = partial.add(2 * SPLIT_ROWS);
                let raw = |row: usize| Raw { output: output.add(row * sizes.stride), stride: sizes.stride };
                tile.gather::<L, E, _>(sizes, &block, scores, raw);
            }
        }
    }
}

struct Collect<'a, Q, E> {
    call: &'a CpuAttentionCall<'a, Q, E>,
    piece: &'a Piece,
    /// Those of the live blocks.
    partials: &'a mut [f32],
    result: &'a Results,
    tile: &'a mut Tile,
}

impl<Q: Element, E: Loaded> Kernel for Collect<'_, Q, E> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Self { call, piece, partials, result, tile } = self;
        let (sizes, rows) = (call.sizes(), piece.rows.len());
        let stride = sizes.stride;
        call.start(tile, piece);
        for partial in partials.chunks_exact(partial_size(stride)) {
            tile.block_max[..rows].copy_from_slice(&partial[..rows]);
            tile.block_sum[..rows].copy_from_slice(&partial[SPLIT_ROWS..][..rows]);
            tile.absorb::<L>(sizes);
            for row in 0..rows {
                let (keep, take) = (L::splat(tile.keep[row]), L::splat(tile.take[row]));
                let from = partial[2 * SPLIT_ROWS + row * stride..][..stride].as_ptr();
                let to = tile.output[row * stride..][..stride].as_mut_ptr();
                for d in (0..stride).step_by(L::N) {
                    // SAFETY: both rows are `stride` long, in whole vectors.
                    unsafe { merge(to.add(d), L::load(from.add(d)), keep, take) };
                }
            }
        }
        tile.finish::<L>(sizes, call.first_row(piece), result);
    }
}
