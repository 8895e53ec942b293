//! What the estimates of MInference and FlexPrefill are made of, and the lists of keys that come of them. Attends to nothing.

use std::ops::Range;

use super::super::attention::{AttentionMasses, CausalSequence, masses, mean};
use super::super::compute::Compute;
use super::super::lanes::Element;
use super::super::pool::{DisjointBuffer, Tasks};
use crate::sparse::flex::{FLEX, SparseBlocks};
use crate::sparse::vertical_slash::{FOREMOST, SLASH, block_keys};
use crate::{FlexRule, KernelError, KeySets, VerticalSlashRule, top_k};

type Ranges = Vec<Range<u32>>;

/// MInference's keys: the columns and the offsets with the most attention.
pub(in super::super) fn vertical_slash<E: Element>(
    sequence: &CausalSequence<'_, E>,
    rule: VerticalSlashRule,
    compute: &Compute,
) -> Result<KeySets, KernelError> {
    let tokens = sequence.tokens;
    let mut masses = masses(sequence, tokens.min(SLASH), compute);
    let shared = DisjointBuffer::new(&mut masses);
    let cost = 8 * (rule.vertical.min(tokens) + rule.slash.min(tokens)) * tokens.div_ceil(SLASH);
    let lists = by_head(sequence, cost, compute, |head| {
        // SAFETY: each head's task has its own masses.
        let AttentionMasses { columns, offsets } = unsafe { &mut *shared.at(head) };
        let [columns, offsets] = [(columns, 0), (offsets, 1)].map(|(masses, i)| {
            masses.iter_mut().take(FOREMOST[i]).for_each(|mass| *mass = f32::INFINITY);
            top_k(masses, rule.kept()[i])
        });
        let blocks = (0..tokens).step_by(SLASH);
        blocks.map(|first| block_keys(&columns, &offsets, first + SLASH, tokens)).collect()
    });
    KeySets::new(sequence.heads.query, SLASH, &lists)
}

/// FlexPrefill's keys: blocks that cover a share of the attention.
pub(in super::super) fn flex_prefill<E: Element>(
    sequence: &CausalSequence<'_, E>,
    rule: FlexRule,
    compute: &Compute,
) -> Result<KeySets, KernelError> {
    let (heads, tokens) = (sequence.heads.query, sequence.tokens);
    let blocks = tokens.div_ceil(FLEX);
    let block = |block: usize| (block * FLEX) as u32..tokens.min((block + 1) * FLEX) as u32;
    if rule.is_dense(tokens) {
        return rule.dense(heads, tokens);
    }
    let masses = masses(sequence, FLEX, compute);
    let lists = by_head(sequence, 32 * tokens + blocks * blocks * sequence.heads.dim, compute, |head| {
        let means = BlockMeans { sequence, head, count: blocks };
        let (keys, AttentionMasses { columns, offsets }) = (means.keys(), &masses[head]);
        let last = mean(sequence.queries(head, tokens - FLEX..tokens), sequence.heads.dim);
        let chosen = SparseBlocks::new(rule, [columns, offsets], &attention(&last, &keys));
        let by_means = if chosen.query_aware() { means.attention(&keys) } else { Vec::new() };
        let kept = chosen.kept(&by_means);
        (0..blocks).map(|row| (0..=row).filter(|key| kept[row * blocks + key]).map(block).collect()).collect()
    });
    KeySets::new(heads, FLEX, &lists)
}

/// The means of the blocks of one head.
struct BlockMeans<'a, E> {
    sequence: &'a CausalSequence<'a, E>,
    head: usize,
    count: usize,
}

impl<E: Element> BlockMeans<'_, E> {
    fn rows(&self, block: usize) -> Range<usize> {
        block * FLEX..self.sequence.tokens.min((block + 1) * FLEX)
    }

    fn keys(&self) -> Vec<Vec<f32>> {
        let heads = self.sequence.heads;
        let key = |block| self.sequence.cache.mean_key(self.head / (heads.query / heads.kv), self.rows(block));
        (0..self.count).map(key).collect()
    }

    /// Of each block's mean query to the mean keys of the blocks up to it.
    fn attention(&self, keys: &[Vec<f32>]) -> Vec<f32> {
        let query = |block| mean(self.sequence.queries(self.head, self.rows(block)), self.sequence.heads.dim);
        (0..self.count).flat_map(|block| attention(&query(block), &keys[..=block])).collect()
    }
}

/// Softmax of one query's scaled scores.
fn attention(query: &[f32], keys: &[Vec<f32>]) -> Vec<f32> {
    let scale = 1.0 / (query.len() as f32).sqrt();
    let score = |key: &Vec<f32>| query.iter().zip(key).map(|(q, k)| q * k).sum::<f32>() * scale;
    let mut weights: Vec<f32> = keys.iter().map(score).collect();
    let max = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    weights.iter_mut().for_each(|weight| *weight = (*weight - max).exp());
    let sum: f32 = weights.iter().sum();
    weights.iter_mut().for_each(|weight| *weight /= sum);
    weights
}

/// Runs `work` for each query head, whose cost is given; its lists, head by head.
fn by_head<E: Element>(
    sequence: &CausalSequence<'_, E>,
    cost: usize,
    compute: &Compute,
    work: impl Fn(usize) -> Vec<Ranges> + Sync,
) -> Vec<Ranges> {
    let heads = sequence.heads.query;
    let mut lists = vec![Vec::new(); heads];
    let shared = DisjointBuffer::new(&mut lists);
    // SAFETY: each task writes its own head's lists.
    compute.pool.each(Tasks { count: heads, cost: heads * cost }, |head| unsafe { *shared.at(head) = work(head) });
    lists.into_iter().flatten().collect()
}
