//! Tiled attention with an online softmax, returning output and log-sum-exp. Keys are taken in blocks of fixed size, each with
//! its own maximum, and blocks are merged in order: so a row's result depends neither on the other rows of the call nor on
//! how blocks were dealt to threads. Memory is linear in queries and keys.

mod block;

use std::ops::Range;

use super::cache::{BLOCK as KEYS, Cache};
use super::compute::Compute;
use super::lanes::{Element, Kernel, Lanes};
use super::pool::{Shared, Tasks, filled};
use crate::reference::AttentionShape;
use block::{Merged, Raw, Scratch, merge};

/// Query rows that share a block of keys.
const ROWS: usize = 96;
/// Rows up to which the keys of one task may be dealt out: their unmerged blocks are kept in memory.
const SPLIT_ROWS: usize = 12;

/// One call: `q (query heads, queries, dim)`.
pub(super) struct Attention<'a, E> {
    pub q: &'a [E],
    pub cache: &'a Cache<E>,
    pub shape: AttentionShape,
}

/// Rows of one KV head's queries, which lie side by side: `(query heads of the group x queries)`.
#[derive(Clone)]
struct Piece {
    head: usize,
    rows: Range<usize>,
}

impl<E: Element> Attention<'_, E> {
    /// Output `(query heads, queries, dim)` and log-sum-exp `(query heads, queries)`.
    pub(super) fn run(self, compute: &Compute) -> (Vec<f32>, Vec<f32>) {
        let rows = self.shape.heads.query * self.shape.queries;
        assert!(self.q.len() == rows * self.shape.heads.dim && self.cache.len == self.shape.keys);
        let pieces = self.pieces(compute.pool.threads());
        let mut lse = vec![0.0; rows];
        let logs = Shared::new(&mut lse);
        let write = |output: Shared<f32>| {
            let result = Results { output, lse: logs };
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
        let scratch = || Scratch::new(ROWS, self.cache.stride());
        // The last rows see the most keys: they go first.
        compute.pool.each_with(tasks, scratch, |scratch, task| {
            let piece = &pieces[pieces.len() - 1 - task];
            compute.set.run(Whole { call: self, piece, result, scratch });
        });
    }

    /// Few rows over many keys: blocks of keys are dealt out, and merged in order afterwards.
    fn run_split(&self, compute: &Compute, pieces: &[Piece], result: &Results) {
        let blocks = self.shape.keys.div_ceil(KEYS);
        let parts = (8 * compute.pool.threads()).div_ceil(pieces.len().max(1)).min(blocks.max(1));
        let each = partial_size(self.cache.stride());
        let mut partials = vec![0.0; pieces.len() * blocks * each];
        let shared = Shared::new(&mut partials);
        let scratch = || Scratch::new(SPLIT_ROWS, self.cache.stride());
        let tasks = Tasks { count: pieces.len() * parts, cost: 2 * self.cost() };
        compute.pool.each_with(tasks, scratch, |scratch, task| {
            let (piece, part) = (task / parts, task % parts);
            let blocks_of_part = blocks * part / parts..blocks * (part + 1) / parts;
            // SAFETY: the partials of this piece.
            let partials = unsafe { shared.at(piece * blocks * each) };
            compute.set.run(Blocks { call: self, piece: &pieces[piece], blocks: blocks_of_part, partials, scratch });
        });
        let mut scratch = scratch();
        for (piece, of_piece) in pieces.iter().enumerate() {
            let partials = &mut partials[piece * blocks * each..][..blocks * each];
            compute.set.run(Collect { call: self, piece: of_piece, partials, result, scratch: &mut scratch });
        }
    }

    fn pieces(&self, threads: usize) -> Vec<Piece> {
        let AttentionShape { heads, queries, .. } = self.shape;
        let group = heads.query / heads.kv;
        let wanted = (heads.query * queries).div_ceil(4 * threads).next_multiple_of(6).min(ROWS);
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

struct Results {
    output: Shared<f32>,
    lse: Shared<f32>,
}

/// Elements of a block's own result: maxima, sums and weighted values `(rows, stride)` for [`SPLIT_ROWS`] rows.
fn partial_size(stride: usize) -> usize {
    SPLIT_ROWS * (2 + stride)
}

struct Whole<'a, E> {
    call: &'a Attention<'a, E>,
    piece: &'a Piece,
    result: &'a Results,
    scratch: &'a mut Scratch,
}

impl<E: Element> Kernel for Whole<'_, E> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Self { call, piece, result, scratch } = self;
        let stride = call.cache.stride();
        let seen = scratch.start(call, piece);
        for block in 0..seen.div_ceil(KEYS) {
            call.weigh::<L>(piece, block, scratch);
            scratch.absorb::<L>(call.scale());
            let output = scratch.output.as_mut_ptr();
            call.gather::<L, _>(piece, block, scratch, |row| Merged {
                // SAFETY: a row of the piece, which the buffers hold.
                output: unsafe { output.add(row * stride) },
                stride,
                keep: &scratch.keep[row..],
                take: &scratch.take[row..],
            });
        }
        call.finish::<L>(piece, scratch, result);
    }
}

