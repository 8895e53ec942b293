//! Attention of bf16 queries over one shard of bf16 keys, with the log-sum-exp of each row. Merges nothing.
//!
//! Online softmax over blocks of keys (FlashAttention-2, algorithm 1), with scores kept transposed: a tile row is a key, a
//! vector lane a query row, so that maxima and sums need no step across lanes. The tile products of one unit of work run
//! between the exponentials of another. Keys are always visited in the same blocks, so a row depends on itself alone.

mod pipeline;

use half::bf16;

use super::buffer::Buffer;
use super::engine::{Engine, LANES, Rows, SIDE, STEP, TILE};
use super::{Parallel, dispatch};
use crate::{Heads, Mask};

/// Query rows and what they may see.
#[derive(Clone, Copy)]
pub struct Query<'a> {
    /// `(query heads, tokens, head dim)`.
    pub rows: &'a [bf16],
    /// Tokens.
    pub tokens: usize,
    /// Head counts; the head size is a multiple of 16.
    pub heads: Heads,
    /// Which keys each token sees.
    pub mask: Mask,
}

/// Keys and values of one shard, `(kv heads, tokens, head dim)` each, in storage that may hold more tokens a head.
#[derive(Clone, Copy)]
pub struct Shard<'a> {
    /// Keys.
    pub keys: &'a [bf16],
    /// Values.
    pub values: &'a [bf16],
    /// Tokens in use.
    pub tokens: usize,
    /// Elements from one head to the next, in both.
    pub head_stride: usize,
}

/// Attention scaled by `1 / sqrt(head dim)`: normalised `output (query heads, tokens, head dim)` and natural
/// `lse (query heads, tokens)`. A row that sees no key gets 0 and minus infinity.
pub fn attention(query: &Query<'_>, shard: &Shard<'_>, output: &mut [f32], lse: &mut [f32], parallel: Parallel<'_>) {
    let plan = Plan::new(query, shard, output, lse);
    dispatch!(attention_with(plan, query.heads.kv, parallel))
}

/// Keys of a block.
const KEYS: usize = 64;
/// Tiles of 32 query rows that share a block of keys in one task.
const TILES: usize = 4;

/// One call's operands and sizes. The query rows of a kv head are those of its query heads, one after the other.
#[derive(Clone, Copy)]
struct Plan {
    query: *const u16,
    keys: *const u16,
    values: *const u16,
    head_stride: usize,
    output: *mut f32,
    lse: *mut f32,
    dim: usize,
    /// Query rows of one kv head.
    rows: usize,
    span: Span,
}

// SAFETY: the operands are only read, and tasks write disjoint rows of the output and the log-sum-exp.
unsafe impl Sync for Plan {}

/// Who sees what.
#[derive(Clone, Copy)]
struct Span {
    queries: usize,
    keys: usize,
    mask: Mask,
}

impl Span {
    /// Keys that a token sees: the first so many.
    fn visible(&self, token: usize) -> usize {
        match self.mask {
            Mask::None => self.keys,
            Mask::Causal => (token + 1 + self.keys).saturating_sub(self.queries).min(self.keys),
        }
    }
}

/// Some query rows of one kv head.
#[derive(Clone, Copy)]
struct Task {
    head: usize,
    first: usize,
    rows: usize,
    /// The most keys a row sees.
    visible: usize,
}

impl Plan {
    /// Checks that the operands fit one another.
    fn new(query: &Query<'_>, shard: &Shard<'_>, output: &mut [f32], lse: &mut [f32]) -> Self {
        let Heads { query: heads, kv, dim } = query.heads;
        assert!(dim > 0 && dim.is_multiple_of(LANES), "the head size must be a multiple of {LANES}");
        assert!(kv > 0 && heads.is_multiple_of(kv), "query heads must be a multiple of kv heads");
        assert_eq!(query.rows.len(), heads * query.tokens * dim, "queries must be (query heads, tokens, head dim)");
        assert_eq!(output.len(), query.rows.len(), "the output is as large as the queries");
        assert_eq!(lse.len(), heads * query.tokens, "the log-sum-exp has one element a query row");
        let used = if shard.tokens == 0 { 0 } else { (kv - 1) * shard.head_stride + shard.tokens * dim };
        assert!(shard.keys.len() >= used && shard.values.len() >= used, "the shard must hold its tokens");
        Self {
            query: query.rows.as_ptr().cast(),
            keys: shard.keys.as_ptr().cast(),
            values: shard.values.as_ptr().cast(),
            head_stride: shard.head_stride,
            output: output.as_mut_ptr(),
            lse: lse.as_mut_ptr(),
            dim,
            rows: heads / kv * query.tokens,
            span: Span { queries: query.tokens, keys: shard.tokens, mask: query.mask },
        }
    }

