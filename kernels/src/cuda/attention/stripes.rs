//! The stripes of AnchorAttention, chosen on the device. Attends to nothing.

use super::super::device::{Device, LaunchShape, launch, typed};
use super::super::tensor::{Tensor, View};
use super::lists::{Grouped, Lists};
use crate::{DType, KernelError, StripeRule};

/// Keys of a block of threads, as the kernel has them.
const STRIPE_KEYS: usize = 128;
/// Keys of a word of what was found.
const WORD: usize = 32;

/// As `stripes.cu` declares it.
#[repr(C)]
pub struct StripePool {
    pub q: u64,
    pub maxima: u64,
    pub queries: u64,
    pub anchors: u64,
    pub q_head: i64,
    pub q_row: i64,
    pub tokens: i32,
    pub rows: i32,
    pub blocks: i32,
    pub dim: i32,
}

/// As `stripes.cu` declares it.
#[repr(C)]
struct FindCall {
    k: u64,
    queries: u64,
    anchors: u64,
    found: u64,
    kv_head: i64,
    kv_row: i64,
    groups: i32,
    group: i32,
    tokens: i32,
    words: i32,
    blocks: i32,
    step: i32,
    span: i32,
    first: i32,
    dim: i32,
    scale: f32,
    theta: f32,
}

impl Device {
    /// The stripes of each head and group of a causal sequence, given the rows' highest anchor scores `(query heads, tokens)` f32.
    pub(in super::super) fn stripes(
        &self,
        q: View<'_>,
        k: View<'_>,
        maxima: &Tensor,
        rule: StripeRule,
    ) -> Result<Lists, KernelError> {
        let (heads, tokens, dim) = (q.heads, q.rows, q.dim);
        let (groups, words) = (tokens.div_ceil(rule.span()), tokens.div_ceil(WORD));
        let rows = rule.block_q.min(tokens.max(1));
        let blocks = tokens.div_ceil(rows);
        let queries = self.alloc(4 * heads * blocks * dim)?;
        let anchors = self.alloc(4 * heads * blocks)?;
        let pool = StripePool {
            q: q.pointer,
            maxima: maxima.pointer(),
            queries: queries.pointer,
            anchors: anchors.pointer,
            q_head: q.at.head,
            q_row: q.at.row,
            tokens: tokens as i32,
            rows: rows as i32,
            blocks: blocks as i32,
            dim: dim as i32,
        };
        self.pool(pool, heads, q.dtype)?;
        let each = 16 / k.dtype.size();
        let aligned =
            k.pointer.is_multiple_of(16) && [dim as i64, k.at.head, k.at.row].iter().all(|n| n % each as i64 == 0);
        let name = typed(if aligned { "find_stripes_wide" } else { "find_stripes" }, k.dtype);
        let lists = heads * groups;
        let found = self.alloc(4 * words * lists)?;
        let find = FindCall {
            k: k.pointer,
            queries: queries.pointer,
            anchors: anchors.pointer,
            found: found.pointer,
            kv_head: k.at.head,
            kv_row: k.at.row,
            groups: groups as i32,
            group: (heads / k.heads) as i32,
            tokens: tokens as i32,
            words: words as i32,
            blocks: blocks as i32,
            step: rule.step.min(blocks) as i32,
            span: rule.span().min(tokens) as i32,
            first: rule.block_kv.min(tokens) as i32,
            dim: dim as i32,
            scale: 1.0 / (dim as f32).sqrt(),
            theta: rule.theta,
        };
        let spread =
            LaunchShape { blocks: (lists, tokens.div_ceil(STRIPE_KEYS)), threads: STRIPE_KEYS as u32, shared: 0 };
        launch!(self, &name, spread, find)?;
        let of = Grouped { heads, rows: rule.span(), tokens };
        self.lists_of_bits(of, &found, (words, 1))
    }

    /// Means over the rows of each block of each head.
    pub(super) fn pool(&self, pool: StripePool, heads: usize, dtype: DType) -> Result<(), KernelError> {
        let spread = LaunchShape { blocks: (pool.blocks as usize, heads), threads: 128, shared: 0 };
        launch!(self, &typed("pool_queries", dtype), spread, pool)
    }
}
