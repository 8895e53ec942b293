//! Attention over listed keys on the tile unit: the keys of a group are copied side by side, and its rows see a prefix. Selects
//! nothing.

use half::bf16;

use super::super::amx;
use super::super::compute::Compute;
use super::super::pool::{DisjointBuffer, Tasks};
use super::selected::{ListedCount, SelectedOutput, pieces};
use crate::{Heads, KeySets};

/// Rows that share copied keys, at most.
const SHARED_ROWS: usize = 2048;

/// As `Sequence`, packed for the tile unit.
pub(in super::super) struct TiledSequence<'a> {
    pub q: &'a [bf16],
    pub cache: &'a amx::AmxCache,
    pub heads: Heads,
    pub tokens: usize,
}

impl TiledSequence<'_> {
    /// Attends to the listed keys, which must be the sequence's.
    pub(in super::super) fn attend(&self, keys: &KeySets, compute: &Compute) -> SelectedOutput {
        let Self { q, cache, heads: Heads { query, kv, dim }, tokens } = *self;
        let rows = query * tokens;
        assert!(q.len() == rows * dim && cache.len() == tokens && keys.end() <= tokens);
        assert!(keys.heads() == query && keys.groups() == tokens.div_ceil(keys.rows()));
        let (mut output, mut lse, mut maxima) = (vec![0.0; rows * dim], vec![0.0; rows], vec![0.0; rows]);
        let to = [&mut output, &mut lse, &mut maxima].map(|buffer| DisjointBuffer::new(buffer));
        let pieces = pieces(keys, tokens, SHARED_ROWS, compute.pool.threads());
        // Tile products are some ten times as fast as what costs are counted in.
        let tasks = Tasks { count: pieces.len(), cost: dim * keys.pairs(tokens) as usize / 5 };
        compute.pool.each(tasks, |task| {
            let (head, rows) = &pieces[task];
            let ranges = keys.ranges(*head, rows.start / keys.rows());
            let mut listed = ListedCount::new(ranges);
            let visible: Vec<usize> = rows.clone().map(|row| listed.up_to(row)).collect();
            let cache = cache.listed(head / (query / kv), ranges, visible.last().copied().unwrap_or(0));
            let first = head * tokens + rows.start;
            let call =
                amx::ListedRows { rows: &q[first * dim..][..rows.len() * dim], visible: &visible, cache: &cache };
            // SAFETY: these rows of the results are this task's alone.
            let [output, lse, maxima] = [(0, dim), (1, 1), (2, 1)].map(|(buffer, width): (usize, usize)| unsafe {
                std::slice::from_raw_parts_mut(to[buffer].at(first * width), rows.len() * width)
            });
            amx::attention_listed(&call, output, lse, maxima);
        });
        SelectedOutput { output, lse, maxima }
    }
}
