//! Which of a layer's partials are merged with which, as the plans' trees say. Whoever merged some of them already, the bits are
//! the plan's. Knows partials by number.

use std::sync::Arc;

use asterism_kernels::Merging;
use asterism_plan::{KeptShard, MergeTree};

use crate::ModelError;

/// What shards answered: their places in the merge with the keys that each attended to, and the number of their partial.
pub type Answer = (Vec<(usize, u64)>, usize);

/// A part's answers, each at its place in the tree.
pub struct Answered {
    tree: Arc<MergeTree>,
    /// Numbers of partials, by node.
    there: Vec<Option<usize>>,
}

impl Answered {
    /// Checks that every shard answered for the keys that the plan kept of it, once, and that what was merged is so in the plan.
    ///
    /// # Errors
    /// [`ModelError::KeyCount`] with the first shard that did not, [`ModelError::MergedOtherwise`].
    pub fn of(
        shards: &[KeptShard],
        tree: &Arc<MergeTree>,
        (layer, answers): (usize, Vec<Answer>),
    ) -> Result<Self, ModelError> {
        let mut keys = vec![0_u64; shards.len()];
        for (block, got) in answers.iter().flat_map(|(shards, _)| shards.iter()) {
            let expected = shards.get(*block).map_or(0, |shard| shard.keys);
            match keys.get_mut(*block).filter(|keys| **keys == 0) {
                Some(keys) if *got == expected => *keys = *got,
                _ => return Err(ModelError::KeyCount { layer, block: *block, expected, got: *got }),
            }
        }
        let missing = shards.iter().zip(&keys).position(|(shard, keys)| shard.keys != *keys);
        if let Some(block) = missing {
            let (expected, got) = (shards[block].keys, 0);
            return Err(ModelError::KeyCount { layer, block, expected, got });
        }
        let mut there = vec![None; tree.nodes().len()];
        for (shards, partial) in answers {
            let blocks = || shards.iter().map(|shard| shard.0);
            match tree.find(blocks().map(|block| block as u32)) {
                Some(node) => there[node] = Some(partial),
                None => return Err(ModelError::MergedOtherwise { layer, blocks: blocks().collect() }),
            }
        }
        Ok(Self { tree: tree.clone(), there })
    }

    /// Nodes of the parts that nobody merged, up to what the query host merges with its own: by height, part and node.
    fn unmerged<'a>(parts: impl Iterator<Item = &'a Self>) -> Vec<(usize, usize, usize)> {
        let mut unmerged = Vec::new();
        for (part, Self { tree, there }) in parts.enumerate() {
            let mut open: Vec<usize> = tree.top().to_vec();
            while let Some(node) = open.pop() {
                let inputs = &tree.nodes()[node].inputs;
                if there[node].is_none() && !inputs.is_empty() {
                    open.extend(inputs);
                    unmerged.push((tree.nodes()[node].height, part, node));
                }
            }
        }
        unmerged.sort_unstable();
        unmerged
    }

    /// How `partials` of shards and of the parts themselves are merged: each part is here with its own.
    pub fn merging(parts: &[(&Self, usize)], partials: usize) -> Merging {
        let (mut merging, mut next) = (Merging::default(), partials);
        let mut places: Vec<Vec<Option<usize>>> = parts.iter().map(|(part, _)| part.there.clone()).collect();
        let found = |places: &[Option<usize>], nodes: &[usize]| nodes.iter().filter_map(|node| places[*node]).collect();
        let unmerged = Self::unmerged(parts.iter().map(|(part, _)| *part));
        for level in unmerged.chunk_by(|(one, ..), (other, ..)| one == other) {
            let inputs = |(_, part, node): &(usize, usize, usize)| -> Vec<usize> {
                found(&places[*part], &parts[*part].0.tree.nodes()[*node].inputs)
            };
            merging.levels.push(level.iter().map(inputs).collect());
            for (_, part, node) in level {
                places[*part][*node] = Some(next);
                next += 1;
            }
        }
        let top = |((part, own), places): (&(&Self, usize), &Vec<Option<usize>>)| -> Vec<usize> {
            let shards: Vec<usize> = found(places, part.tree.top());
            shards.into_iter().chain([*own]).collect()
        };
        merging.tops = parts.iter().zip(&places).map(top).collect();
        merging
    }
}
