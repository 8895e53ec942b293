//! Attention of bf16 queries over packed keys and values, with the log-sum-exp of each row. Merges nothing.
//!
//! Online softmax over blocks of keys (FlashAttention-2, algorithm 1), with scores kept transposed: a tile row is a key, a
//! vector lane a query row, so that maxima and sums need no step across lanes. The tile products of one unit of work run
//! between the exponentials of another. Keys are always visited in the same blocks, so a row depends on itself alone.

mod pipeline;
mod plan;
mod scores;

use half::bf16;

use super::cache::AmxCache;
use super::engine::{BLOCK_SIDE, Engine};
use super::{Parallel, dispatch};
use crate::Mask;
pub use plan::Query;
use plan::{AmxAttentionPlan, AmxRows, TILES};

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
