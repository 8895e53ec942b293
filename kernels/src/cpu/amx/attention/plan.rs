//! One call of attention: its operands and sizes, and the tasks that it falls into. Computes nothing.

use std::ops::Range;

use half::bf16;

use super::super::cache::AmxCache;
use super::super::engine::BLOCK_SIDE;
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

/// Keys of a block.
pub(super) const AMX_BLOCK_KEYS: usize = BLOCK_SIDE;
/// Blocks of a stretch: a task's tiles pass over one stretch after the other, so that its keys and values (256 KiB at head
/// size 64) come from beyond the second-level cache but once, and a tile's sums stay in the first.
pub(super) const STRETCH_BLOCKS: usize = 1024 / AMX_BLOCK_KEYS;
/// Tiles of 32 query rows that share a task's stretches, at most.
pub(super) const TILES: usize = 8;
/// Tasks to aim at, for threads to share evenly, before tasks get more tiles.
pub(super) const TASKS: usize = 32;

/// One call's operands and sizes. The query rows of a kv head are those of its query heads, one after the other.
#[derive(Clone, Copy)]
pub(super) struct AmxAttentionPlan<'a> {
    pub(super) query: *const u16,
    pub(super) cache: &'a AmxCache,
    pub(super) output: *mut f32,
    pub(super) lse: *mut f32,
    /// Query rows of one kv head.
    pub(super) rows: usize,
    /// Query tokens.
    pub(super) tokens: usize,
    pub(super) mask: Mask,
    /// Keys that no row sees.
    pub(super) holes: &'a [Range<usize>],
    /// Keys each row sees, whatever the mask says.
    pub(super) listed: Option<&'a [usize]>,
    /// Highest scaled score of each row; null where it is not wanted.
    pub(super) maxima: *mut f32,
}

// SAFETY: the operands are only read, and tasks write disjoint rows of the output and the log-sum-exp.
unsafe impl Sync for AmxAttentionPlan<'_> {}

/// Some query rows of one kv head.
#[derive(Clone, Copy)]
pub(super) struct AmxRows {
    pub(super) head: usize,
    pub(super) first: usize,
    pub(super) rows: usize,
    /// The most keys a row sees.
    pub(super) visible: usize,
}

impl<'a> AmxAttentionPlan<'a> {
    /// Checks that the operands fit one another.
    pub(super) fn new(query: &Query<'a>, cache: &'a AmxCache, output: &mut [f32], lse: &mut [f32]) -> Self {
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
    pub(super) fn visible(&self, row: usize) -> usize {
        match self.listed {
            Some(listed) => listed[row],
            None => self.mask.visible(row % self.tokens, self.tokens, self.cache.len()),
        }
    }

    /// Keys before that end which the row does not see.
    pub(super) fn hidden(&self, row: usize) -> Range<usize> {
        self.mask.hidden(row % self.tokens, self.visible(row))
    }

    /// The tasks of all heads, the longest first, so that the last to finish are short.
    pub(super) fn tasks(&self) -> Vec<AmxRows> {
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