struct Blocks<'a, E> {
    call: &'a Attention<'a, E>,
    piece: &'a Piece,
    blocks: Range<usize>,
    /// One for each block of keys, whichever are asked for.
    partials: *mut f32,
    scratch: &'a mut Scratch,
}

impl<E: Element> Kernel for Blocks<'_, E> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Self { call, piece, blocks, partials, scratch } = self;
        let (stride, rows) = (call.cache.stride(), piece.rows.len());
        scratch.start(call, piece);
        for block in blocks {
            call.weigh::<L>(piece, block, scratch);
            // SAFETY: this block's partial, which is this task's: maxima, sums, then rows.
            let output = unsafe {
                let partial = partials.add(block * partial_size(stride));
                partial.copy_from_nonoverlapping(scratch.block_max.as_ptr(), rows);
                partial.add(SPLIT_ROWS).copy_from_nonoverlapping(scratch.block_sum.as_ptr(), rows);
                partial.add(2 * SPLIT_ROWS)
            };
            // SAFETY: a row of the partial.
            let raw = |row: usize| Raw { output: unsafe { output.add(row * stride) }, stride };
            call.gather::<L, _>(piece, block, scratch, raw);
        }
    }
}

struct Collect<'a, E> {
    call: &'a Attention<'a, E>,
    piece: &'a Piece,
    partials: &'a mut [f32],
    result: &'a Results,
    scratch: &'a mut Scratch,
}

impl<E: Element> Kernel for Collect<'_, E> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Self { call, piece, partials, result, scratch } = self;
        let (stride, rows) = (call.cache.stride(), piece.rows.len());
        let seen = scratch.start(call, piece);
        for partial in partials.chunks_exact(partial_size(stride)).take(seen.div_ceil(KEYS)) {
            scratch.block_max[..rows].copy_from_slice(&partial[..rows]);
            scratch.block_sum[..rows].copy_from_slice(&partial[SPLIT_ROWS..][..rows]);
            scratch.absorb::<L>(call.scale());
            for row in 0..rows {
                let (keep, take) = (L::splat(scratch.keep[row]), L::splat(scratch.take[row]));
                let from = partial[2 * SPLIT_ROWS + row * stride..][..stride].as_ptr();
                let to = scratch.output[row * stride..][..stride].as_mut_ptr();
                for d in (0..stride).step_by(L::N) {
                    // SAFETY: both rows are `stride` long, in whole vectors.
                    unsafe { merge(to.add(d), L::load(from.add(d)), keep, take) };
                }
            }
        }
        call.finish::<L>(piece, scratch, result);
    }
}
