//! The slow, obvious CPU version of key selection: stripes, vertical-slash, FlexPrefill, key scores. Merges nothing.

use super::{AttentionShape, dot, masked_attention};
use crate::{FlexRule, Heads, KeySets, Mask, StripeRule, VerticalSlashRule};

/// One causal sequence: `q (query heads, tokens, dim)`, `k, v (kv heads, tokens, dim)`.
#[derive(Clone, Copy, Debug)]
pub struct ReferenceSequence<'a> {
    /// Queries.
    pub q: &'a [f32],
    /// Keys.
    pub k: &'a [f32],
    /// Values.
    pub v: &'a [f32],
    /// Head counts and size.
    pub heads: Heads,
    /// Tokens.
    pub tokens: usize,
}

/// Keys selected by an estimate.
#[derive(Clone, Debug)]
pub struct Estimate {
    /// The selection.
    pub keys: KeySets,
    /// How far the nearest decision was from falling the other way; rounding may turn those near 0.
    pub gap: f32,
}

impl ReferenceSequence<'_> {
    fn shape(&self) -> AttentionShape {
        AttentionShape { heads: self.heads, queries: self.tokens, keys: self.tokens, mask: Mask::Causal }
    }

    fn query(&self, head: usize, row: usize) -> &[f32] {
        &self.q[(head * self.tokens + row) * self.heads.dim..][..self.heads.dim]
    }

    fn key(&self, head: usize, key: usize) -> &[f32] {
        let head = head / (self.heads.query / self.heads.kv);
        &self.k[(head * self.tokens + key) * self.heads.dim..][..self.heads.dim]
    }

    fn scale(&self) -> f32 {
        1.0 / (self.heads.dim as f32).sqrt()
    }

    fn score(&self, head: usize, row: usize, key: usize) -> f32 {
        dot(self.query(head, row), self.key(head, key)) * self.scale()
    }

    /// Weights of the last `rows` rows, `(rows, tokens)`.
    fn last_weights(&self, head: usize, rows: usize) -> Vec<Vec<f32>> {
        let first = self.tokens - rows;
        let of_row = |row: usize| {
            let scores = (0..self.tokens).map(|key| match key <= row {
                true => self.score(head, row, key),
                false => f32::NEG_INFINITY,
            });
            softmax(&scores.collect::<Vec<_>>())
        };
        (first..self.tokens).map(of_row).collect()
    }

    /// Sums of weights by key, and by how far the key lies before the row.
    fn masses(&self, head: usize, rows: usize) -> [Vec<f32>; 2] {
        let (mut columns, mut offsets) = (vec![0.0; self.tokens], vec![0.0; self.tokens]);
        for (i, weights) in self.last_weights(head, rows).iter().enumerate() {
            let row = self.tokens - rows + i;
            for (key, weight) in weights[..=row].iter().enumerate() {
                columns[key] += weight;
                offsets[row - key] += weight;
            }
        }
        [columns, offsets]
    }

    /// Means of the rows of each block of `block`, of queries and of keys.
    fn block_means(&self, head: usize, block: usize) -> [Vec<Vec<f32>>; 2] {
        let blocks = || (0..self.tokens).step_by(block).map(|first| first..self.tokens.min(first + block));
        [
            blocks().map(|rows| mean(rows.map(|row| self.query(head, row)))).collect(),
            blocks().map(|keys| mean(keys.map(|key| self.key(head, key)))).collect(),
        ]
    }
}

/// Attention over the listed keys that do not come after the row: output and log-sum-exp.
pub fn selected_attention(sequence: ReferenceSequence<'_>, keys: &KeySets) -> (Vec<f32>, Vec<f32>) {
    let ReferenceSequence { q, k, v, .. } = sequence;
    let listed = listed(keys, sequence.tokens);
    let sees = |head: usize, row: usize, key: usize| {
        key <= row && listed[(head * keys.groups() + row / keys.rows()) * sequence.tokens + key]
    };
    masked_attention([q, k, v], sequence.shape(), sees)
}

