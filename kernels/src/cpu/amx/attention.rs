//! Attention of bf16 queries over packed keys and values, with the log-sum-exp of each row. Merges nothing.
//!
//! Online softmax over blocks of keys (FlashAttention-2, algorithm 1), with scores kept transposed: a tile row is a key, a
//! vector lane a query row, so that maxima and sums need no step across lanes. The tile products of one unit of work run
//! between the exponentials of another. Keys are always visited in the same blocks, so a row depends on itself alone.

mod pipeline;
mod scores;

use std::ops::Range;

use half::bf16;

use super::cache::AmxCache;
use super::engine::{BLOCK_SIDE, Engine};
use super::{Parallel, dispatch};
use crate::Mask;

/// Query rows and what they may see.
#[derive(Clone, Copy)]
pub struct Query<'a> {
    /// `(query heads, tokens, head dim)`.
    pub rows: &'a [bf16],
    /// Query heads, a multiple of the cache's.
    pub heads: usize,
    /// Tokens.
    pub tokens: usize,
    /// Which keys each token sees.
    pub mask: Mask,
    /// Keys that none does, ascending.
    pub holes: &'a [Range<usize>],
}

/// Attention scaled by `1 / sqrt(head dim)`: normalised `output (query heads, tokens, head dim)` and natural
/// `lse (query heads, tokens)`. A row that sees no key gets 0 and minus infinity.
pub fn attention(query: &Query<'_>, cache: &AmxCache, output: &mut [f32], lse: &mut [f32], parallel: Parallel<'_>) {
    let plan = AmxAttentionPlan::new(query, cache, output, lse);
    dispatch!(attention_with(plan, parallel))
}

/// Query rows of one head over keys copied for them.
#[derive(Clone, Copy)]
pub struct ListedRows<'a> {
    /// `(rows, head dim)`.
    pub rows: &'a [bf16],
    /// Keys that each row sees: the first so many.
    pub visible: &'a [usize],
    /// The keys, as the only head.
    pub cache: &'a AmxCache,
}

/// As [`attention`], on this thread, with the highest scaled score of each row: into `output (rows, head dim)`, `lse` and
/// `maxima (rows)`.
pub fn attention_listed(listed: &ListedRows<'_>, output: &mut [f32], lse: &mut [f32], maxima: &mut [f32]) {
    let ListedRows { rows, visible, cache } = *listed;
    assert!(cache.heads() == 1 && visible.iter().all(|visible| *visible <= cache.len()));
    assert!(visible.len() == maxima.len() && rows.len() == visible.len() * cache.dim());
    let query = Query { rows, heads: 1, tokens: visible.len(), mask: Mask::None, holes: &[] };
    let plan = AmxAttentionPlan {
        listed: Some(visible),
        maxima: maxima.as_mut_ptr(),
        ..AmxAttentionPlan::new(&query, cache, output, lse)
    };
    dispatch!(listed_with(plan));
}

/// Keys of a block.
const AMX_BLOCK_KEYS: usize = BLOCK_SIDE;
/// Blocks of a stretch: a task's tiles pass over one stretch after the other, so that its keys and values (256 KiB at head
/// size 64) come from beyond the second-level cache but once, and a tile's sums stay in the first.
const STRETCH_BLOCKS: usize = 1024 / AMX_BLOCK_KEYS;
/// Tiles of 32 query rows that share a task's stretches, at most.
const TILES: usize = 8;
/// Tasks to aim at, for threads to share evenly, before tasks get more tiles.
const TASKS: usize = 32;

/// One call's operands and sizes. The query rows of a kv head are those of its query heads, one after the other.
#[derive(Clone, Copy)]
struct AmxAttentionPlan<'a> {
    query: *const u16,
    cache: &'a AmxCache,
    output: *mut f32,
    lse: *mut f32,
    /// Query rows of one kv head.
    rows: usize,
    /// Query tokens.
    tokens: usize,
    mask: Mask,
    /// Keys that no row sees.
    holes: &'a [Range<usize>],
    /// Keys each row sees, whatever the mask says.
    listed: Option<&'a [usize]>,
    /// Highest scaled score of each row; null where it is not wanted.
    maxima: *mut f32,
}

