//! AnchorAttention's second pass: which keys outside a group's anchor region its pooled queries select. Attends to nothing.

use std::ops::Range;

use super::super::compute::Compute;
use super::super::lanes::{Element, Extent, Kernel, Lanes, LeftOperand, PANEL, RightOperand, product};
use super::super::pool::{DisjointBuffer, Tasks, filled};
use super::cache::BLOCK_KEYS;
use super::scores::mean;
use super::selected::CausalSequence;
use super::sums::Raw;
use crate::{KernelError, KeySets, StripeRule};

/// Keys that a task searches.
const STRIPE_TASK: usize = 32 * BLOCK_KEYS;

/// The stripes of each head and group, given the rows' highest anchor scores `(query heads, tokens)`.
pub(in super::super) fn stripes<E: Element>(
    sequence: &CausalSequence<'_, E>,
    maxima: &[f32],
    rule: StripeRule,
    compute: &Compute,
) -> Result<KeySets, KernelError> {
    let (heads, groups) = (sequence.heads.query, sequence.tokens.div_ceil(rule.span()));
    let pooled = Pooled::new(sequence, maxima, rule, compute);
    let mut searches = Vec::new();
    for list in 0..heads * groups {
        let candidates = rule.candidates(list % groups);
        let starts = (candidates.start / BLOCK_KEYS * BLOCK_KEYS..candidates.end).step_by(STRIPE_TASK);
        searches.extend(starts.map(|start| {
            let keys = start.max(candidates.start)..candidates.end.min(start + STRIPE_TASK);
            Search { list, keys, found: Vec::new() }
        }));
    }
    let pairs: usize = searches.iter().map(|search| search.keys.len() * rule.step.min(pooled.blocks)).sum();
    let tasks = Tasks { count: searches.len(), cost: pairs * sequence.heads.dim };
    let shared = DisjointBuffer::new(&mut searches);
    let scratch = || vec![0.0; rule.step.min(pooled.blocks) * BLOCK_KEYS];
    compute.pool.each_with(tasks, scratch, |scores, task| {
        // SAFETY: each task has its own search.
        let search = unsafe { &mut *shared.at(task) };
        compute.set.run(StripeSearch { sequence, pooled: &pooled, rule, groups, search, scores });
    });
    let mut lists = vec![Vec::new(); heads * groups];
    for search in searches {
        lists[search.list].extend(search.found);
    }
    KeySets::new(heads, rule.span(), &lists)
}

/// Means over the rows of each query block.
struct Pooled {
    /// Query blocks of a head.
    blocks: usize,
    /// `(query heads, blocks, dim)`.
    queries: Vec<f32>,
    /// Of the highest anchor scores, `(query heads, blocks)`.
    anchors: Vec<f32>,
}

impl Pooled {
    fn new<E: Element>(sequence: &CausalSequence<'_, E>, maxima: &[f32], rule: StripeRule, compute: &Compute) -> Self {
        let (tokens, dim) = (sequence.tokens, sequence.heads.dim);
        let blocks = tokens.div_ceil(rule.block_q);
        let count = sequence.heads.query * blocks;
        let mut anchors = vec![0.0; count];
        let shared = DisjointBuffer::new(&mut anchors);
        let write = |queries: DisjointBuffer<f32>| {
            compute.pool.each(Tasks { count, cost: count * rule.block_q * dim }, |block| {
                let (head, first) = (block / blocks, block % blocks * rule.block_q);
                let rows = first..tokens.min(first + rule.block_q);
                let query = mean(sequence.queries(head, rows.clone()), dim);
                let anchor = &maxima[head * tokens..][rows];
                // SAFETY: this block of either is the task's.
                unsafe {
                    queries.at(block * dim).copy_from_nonoverlapping(query.as_ptr(), dim);
                    *shared.at(block) = anchor.iter().sum::<f32>() / anchor.len() as f32;
                }
            });
        };
        // SAFETY: the tasks cover every block.
        let queries = unsafe { filled(count * dim, write) };
        Self { blocks, queries, anchors }
    }
}

/// Some candidates of one head and group.
struct Search {
    list: usize,
    keys: Range<usize>,
    found: Vec<Range<u32>>,
}

struct StripeSearch<'a, E> {
    sequence: &'a CausalSequence<'a, E>,
    pooled: &'a Pooled,
    rule: StripeRule,
    groups: usize,
    search: &'a mut Search,
    /// `(query blocks of a group, BLOCK_KEYS)`.
    scores: &'a mut [f32],
}

impl<E: Element> Kernel for StripeSearch<'_, E> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Self { sequence, pooled, rule, groups, search, scores } = self;
        let (dim, natural) = (sequence.heads.dim, 1.0 / (sequence.heads.dim as f32).sqrt());
        let (head, group) = (search.list / groups, search.list % groups);
        let blocks = group * rule.step..pooled.blocks.min((group + 1).saturating_mul(rule.step));
        let first = head * pooled.blocks + blocks.start;
        let anchors = &pooled.anchors[first..][..blocks.len()];
        for start in (search.keys.start / BLOCK_KEYS * BLOCK_KEYS..search.keys.end).step_by(BLOCK_KEYS) {
            let keys = search.keys.start.max(start)..search.keys.end.min(start + BLOCK_KEYS);
            let extent = Extent { rows: blocks.len(), k: dim, panels: (keys.end - start).div_ceil(PANEL) };
            // SAFETY: the pooled queries are there, the panels of the keys in the cache, and the scores have room for all.
            unsafe {
                let left = LeftOperand { data: pooled.queries.as_ptr().add(first * dim), row: dim };
                let data = sequence.cached(head).keys.as_ptr().add(start * dim);
                let output = Raw { output: scores.as_mut_ptr(), stride: BLOCK_KEYS };
                product::<L, E, _>(extent, left, RightOperand { data, panel: dim * PANEL, row: PANEL }, &output);
            }
            let mut least = [f32::INFINITY; BLOCK_KEYS];
            for (anchor, scores) in anchors.iter().zip(scores.chunks_exact(BLOCK_KEYS)) {
                for (least, score) in least.iter_mut().zip(scores) {
                    let difference = anchor - score * natural;
                    *least = if difference < *least { difference } else { *least };
                }
            }
            for key in keys.filter(|key| least[key - start] <= rule.theta) {
                match search.found.last_mut() {
                    Some(last) if last.end as usize == key => last.end += 1,
                    _ => search.found.push(key as u32..key as u32 + 1),
                }
            }
        }
    }
}