/// Whether each key of `tokens` is listed, `(heads, groups, tokens)`.
fn listed(keys: &KeySets, tokens: usize) -> Vec<bool> {
    let mut listed = vec![false; keys.heads() * keys.groups() * tokens];
    for (list, listed) in listed.chunks_exact_mut(tokens.max(1)).enumerate() {
        keys.keys(list / keys.groups(), list % keys.groups()).for_each(|key| listed[key as usize] = true);
    }
    listed
}

/// `q.k` averaged over the rows of `q (query heads, m, dim)` and the query heads of each KV head: `(kv heads, t)`.
pub fn key_scores(q: &[f32], k: &[f32], heads: Heads) -> Vec<f32> {
    let Heads { query, kv, dim } = heads;
    let (rows, keys) = (q.len() / kv / dim, k.len() / kv / dim);
    assert!(query.is_multiple_of(kv));
    let score = |head: usize, key: usize| {
        let key = &k[(head * keys + key) * dim..][..dim];
        q[head * rows * dim..][..rows * dim].chunks_exact(dim).map(|q| dot(q, key)).sum::<f32>() / rows as f32
    };
    (0..kv).flat_map(|head| (0..keys).map(move |key| (head, key))).map(|(head, key)| score(head, key)).collect()
}

/// The least difference of any of a group's query blocks for each key, `(query heads, groups, tokens)`; infinite for keys that
/// are no candidates. A key is a stripe iff its difference is at most `theta` (AnchorAttention, equation 2).
pub fn stripe_margins(sequence: ReferenceSequence<'_>, rule: StripeRule) -> Vec<f32> {
    let (tokens, span) = (sequence.tokens, rule.step * rule.block_q);
    let mut margins = Vec::new();
    for head in 0..sequence.heads.query {
        for window in (0..tokens).step_by(span) {
            let mut least = vec![f32::INFINITY; tokens];
            for first in (window..tokens.min(window + span)).step_by(rule.block_q) {
                let rows = first..tokens.min(first + rule.block_q);
                let highest = |row: usize| {
                    let region = (0..=row).filter(|key| *key < rule.block_kv || *key >= window);
                    region.map(|key| sequence.score(head, row, key)).fold(f32::NEG_INFINITY, f32::max)
                };
                let anchor = rows.clone().map(highest).sum::<f32>() / rows.len() as f32;
                let query = mean(rows.map(|row| sequence.query(head, row)));
                for (key, least) in least.iter_mut().enumerate().take(window).skip(rule.block_kv) {
                    *least = least.min(anchor - dot(&query, sequence.key(head, key)) * sequence.scale());
                }
            }
            margins.extend(least);
        }
    }
    margins
}

/// AnchorAttention: output and log-sum-exp, and the stripes.
pub fn stripe_attention(sequence: ReferenceSequence<'_>, rule: StripeRule) -> ((Vec<f32>, Vec<f32>), KeySets) {
    let (tokens, span) = (sequence.tokens, rule.step * rule.block_q);
    let margins = stripe_margins(sequence, rule);
    let selected = |(list, margins): (usize, &[f32])| {
        let window = list % tokens.div_ceil(span) * span;
        (rule.block_kv..window).filter(|key| margins[*key] <= rule.theta).map(|key| key as u32).collect()
    };
    let lists: Vec<Vec<u32>> = margins.chunks_exact(tokens.max(1)).enumerate().map(selected).collect();
    let stripes = KeySets::from_keys(sequence.heads.query, span, &lists).expect("keys were listed in order");
    let listed = listed(&stripes, tokens);
    let sees = |head: usize, row: usize, key: usize| {
        let anchor = key < rule.block_kv || key >= row / span * span;
        key <= row && (anchor || listed[(head * stripes.groups() + row / span) * tokens + key])
    };
    (masked_attention([sequence.q, sequence.k, sequence.v], sequence.shape(), sees), stripes)
}