// SAFETY: the operands are only read, and tasks write disjoint rows of the output and the log-sum-exp.
unsafe impl Sync for AmxAttentionPlan<'_> {}

/// Some query rows of one kv head.
#[derive(Clone, Copy)]
struct AmxRows {
    head: usize,
    first: usize,
    rows: usize,
    /// The most keys a row sees.
    visible: usize,
}

impl<'a> AmxAttentionPlan<'a> {
    /// Checks that the operands fit one another.
    fn new(query: &Query<'a>, cache: &'a AmxCache, output: &mut [f32], lse: &mut [f32]) -> Self {
        let Query { rows, heads, tokens, mask, holes } = *query;
        let (kv, dim) = (cache.heads(), cache.dim());
        assert!(kv > 0 && heads.is_multiple_of(kv), "query heads must be a multiple of kv heads");
        assert_eq!(rows.len(), heads * tokens * dim, "queries must be (query heads, tokens, head dim)");
        assert_eq!(output.len(), rows.len(), "the output is as large as the queries");
        assert_eq!(lse.len(), heads * tokens, "the log-sum-exp has one element a query row");
        Self {
            query: rows.as_ptr().cast(),
            cache,
            output: output.as_mut_ptr(),
            lse: lse.as_mut_ptr(),
            rows: heads / kv * tokens,
            tokens,
            mask,
            holes,
            listed: None,
            maxima: std::ptr::null_mut(),
        }
    }

    /// End of the keys that a row of a kv head sees.
    fn visible(&self, row: usize) -> usize {
        match self.listed {
            Some(listed) => listed[row],
            None => self.mask.visible(row % self.tokens, self.tokens, self.cache.len()),
        }
    }

    /// Keys before that end which the row does not see.
    fn hidden(&self, row: usize) -> Range<usize> {
        self.mask.hidden(row % self.tokens, self.visible(row))
    }

    /// The tasks of all heads, the longest first, so that the last to finish are short.
    fn tasks(&self) -> Vec<AmxRows> {
        let heads = self.cache.heads();
        let share = heads * self.rows.div_ceil(BLOCK_SIDE) / TASKS;
        let size = share.clamp(1, TILES) * BLOCK_SIDE;
        let mut tasks = Vec::new();
        for head in 0..heads {
            for first in (0..self.rows).step_by(size) {
                let rows = (self.rows - first).min(size);
                let visible = (first..first + rows).map(|row| self.visible(row)).max().unwrap_or(0);
                tasks.push(AmxRows { head, first, rows, visible });
            }
        }
        tasks.sort_by_key(|task| std::cmp::Reverse(task.visible));
        tasks
    }
}

/// # Safety
/// The machine must suit the engine, and the plan's operands be as large as it says.
unsafe fn attention_with<E: Engine>(plan: AmxAttentionPlan<'_>, parallel: Parallel<'_>) {
    let (plan, tasks) = (&plan, plan.tasks());
    // SAFETY: the caller's promise; tasks are disjoint in rows.
    parallel(tasks.len(), &|index| unsafe { pipeline::run::<E>(plan, &tasks[index]) });
}

/// # Safety
/// As [`attention_with`]; the plan must have one head.
unsafe fn listed_with<E: Engine>(plan: AmxAttentionPlan<'_>) {
    for first in (0..plan.rows).step_by(TILES * BLOCK_SIDE) {
        let rows = (plan.rows - first).min(TILES * BLOCK_SIDE);
        let visible = (first..first + rows).map(|row| plan.visible(row)).max().unwrap_or(0);
        // SAFETY: the caller's promise.
        unsafe { pipeline::run::<E>(&plan, &AmxRows { head: 0, first, rows, visible }) };
    }
}

#[cfg(test)]
mod tests;
