//! Taking the best chunks within a budget. Does not know where scores come from.

use std::cmp::Reverse;
use std::ops::Range;

use super::chunks::Chunks;
use super::{BudgetSpread, Summary, TieBreak};

/// What orders chunks.
pub(super) struct Ranking {
    /// Higher first.
    pub(super) scores: Vec<f64>,
    /// Larger first among equal scores; empty where the rule does not look.
    pub(super) ties: Vec<u64>,
    /// What to do where both are equal.
    pub(super) rule: TieBreak,
}

/// Summaries of all blocks: `quotas[i]` chunks of block `i`, or as many of all blocks but the last together.
pub(super) fn choose(chunks: &Chunks, ranking: &Ranking, quotas: &[usize], spread: BudgetSpread) -> Vec<Summary> {
    let blocks = chunks.blocks();
    let mut taken = Vec::new();
    let shared = match spread {
        BudgetSpread::Shared => blocks.saturating_sub(1),
        BudgetSpread::PerBlock => 0,
    };
    if shared > 0 {
        let quota = quotas[..shared].iter().fold(0, |sum: usize, &quota| sum.saturating_add(quota));
        taken = ranking.best(0..chunks.of_block(shared).start, quota);
    }
    for (block, &quota) in quotas.iter().enumerate().skip(shared) {
        taken.extend(ranking.best(chunks.of_block(block), quota));
    }
    let mut rest = taken.as_slice();
    let summary = |block| {
        let range = chunks.of_block(block);
        let (own, after) = rest.split_at(rest.partition_point(|&chunk| chunk < range.end));
        rest = after;
        Summary {
            chunks: own.iter().map(|chunk| chunk - range.start).collect(),
            indices: own.iter().flat_map(|&chunk| chunks.spans[chunk].clone()).map(|index| index as u32).collect(),
        }
    };
    (0..blocks).map(summary).collect()
}

impl Ranking {
    /// The `quota` best of the chunks in `range`, ascending.
    fn best(&self, range: Range<usize>, quota: usize) -> Vec<usize> {
        let quota = quota.min(range.len());
        let mut order: Vec<usize> = range.collect();
        let tie = |chunk: usize| self.ties.get(chunk).copied().unwrap_or(0);
        order.sort_unstable_by(|&a, &b| {
            let by_rank = self.scores[b].total_cmp(&self.scores[a]).then(Reverse(tie(a)).cmp(&Reverse(tie(b))));
            by_rank.then(if self.rule == TieBreak::HighIndex { b.cmp(&a) } else { a.cmp(&b) })
        });
        if self.rule == TieBreak::Strided && quota > 0 {
            self.stride(&mut order, quota);
        }
        order.truncate(quota);
        order.sort_unstable();
        order
    }

    /// Moves evenly spaced chunks of those that tie at the end of the quota to the front of them.
    fn stride(&self, order: &mut [usize], quota: usize) {
        let last = self.scores[order[quota - 1]];
        let tied = order.partition_point(|&chunk| self.scores[chunk] > last)
            ..order.partition_point(|&chunk| self.scores[chunk] >= last);
        let (wanted, start) = (quota - tied.start, tied.start);
        for step in 0..wanted {
            // The middle of each of `wanted` equal stretches; never behind `step`, so nothing is read after it moved.
            order[start + step] = order[start + (2 * step + 1) * tied.len() / (2 * wanted)];
        }
    }
}
