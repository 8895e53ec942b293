//! The estimates of MInference and FlexPrefill: from the attention of the last rows to the keys of all. Attends to nothing.

use std::iter;
use std::ops::Range;

use super::super::attention::{Masses, Sequence, masses};
use super::super::compute::Compute;
use super::super::lanes::Element;
use super::super::pool::{Shared, Tasks};
use super::super::scores::mean;
use crate::{FlexRule, KernelError, KeySets, VerticalSlashRule, top_k};

/// Rows of a block, and keys of a slash block, of the vertical-slash pattern; rows it is estimated from.
const SLASH: usize = 64;
/// Rows and keys of a block of FlexPrefill; rows it estimates from.
const FLEX: usize = 128;

type Ranges = Vec<Range<u32>>;

/// MInference's keys: the columns and the offsets with the most attention.
pub(super) fn vertical_slash<E: Element>(
    sequence: &Sequence<'_, E>,
    rule: VerticalSlashRule,
    compute: &Compute,
) -> Result<KeySets, KernelError> {
    let tokens = sequence.tokens;
    let mut masses = masses(sequence, tokens.min(SLASH), compute);
    let shared = Shared::new(&mut masses);
    let cost = 8 * (rule.vertical.min(tokens) + rule.slash.min(tokens)) * tokens.div_ceil(SLASH);
    let lists = by_head(sequence, cost, compute, |head| {
        // SAFETY: each head's task has its own masses.
        let Masses { columns, offsets } = unsafe { &mut *shared.at(head) };
        columns.iter_mut().take(30).for_each(|mass| *mass = f32::INFINITY);
        offsets.iter_mut().take(100).for_each(|mass| *mass = f32::INFINITY);
        let (columns, offsets) = (top_k(columns, rule.vertical.max(30)), top_k(offsets, rule.slash.max(50)));
        let blocks = (0..tokens).step_by(SLASH);
        blocks.map(|first| block_keys(&columns, &offsets, first + SLASH, tokens)).collect()
    });
    KeySets::new(sequence.heads.query, SLASH, &lists)
}

/// Keys of the [`SLASH`] rows before `end`: blocks where offsets lead, joined while they touch, and columns between them.
fn block_keys(columns: &[usize], offsets: &[usize], end: usize, tokens: usize) -> Ranges {
    let mut spans: Vec<Range<usize>> = Vec::new();
    for offset in offsets[..offsets.partition_point(|offset| *offset < end)].iter().rev() {
        let last = (end - offset).max(SLASH);
        match spans.last_mut() {
            Some(span) if last <= span.end => {}
            Some(span) if last <= span.end + SLASH => span.end += SLASH,
            _ => spans.push(last - SLASH..last),
        }
    }
    let limit = end.min(tokens);
    let mut columns = columns.iter().copied().take_while(|column| *column < limit).peekable();
    let mut ranges = Vec::new();
    for span in spans {
        while let Some(column) = columns.next_if(|column| *column < span.start) {
            ranges.push(column as u32..column as u32 + 1);
        }
        while columns.next_if(|column| *column < span.end).is_some() {}
        ranges.push(span.start.min(limit) as u32..span.end.min(limit) as u32);
    }
    ranges.extend(columns.map(|column| column as u32..column as u32 + 1));
    ranges
}

/// FlexPrefill's keys: blocks that cover a share of the attention.
pub(super) fn flex_prefill<E: Element>(
    sequence: &Sequence<'_, E>,
    rule: FlexRule,
    compute: &Compute,
) -> Result<KeySets, KernelError> {
    let (heads, tokens) = (sequence.heads.query, sequence.tokens);
    let blocks = tokens.div_ceil(FLEX);
    let block = |block: usize| (block * FLEX) as u32..tokens.min((block + 1) * FLEX) as u32;
    if tokens <= rule.min_budget.max(256) {
        let lists: Vec<Ranges> =
            (0..heads * blocks).map(|list| iter::once(0..block(list % blocks).end).collect()).collect();
        return KeySets::new(heads, FLEX, &lists);
    }
    let masses = masses(sequence, FLEX, compute);
    let lists = by_head(sequence, 32 * tokens + blocks * blocks * sequence.heads.dim, compute, |head| {
        let kept = Blocks { sequence, rule, head, count: blocks }.kept(&masses[head]);
        (0..blocks).map(|row| (0..=row).filter(|key| kept[row * blocks + key]).map(block).collect()).collect()
    });
    KeySets::new(heads, FLEX, &lists)
}

/// The blocks of one head.
struct Blocks<'a, E> {
    sequence: &'a Sequence<'a, E>,
    rule: FlexRule,
    head: usize,
    count: usize,
}