    /// Steps of 32 across a head.
    fn steps(&self) -> usize {
        self.dim.div_ceil(SIDE)
    }

    /// bf16 elements of a packed block of keys, and of its values.
    fn block(&self) -> usize {
        KEYS * self.steps() * SIDE
    }

    /// Keys that a row of a kv head sees.
    fn visible(&self, row: usize) -> usize {
        self.span.visible(row % self.span.queries)
    }

    /// The tasks of all heads, the longest first, so that the last to finish are short.
    fn tasks(&self, heads: usize) -> Vec<Task> {
        let mut tasks = Vec::new();
        for head in 0..heads {
            for first in (0..self.rows).step_by(TILES * SIDE) {
                let rows = (self.rows - first).min(TILES * SIDE);
                let visible = (first..first + rows).map(|row| self.visible(row)).max().unwrap_or(0);
                tasks.push(Task { head, first, rows, visible });
            }
        }
        tasks.sort_by_key(|task| std::cmp::Reverse(task.visible));
        tasks
    }

    /// Packs block `index` of a head: keys as panels of 32 keys, then values as panels of 32 elements across the keys.
    ///
    /// # Safety
    /// The machine must suit the engine, the head exist, and `target` hold two blocks.
    unsafe fn pack<E: Engine>(&self, head: usize, index: usize, target: *mut u16) {
        let (dim, steps) = (self.dim, self.steps());
        let rows = self.span.keys.saturating_sub(index * KEYS).min(KEYS);
        let at = |data: *const u16| Rows {
            data: data.wrapping_add(head * self.head_stride + index * KEYS * dim),
            stride: dim,
            rows,
            columns: dim,
        };
        let (keys, values) = (at(self.keys), at(self.values));
        // SAFETY: bands stay within the shard's tokens; the panels of keys fill the first block, those of values the
        // second.
        unsafe {
            for band in 0..KEYS / SIDE {
                E::pack_rows(keys.band(band * SIDE), target.add(band * steps * STEP));
            }
            let target = target.add(self.block());
            for tile in 0..2 * steps * (KEYS / SIDE) {
                let (half, band, panel) = (tile % 2, tile / 2 % (KEYS / SIDE), tile / 2 / (KEYS / SIDE));
                let column = panel * SIDE + half * LANES;
                let band = values.band(band * SIDE);
                let columns = dim.saturating_sub(column).min(LANES);
                let source = Rows { data: band.data.wrapping_add(column), columns, ..band };
                E::pack_transposed(source, target.add(tile * TILE));
            }
        }
    }
}

/// # Safety
/// The machine must suit the engine, and the plan's operands be as large as it says.
unsafe fn attention_with<E: Engine>(plan: Plan, heads: usize, parallel: Parallel<'_>) {
    if plan.rows == 0 {
        return;
    }
    let tasks = plan.tasks(heads);
    let blocks = plan.span.keys.div_ceil(KEYS);
    // Rows of one task use each block once: it packs as it goes. More rows share blocks packed beforehand.
    let packed = (plan.rows > TILES * SIDE).then(|| {
        let packed = Buffer::new(heads * blocks * 2 * plan.block() * size_of::<u16>());
        let plan = &plan;
        parallel(heads * blocks, &|index| {
            // SAFETY: block `index` of the buffer belongs to this task alone.
            unsafe {
                plan.pack::<E>(index / blocks, index % blocks, packed.pointer::<u16>().add(index * 2 * plan.block()))
            }
        });
        packed
    });
    let plan = &plan;
    parallel(tasks.len(), &|index| {
        let task = tasks[index];
        let packed = packed.as_ref().map(|packed| {
            // SAFETY: the head's blocks lie one after the other from here.
            unsafe { packed.pointer::<u16>().add(task.head * blocks * 2 * plan.block()).cast_const() }
        });
        // SAFETY: the caller's promise; tasks are disjoint in rows.
        unsafe { pipeline::run::<E>(plan, &task, packed) }
    });
}

#[cfg(test)]
mod tests;
