//! How much attention the last rows of each head pay to each key and to each distance. Keeps no weight.

use super::super::compute::Compute;
use super::super::lanes::{Element, Kernel, Lanes};
use super::super::pool::{DisjointBuffer, Tasks};
use super::block::{Tile, Visibility};
use super::cache::BLOCK_KEYS;
use super::selected::CausalSequence;

/// Sums over some rows of causal attention weights.
#[derive(Clone, Default)]
pub(in super::super) struct AttentionMasses {
    /// By key: `(tokens)`.
    pub columns: Vec<f32>,
    /// By how far the key lies before the row: `(tokens)`.
    pub offsets: Vec<f32>,
}

/// The masses of the last `rows` rows of each query head.
pub(in super::super) fn masses<E: Element>(
    sequence: &CausalSequence<'_, E>,
    rows: usize,
    compute: &Compute,
) -> Vec<AttentionMasses> {
    let heads = sequence.heads.query;
    let mut masses = vec![AttentionMasses::default(); heads];
    let shared = DisjointBuffer::new(&mut masses);
    let tasks = Tasks { count: heads, cost: 2 * heads * rows * sequence.tokens * sequence.heads.dim };
    let scratch = || (Tile::new(rows, 0), Tile::scores(rows));
    compute.pool.each_with(tasks, scratch, |(tile, scores), head| {
        // SAFETY: each task has its own head.
        let to = unsafe { &mut *shared.at(head) };
        compute.set.run(MassesTask { sequence, head, rows, tile, scores, to });
    });
    masses
}

struct MassesTask<'a, E> {
    sequence: &'a CausalSequence<'a, E>,
    head: usize,
    rows: usize,
    tile: &'a mut Tile,
    scores: &'a mut [f32],
    to: &'a mut AttentionMasses,
}

impl<E: Element> Kernel for MassesTask<'_, E> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Self { sequence, head, rows, tile, scores, to } = self;
        let (tokens, sizes, cached) = (sequence.tokens, sequence.sizes(), sequence.cached(head));
        let rows = tokens - rows..tokens;
        tile.start(
            sequence.queries(head, rows.clone()),
            rows.clone().map(|row| Visibility { end: row + 1, hidden: 0..0 }),
        );
        for first in (0..tokens).step_by(BLOCK_KEYS) {
            // SAFETY: the cache has the block, the scores room for the rows.
            unsafe { tile.weigh::<L, E>(sizes, &cached.at(first, first, sizes), scores) };
            tile.absorb::<L>(sizes);
        }
        let (mut columns, mut nearness) = (vec![0.0; tokens], vec![0.0; tokens]);
        for first in (0..tokens).step_by(BLOCK_KEYS) {
            // SAFETY: as above.
            unsafe { tile.weigh::<L, E>(sizes, &cached.at(first, first, sizes), scores) };
            for (i, row) in rows.clone().enumerate() {
                let factor = ((tile.block_max[i] - tile.max[i]) * sizes.scale()).exp2() / tile.sum[i];
                let weights = &scores[i * BLOCK_KEYS..][..tile.seen(i, first)];
                if weights.is_empty() {
                    continue;
                }
                for (sum, weight) in columns[first..].iter_mut().zip(weights) {
                    *sum += weight * factor;
                }
                for (sum, weight) in nearness[first + tokens - 1 - row..].iter_mut().zip(weights) {
                    *sum += weight * factor;
                }
            }
        }
        nearness.reverse();
        *to = AttentionMasses { columns, offsets: nearness };
    }
}