/// MInference: columns and offsets with the most attention of the last 64 rows, the first 30 and the nearest 100 foremost.
/// For each 64 rows, offsets become 64-wide blocks of keys: the first ends where the largest offset of the last row
/// does, and the next follow without a gap while offsets touch them.
pub fn vertical_slash(sequence: ReferenceSequence<'_>, rule: VerticalSlashRule) -> Estimate {
    let tokens = sequence.tokens;
    let (mut lists, mut gap) = (Vec::new(), f32::INFINITY);
    for head in 0..sequence.heads.query {
        let [mut columns, mut offsets] = sequence.masses(head, tokens.min(64));
        columns.iter_mut().take(30).for_each(|mass| *mass = f32::INFINITY);
        offsets.iter_mut().take(100).for_each(|mass| *mass = f32::INFINITY);
        let (columns, column_gap) = top(&columns, rule.vertical.max(30));
        let (mut offsets, offset_gap) = top(&offsets, rule.slash.max(50));
        offsets.sort_unstable();
        gap = gap.min(column_gap).min(offset_gap);
        for end in (0..tokens).step_by(64).map(|first| first + 64) {
            let mut seen = vec![false; end];
            let mut covered: Option<usize> = None;
            for offset in offsets.iter().rev().filter(|offset| **offset < end) {
                let last = (end - offset).max(64);
                let start = match covered {
                    Some(covered) if last <= covered => continue,
                    Some(covered) if last <= covered + 64 => covered,
                    _ => last - 64,
                };
                covered = Some(start + 64);
                (start..end.min(start + 64)).for_each(|key| seen[key] = true);
            }
            columns.iter().filter(|column| **column < end).for_each(|column| seen[*column] = true);
            lists.push((0..end.min(tokens)).filter(|key| seen[*key]).map(|key| key as u32).collect::<Vec<_>>());
        }
    }
    let keys = KeySets::from_keys(sequence.heads.query, 64, &lists).expect("keys were listed in order");
    Estimate { keys, gap }
}

/// FlexPrefill, by blocks of 128.
pub fn flex_prefill(sequence: ReferenceSequence<'_>, rule: FlexRule) -> Estimate {
    let (tokens, blocks) = (sequence.tokens, sequence.tokens.div_ceil(128));
    let (mut lists, mut gap) = (Vec::new(), f32::INFINITY);
    for head in 0..sequence.heads.query {
        let mut seen = vec![vec![tokens <= rule.min_budget.max(256); blocks]; blocks];
        if tokens > rule.min_budget.max(256) {
            gap = gap.min(select_blocks(sequence, rule, head, &mut seen));
        }
        for (row, seen) in seen.iter().enumerate() {
            let keys = (0..tokens.min(128 * (row + 1))).filter(|key| seen[key / 128]);
            lists.push(keys.map(|key| key as u32).collect::<Vec<_>>());
        }
    }
    let keys = KeySets::from_keys(sequence.heads.query, 128, &lists).expect("keys were listed in order");
    Estimate { keys, gap }
}

