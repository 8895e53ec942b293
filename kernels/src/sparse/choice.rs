//! What MInference and FlexPrefill keep, given sums of attention weights: the same for every device.

use crate::top_k::{index, ranks, sorted};
use crate::{FlexRule, VerticalSlashRule, top_k};

/// Rows of a block, and keys of a slash block, of the vertical-slash pattern; rows it is estimated from.
pub const SLASH: usize = 64;
/// Rows and keys of a block of FlexPrefill; rows it estimates from.
pub const FLEX: usize = 128;
/// Columns and offsets of the vertical-slash pattern that come before all others.
pub const FOREMOST: [usize; 2] = [30, 100];

impl VerticalSlashRule {
    /// Columns and offsets kept, where there are so many.
    pub fn kept(&self) -> [usize; 2] {
        [self.vertical.max(30), self.slash.max(50)]
    }
}

impl FlexRule {
    /// Whether every row of a sequence sees every key before it.
    pub fn is_dense(&self, tokens: usize) -> bool {
        tokens <= self.min_budget.max(256)
    }
}

/// The blocks of one head, as FlexPrefill sees them.
pub struct Blocks<'a> {
    rule: FlexRule,
    /// Attention to each key, and over each distance, of the last [`FLEX`] rows.
    masses: [&'a [f32]; 2],
    /// The same of each block, a mean over the rows.
    pooled: [Vec<f32>; 2],
    query_aware: bool,
}

impl<'a> Blocks<'a> {
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
        let least = rule.min_budget.div_ceil(FLEX).clamp(1, count);
        let lines = [0, 1].map(|i| {
            let mut pooled = self.pooled[i].clone();
            // The first column and the main diagonal come before all others.
            pooled[0] = f32::INFINITY;
            let budget = match self.query_aware {
                true => least,
                false => {
                    let shares = sorted(self.masses[i].iter().map(|mass| mass / FLEX as f32));
                    ((covered(shares, limit(rule.gamma, 1.0)) + 1) / FLEX + 1).clamp(least, count)
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
            let most = covered(ranks.iter().map(|rank| by_means[index(*rank)]), limit(rule.gamma, count as f32));
            ranks[..most].iter().for_each(|rank| kept[places[index(*rank)]] = true);
        }
        kept
    }
}

/// The mass of each block of keys or offsets, a mean over the rows it was summed over.
fn pool(masses: &[f32]) -> Vec<f32> {
    masses.chunks(FLEX).map(|block| block.iter().map(|mass| mass / FLEX as f32).sum()).collect()
}

/// The share `gamma` of a mass; the whole is never missed by rounding.
fn limit(gamma: f32, mass: f32) -> f32 {
    if gamma < 1.0 { gamma * mass } else { f32::INFINITY }
}

/// How many masses sum to no more than `limit`, from the first on.
fn covered(masses: impl Iterator<Item = f32>, limit: f32) -> usize {
    let mut sum = 0.0;
    let within = |mass: &f32| {
        sum += mass;
        sum <= limit
    };
    masses.take_while(within).count()
}

/// Square root of the Jensen-Shannon divergence, natural logarithm.
fn root_divergence(a: &[f32], b: &[f32]) -> f32 {
    let term = |x: f32, mid: f32| if x > 0.0 { x * (x / mid).ln() } else { 0.0 };
    let sum: f32 = a.iter().zip(b).map(|(a, b)| term(*a, (a + b) / 2.0) + term(*b, (a + b) / 2.0)).sum();
    (sum / 2.0).max(0.0).sqrt()
}
