//! FlexPrefill: its rule, and which blocks of rows and keys it keeps, given sums of attention weights. Computes no score.

use std::iter;

use crate::top_k::{index, ranks, sorted};
use crate::{KernelError, KeySets, top_k};

/// Rows and keys of a block of FlexPrefill; rows it estimates from.
pub(crate) const FLEX: usize = 128;

/// FlexPrefill, in blocks of 128 rows and keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlexRule {
    /// Share of the attention mass that the kept blocks must cover; 1 keeps all.
    pub gamma: f32,
    /// Square root of the Jensen-Shannon divergence below which a head's blocks are selected by their mean queries.
    pub tau: f32,
    /// Tokens kept at least; sequences of no more than these (or 256) are dense.
    pub min_budget: usize,
}

impl FlexRule {
    /// Whether every row of a sequence sees every key before it.
    pub(crate) fn is_dense(&self, tokens: usize) -> bool {
        tokens <= self.min_budget.max(256)
    }

    /// Columns, and diagonals, that are kept at least of so many blocks.
    pub(crate) fn least(&self, blocks: usize) -> usize {
        self.min_budget.div_ceil(FLEX).clamp(1, blocks)
    }

    /// What may be covered of a mass; the whole is never missed by rounding.
    pub(crate) fn limit(&self, mass: f32) -> f32 {
        if self.gamma < 1.0 { self.gamma * mass } else { f32::INFINITY }
    }

    /// The keys of a sequence that is dense by the rule.
    pub(crate) fn dense(&self, heads: usize, tokens: usize) -> Result<KeySets, KernelError> {
        let groups = tokens.div_ceil(FLEX);
        let end = |list: usize| tokens.min((list % groups + 1) * FLEX) as u32;
        let all: Vec<Vec<_>> = (0..heads * groups).map(|list| iter::once(0..end(list)).collect()).collect();
        KeySets::new(heads, FLEX, &all)
    }
}

/// The blocks of one head, as FlexPrefill sees them.
pub(crate) struct SparseBlocks<'a> {
    rule: FlexRule,
    /// Attention to each key, and over each distance, of the last [`FLEX`] rows.
    masses: [&'a [f32]; 2],
    /// The same of each block, a mean over the rows.
    pooled: [Vec<f32>; 2],
    query_aware: bool,
}

impl<'a> SparseBlocks<'a> {
    /// From the masses `[columns, offsets]`, and the attention of the mean of these rows to the mean key of each block.
    pub fn new(rule: FlexRule, masses: [&'a [f32]; 2], last: &[f32]) -> Self {
        let pooled = masses.map(pool);
        let query_aware = root_divergence(last, &pooled[0]) < rule.tau;
        Self { rule, masses, pooled, query_aware }
    }

    /// Whether blocks are kept by their means, too.
    pub fn query_aware(&self) -> bool {
        self.query_aware
    }

    /// Whether each `(query block, key block)` is kept, given, where the head is query-aware, the attention of each query block's mean
    /// to the mean keys of the blocks up to it, row after row.
    pub fn kept(&self, by_means: &[f32]) -> Vec<bool> {
        let (rule, count) = (self.rule, self.pooled[0].len());
        let least = rule.least(count);
        let lines = [0, 1].map(|i| {
            let mut pooled = self.pooled[i].clone();
            // The first column and the main diagonal come before all others.
            pooled[0] = f32::INFINITY;
            let budget = match self.query_aware {
                true => least,
                false => {
                    let shares = sorted(self.masses[i].iter().map(|mass| mass / FLEX as f32));
                    ((covered(shares, rule.limit(1.0)) + 1) / FLEX + 1).clamp(least, count)
                }
            };
            top_k(&pooled, budget)
        });
        let mut kept = vec![false; count * count];
        for row in 0..count {
            let [columns, offsets] = lines.each_ref().map(|lines| lines.iter().take_while(|line| **line <= row));
            columns.for_each(|column| kept[row * count + column] = true);
            offsets.for_each(|offset| kept[row * count + row - offset] = true);
        }
        if self.query_aware {
            let places: Vec<usize> = (0..count).flat_map(|row| row * count..=row * count + row).collect();
            let mut ranks = ranks(by_means);
            ranks.sort_unstable();
            let most = covered(ranks.iter().map(|rank| by_means[index(*rank)]), rule.limit(count as f32));
            ranks[..most].iter().for_each(|rank| kept[places[index(*rank)]] = true);
        }
        kept
    }
}

/// The mass of each block of keys or offsets, a mean over the rows it was summed over.
fn pool(masses: &[f32]) -> Vec<f32> {
    masses.chunks(FLEX).map(|block| block.iter().map(|mass| mass / FLEX as f32).sum()).collect()
}

/// How many masses sum to no more than `limit`, from the first on.
fn covered(masses: impl Iterator<Item = f32>, limit: f32) -> usize {
    // The last of many small masses would not change a sum of four bytes.
    let mut sum = 0.0;
    let within = |mass: &f32| {
        sum += f64::from(*mass);
        sum <= f64::from(limit)
    };
    masses.take_while(within).count()
}

/// Square root of the Jensen-Shannon divergence, natural logarithm.
fn root_divergence(a: &[f32], b: &[f32]) -> f32 {
    let term = |x: f32, mid: f32| if x > 0.0 { x * (x / mid).ln() } else { 0.0 };
    let sum: f32 = a.iter().zip(b).map(|(a, b)| term(*a, (a + b) / 2.0) + term(*b, (a + b) / 2.0)).sum();
    (sum / 2.0).max(0.0).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_small_masses_count() {
        let masses = iter::once(512.0).chain(iter::repeat_n(2e-5, 100_000));
        let most = covered(masses, 513.0);
        assert!((50_000..50_003).contains(&most), "{most}");
    }
}
