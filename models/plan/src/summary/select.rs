//! Taking the best chunks within a budget. Does not know where scores come from.

use std::cmp::Reverse;
use std::ops::Range;

use super::chunks::Chunks;
use super::rule::{BudgetSpread, Summary, TieBreak};

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

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(rule: TieBreak, ties: &[u64], quota: usize) -> Vec<usize> {
        let scores = vec![1.0, 2.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0];
        Ranking { scores, ties: ties.to_vec(), rule }.best(0..8, quota)
    }

    #[test]
    fn ties_are_broken_as_asked() {
        assert_eq!(chosen(TieBreak::LowIndex, &[], 3), [0, 1, 2]);
        assert_eq!(chosen(TieBreak::HighIndex, &[], 3), [1, 5, 7]);
        assert_eq!(chosen(TieBreak::Rarity, &[1, 0, 2, 1, 9, 1, 7, 1], 4), [0, 1, 2, 4]);
        // The tied are 0, 2, 3, 4, 5 and 7, in equal stretches: the chunk in the middle of each.
        assert_eq!(chosen(TieBreak::Strided, &[], 3), [1, 2, 5]);
        assert_eq!(chosen(TieBreak::Strided, &[], 4), [1, 2, 4, 7]);
        assert_eq!(chosen(TieBreak::Strided, &[], 7), [0, 1, 2, 3, 4, 5, 7]);
    }

    #[test]
    fn a_quota_can_be_nothing_or_more_than_there_is() {
        for rule in [TieBreak::LowIndex, TieBreak::HighIndex, TieBreak::Strided, TieBreak::Count, TieBreak::Rarity] {
            assert!(chosen(rule, &[], 0).is_empty());
            assert_eq!(chosen(rule, &[], 9), [0, 1, 2, 3, 4, 5, 6, 7]);
        }
    }

    #[test]
    fn a_shared_budget_goes_where_the_scores_are() {
        let chunks = Chunks::cut(&[0..4, 4..8, 8..12], 2);
        let ranking = Ranking { scores: vec![1.0, 5.0, 9.0, 7.0, 9.0, 9.0], ties: vec![], rule: TieBreak::LowIndex };
        let taken = |spread| {
            choose(&chunks, &ranking, &[1, 1, 1], spread).into_iter().map(|summary| summary.indices).collect::<Vec<_>>()
        };
        assert_eq!(taken(BudgetSpread::PerBlock), [vec![2, 3], vec![4, 5], vec![8, 9]]);
        assert_eq!(taken(BudgetSpread::Shared), [vec![], vec![4, 5, 6, 7], vec![8, 9]]);
    }
}
