//! FlexPrefill's choice among blocks of rows and keys, on the device. Attends to nothing.

use super::super::device::{Device, LaunchShape, launch};
use super::super::kv::CudaKv;
use super::super::tensor::{Tensor, View};
use super::lists::{Grouped, Lists};
use super::stripes::StripePool;
use crate::sparse::flex::FLEX;
use crate::{DType, FlexRule, KernelError};

/// Threads that choose for a head, as the kernels have them.
const CHOOSER_THREADS: u32 = 1024;
/// Bytes of what means attend to that are there at a time.
const MEANS: usize = 256 << 20;
/// Bytes of what says which of a head's weights are kept.
const CUT: usize = 8;

/// As `blocks.cu` declares it.
#[repr(C)]
struct BlockMeansCall {
    queries: u64,
    keys: u64,
    wanted: u64,
    weights: u64,
    rows: i32,
    count: i32,
    group: i32,
    dim: i32,
    all: i32,
    first: i32,
    scale: f32,
    unused: f32,
}

/// As `blocks.cu` declares it.
#[repr(C)]
#[derive(Clone, Copy)]
struct BlockChoice {
    masses: u64,
    last: u64,
    weights: u64,
    pooled: u64,
    lines: u64,
    aware: u64,
    cuts: u64,
    bits: u64,
    heads: i32,
    tokens: i32,
    blocks: i32,
    words: i32,
    least: i32,
    first: i32,
    row: f32,
    whole: f32,
    tau: f32,
    unused: i32,
}

impl Device {
    /// FlexPrefill's keys, of a sequence that is not dense by the rule.
    pub(in super::super) fn flex(&self, q: View<'_>, kv: &CudaKv, rule: FlexRule) -> Result<Lists, KernelError> {
        let (heads, tokens, [k, _]) = (q.heads, q.rows, kv.view(0, kv.len()));
        let (blocks, words) = (tokens.div_ceil(FLEX), tokens.div_ceil(32 * FLEX));
        let [queries, keys] = [self.block_means(q)?, self.block_means(k)?];
        let last_rows = self.block_means(q.part(tokens - FLEX, tokens))?;
        let last = self.empty(&[heads, blocks], DType::F32)?;
        let means = |queries: &Tensor, rows: usize| BlockMeansCall {
            queries: queries.pointer(),
            keys: keys.pointer(),
            wanted: 0,
            weights: last.pointer(),
            rows: rows as i32,
            count: blocks as i32,
            group: (heads / k.heads) as i32,
            dim: q.dim as i32,
            all: 1,
            first: 0,
            scale: 1.0 / (q.dim as f32).sqrt(),
            unused: 0.0,
        };
        let attend = |rows, heads, means: BlockMeansCall| {
            launch!(self, "attend_means", LaunchShape { blocks: (rows, heads), threads: 128, shared: 0 }, means)
        };
        attend(1, heads, means(&last_rows, 1))?;
        let each = blocks * (blocks + 1) / 2;
        let at_a_time = (MEANS / (4 * each)).clamp(1, heads);
        let masses = self.masses(q, kv, FLEX, [0; 2])?;
        let weights = self.empty(&[at_a_time, each], DType::F32)?;
        let pooled = self.empty(&[2, heads, blocks], DType::F32)?;
        let [lines, aware] = [self.alloc(8 * heads * words)?, self.alloc(4 * heads)?];
        let [cuts, bits] = [self.alloc(CUT * heads)?, self.alloc(4 * heads * blocks * words)?];
        let choice = BlockChoice {
            masses: masses.pointer(),
            last: last.pointer(),
            weights: weights.pointer(),
            pooled: pooled.pointer(),
            lines: lines.pointer,
            aware: aware.pointer,
            cuts: cuts.pointer,
            bits: bits.pointer,
            heads: heads as i32,
            tokens: tokens as i32,
            blocks: blocks as i32,
            words: words as i32,
            least: rule.least(blocks) as i32,
            first: 0,
            row: rule.limit(1.0),
            whole: rule.limit(blocks as f32),
            tau: rule.tau,
            unused: 0,
        };
        launch!(self, "choose_lines", LaunchShape { blocks: (heads, 2), threads: CHOOSER_THREADS, shared: 0 }, choice)?;
        for first in (0..heads).step_by(at_a_time) {
            let (some, choice) = (at_a_time.min(heads - first), BlockChoice { first: first as i32, ..choice });
            let by_means = BlockMeansCall { all: 0, first: first as i32, ..means(&queries, blocks) };
            attend(blocks, some, BlockMeansCall { wanted: aware.pointer, weights: weights.pointer(), ..by_means })?;
            launch!(self, "cover_means", LaunchShape::new(some, CHOOSER_THREADS), choice)?;
            launch!(self, "mark_blocks", LaunchShape { blocks: (blocks, some), threads: 128, shared: 0 }, choice)?;
        }
        self.lists_of_bits(Grouped { heads, rows: FLEX, tokens }, &bits, (words, FLEX))
    }

    /// Means over the rows of each block of each head: `(heads, blocks, dim)` f32.
    fn block_means(&self, x: View<'_>) -> Result<Tensor, KernelError> {
        let blocks = x.rows.div_ceil(FLEX);
        let means = self.empty(&[x.heads, blocks, x.dim], DType::F32)?;
        let pool = StripePool {
            q: x.pointer,
            maxima: 0,
            queries: means.pointer(),
            anchors: 0,
            q_head: x.at.head,
            q_row: x.at.row,
            tokens: x.rows as i32,
            rows: FLEX as i32,
            blocks: blocks as i32,
            dim: x.dim as i32,
        };
        self.pool(pool, x.heads, x.dtype)?;
        Ok(means)
    }
}