impl<E: Element> Blocks<'_, E> {
    /// Whether each `(query block, key block)` is kept.
    fn kept(&self, masses: &Masses) -> Vec<bool> {
        let Self { sequence, rule, count, .. } = *self;
        let least = rule.min_budget.div_ceil(FLEX).clamp(1, count);
        let keys: Vec<Vec<f32>> = (0..count).map(|block| self.mean_key(block)).collect();
        let [mut columns, mut offsets] = [&masses.columns, &masses.offsets].map(|masses| pool(masses));
        let last = mean(sequence.queries(self.head, sequence.tokens - FLEX..sequence.tokens), sequence.heads.dim);
        let query_aware = root_divergence(&self.attention(&last, &keys), &columns) < rule.tau;
        // The first column and the main diagonal come before all others.
        (columns[0], offsets[0]) = (f32::INFINITY, f32::INFINITY);
        let budget = |masses: &[f32]| match query_aware {
            true => least,
            false => {
                let shares = masses.iter().map(|mass| mass / FLEX as f32).collect();
                ((covering(shares, limit(rule.gamma, 1.0)).len() + 1) / FLEX + 1).clamp(least, count)
            }
        };
        let columns = top_k(&columns, budget(&masses.columns));
        let offsets = top_k(&offsets, budget(&masses.offsets));
        let mut kept = vec![false; count * count];
        for row in 0..count {
            columns.iter().filter(|column| **column <= row).for_each(|column| kept[row * count + column] = true);
            offsets.iter().filter(|offset| **offset <= row).for_each(|offset| kept[row * count + row - offset] = true);
        }
        if query_aware {
            self.keep_by_means(&keys, &mut kept);
        }
        kept
    }

    /// Keeps the pairs of blocks whose mean queries and keys attend most.
    fn keep_by_means(&self, keys: &[Vec<f32>], kept: &mut [bool]) {
        let Self { sequence, rule, count, .. } = *self;
        let (mut weights, mut places) = (Vec::new(), Vec::new());
        for row in 0..count {
            let rows = row * FLEX..sequence.tokens.min((row + 1) * FLEX);
            let query = mean(sequence.queries(self.head, rows), sequence.heads.dim);
            weights.extend(self.attention(&query, &keys[..=row]));
            places.extend(row * count..=row * count + row);
        }
        for at in covering(weights, limit(rule.gamma, count as f32)) {
            kept[places[at]] = true;
        }
    }

    fn mean_key(&self, block: usize) -> Vec<f32> {
        let (heads, tokens) = (self.sequence.heads, self.sequence.tokens);
        self.sequence.cache.mean_key(self.head / (heads.query / heads.kv), block * FLEX..tokens.min((block + 1) * FLEX))
    }

    /// Softmax of one query's scaled scores.
    fn attention(&self, query: &[f32], keys: &[Vec<f32>]) -> Vec<f32> {
        let scale = 1.0 / (query.len() as f32).sqrt();
        let score = |key: &Vec<f32>| query.iter().zip(key).map(|(q, k)| q * k).sum::<f32>() * scale;
        let mut weights: Vec<f32> = keys.iter().map(score).collect();
        let max = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        weights.iter_mut().for_each(|weight| *weight = (*weight - max).exp());
        let sum: f32 = weights.iter().sum();
        weights.iter_mut().for_each(|weight| *weight /= sum);
        weights
    }
}

/// Runs `work` for each query head, whose cost is given; its lists, head by head.
fn by_head<E: Element>(
    sequence: &Sequence<'_, E>,
    cost: usize,
    compute: &Compute,
    work: impl Fn(usize) -> Vec<Ranges> + Sync,
) -> Vec<Ranges> {
    let heads = sequence.heads.query;
    let mut lists = vec![Vec::new(); heads];
    let shared = Shared::new(&mut lists);
    // SAFETY: each task writes its own head's lists.
    compute.pool.each(Tasks { count: heads, cost: heads * cost }, |head| unsafe { *shared.at(head) = work(head) });
    lists.into_iter().flatten().collect()
}

/// The mass of each block of keys or offsets, a mean over the rows it was summed over.
fn pool(masses: &[f32]) -> Vec<f32> {
    masses.chunks(FLEX).map(|block| block.iter().map(|mass| mass / FLEX as f32).sum()).collect()
}

/// The share `gamma` of a mass; the whole is never missed by rounding.
fn limit(gamma: f32, mass: f32) -> f32 {
    if gamma < 1.0 { gamma * mass } else { f32::INFINITY }
}

/// The indices of the largest masses that sum to no more than `limit`.
fn covering(masses: Vec<f32>, limit: f32) -> Vec<usize> {
    let mut order: Vec<usize> = (0..masses.len()).collect();
    order.sort_unstable_by(|a, b| masses[*b].total_cmp(&masses[*a]).then(a.cmp(b)));
    let mut sum = 0.0;
    let count = order.iter().take_while(|at| {
        sum += masses[**at];
        sum <= limit
    });
    let count = count.count();
    order.truncate(count);
    order
}

/// Square root of the Jensen-Shannon divergence, natural logarithm.
fn root_divergence(a: &[f32], b: &[f32]) -> f32 {
    let term = |x: f32, mid: f32| if x > 0.0 { x * (x / mid).ln() } else { 0.0 };
    let sum: f32 = a.iter().zip(b).map(|(a, b)| term(*a, (a + b) / 2.0) + term(*b, (a + b) / 2.0)).sum();
    (sum / 2.0).max(0.0).sqrt()
}