/// Marks the `(query block, key block)` that a head keeps; returns the gap.
fn select_blocks(sequence: ReferenceSequence<'_>, rule: FlexRule, head: usize, seen: &mut [Vec<bool>]) -> f32 {
    let blocks = seen.len();
    let least = rule.min_budget.div_ceil(128).clamp(1, blocks);
    let masses = sequence.masses(head, 128).map(|mass| mass.iter().map(|m| m / 128.0).collect::<Vec<_>>());
    let mut pooled = masses.each_ref().map(|mass| mass.chunks(128).map(|b| b.iter().sum()).collect::<Vec<f32>>());
    let last = mean((sequence.tokens - 128..sequence.tokens).map(|row| sequence.query(head, row)));
    let [queries, keys] = sequence.block_means(head, 128);
    let by_means = |query: &[f32], keys: &[Vec<f32>]| {
        softmax(&keys.iter().map(|key| dot(query, key) * sequence.scale()).collect::<Vec<_>>())
    };
    let divergence = root_divergence(&by_means(&last, &keys), &pooled[0]);
    let mut gap = (divergence - rule.tau).abs();
    let query_aware = divergence < rule.tau;
    pooled.iter_mut().for_each(|mass| mass[0] = f32::INFINITY);
    for (slash, (mass, pooled)) in masses.iter().zip(&pooled).enumerate() {
        let needed = |by: f32| match query_aware {
            true => least,
            false => ((covering(mass, limit(rule.gamma, 1.0) + by) + 1) / 128 + 1).clamp(least, blocks),
        };
        if needed(-1e-4) != needed(1e-4) {
            gap = 0.0;
        }
        let (kept, top_gap) = top(pooled, needed(0.0));
        gap = gap.min(top_gap);
        for (row, seen) in seen.iter_mut().enumerate() {
            for kept in kept.iter().filter(|kept| **kept <= row) {
                seen[if slash == 1 { row - kept } else { *kept }] = true;
            }
        }
    }
    if query_aware {
        let rows: Vec<Vec<f32>> = (0..blocks).map(|row| by_means(&queries[row], &keys[..=row])).collect();
        let flat: Vec<f32> = rows.concat();
        let count = |by: f32| covering(&flat, limit(rule.gamma, blocks as f32) + by);
        let (kept, top_gap) = top(&flat, count(0.0));
        gap = gap.min(top_gap);
        let places: Vec<_> = (0..blocks).flat_map(|row| (0..=row).map(move |key| (row, key))).collect();
        kept.iter().map(|at| places[*at]).for_each(|(row, key)| seen[row][key] = true);
        if count(-1e-4) != count(1e-4) {
            gap = 0.0;
        }
    }
    gap
}

/// The share `gamma` of a total mass; the whole is never missed by rounding.
fn limit(gamma: f32, total: f32) -> f32 {
    if gamma < 1.0 { gamma * total } else { f32::INFINITY }
}

/// How many of the largest masses sum to no more than `limit`.
fn covering(masses: &[f32], limit: f32) -> usize {
    let mut sorted = masses.to_vec();
    sorted.sort_by(|a, b| b.total_cmp(a));
    let sum = sorted.iter().scan(0.0, |sum, mass| {
        *sum += mass;
        Some(*sum)
    });
    sum.take_while(|sum| *sum <= limit).count()
}

/// The indices of the `count` largest, ties to the first, and the relative gap between the last kept and the first left.
fn top(masses: &[f32], count: usize) -> (Vec<usize>, f32) {
    let mut order: Vec<usize> = (0..masses.len()).collect();
    order.sort_by(|a, b| masses[*b].total_cmp(&masses[*a]));
    let gap = match order.get(count) {
        Some(left) if count > 0 => {
            let (kept, left) = (masses[order[count - 1]], masses[*left]);
            // Forced ones all have the same mass, in any arithmetic.
            if kept == f32::INFINITY { f32::INFINITY } else { (kept - left) / kept.max(f32::MIN_POSITIVE) }
        }
        _ => f32::INFINITY,
    };
    order.truncate(count);
    (order, gap)
}

/// Square root of the Jensen-Shannon divergence, natural logarithm.
fn root_divergence(a: &[f32], b: &[f32]) -> f32 {
    let term = |x: f32, other: f32| if x > 0.0 { x * (2.0 * x / (x + other)).ln() } else { 0.0 };
    let sum: f32 = a.iter().zip(b).map(|(a, b)| term(*a, *b) + term(*b, *a)).sum();
    (0.5 * sum).max(0.0).sqrt()
}

fn softmax(scores: &[f32]) -> Vec<f32> {
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f32 = scores.iter().map(|score| (score - max).exp()).sum();
    scores.iter().map(|score| (score - max).exp() / sum).collect()
}

fn mean<'a>(rows: impl ExactSizeIterator<Item = &'a [f32]>) -> Vec<f32> {
    let count = rows.len() as f32;
    let mut sum = Vec::new();
    for row in rows {
        sum.resize(row.len(), 0.0);
        sum.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
    }
    sum.into_iter().map(|sum| sum / count).collect()
}
