//! What shards answered to a part, merged as the plan's tree says. Whoever merged some of it already, the bits are the plan's.

use std::{borrow::Cow, ops::Range, sync::Arc};

use asterism_kernels::{Backend, Heads, Merging};
use asterism_plan::{KeptShard, MergeTree};

use super::context::PackedRows;
use crate::ModelError;

/// What shards answered: their places in the merge with the keys that each attended to, and their rows, or where these are.
pub type Answer<'a, R> = (Cow<'a, [(usize, u64)]>, R);

/// A part's answers, each at its place in the tree.
pub struct Answered<R = PackedRows> {
    tree: Arc<MergeTree>,
    /// By node.
    there: Vec<Option<R>>,
}

impl<R: Clone> Answered<R> {
    /// Checks that every shard answered for the keys that the plan kept of it, once, and that what was merged is so in the plan.
    ///
    /// # Errors
    /// [`ModelError::KeyCount`] with the first shard that did not, [`ModelError::MergedOtherwise`].
    pub fn of(
        shards: &[KeptShard],
        tree: &Arc<MergeTree>,
        (layer, answers): (usize, Vec<Answer<'_, R>>),
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
        for (shards, rows) in answers {
            let blocks = || shards.iter().map(|shard| shard.0);
            match tree.find(blocks().map(|block| block as u32)) {
                Some(node) => there[node] = Some(rows),
                None => return Err(ModelError::MergedOtherwise { layer, blocks: blocks().collect() }),
            }
        }
        Ok(Self { tree: tree.clone(), there })
    }

    /// Nodes of the parts that nobody merged, up to what the query host merges with its own: by height, part and node.
    fn unmerged<'a>(parts: impl Iterator<Item = &'a Self>) -> Vec<(usize, usize, usize)>
    where
        R: 'a,
    {
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
}

impl Answered<usize> {
    /// How slots of a device are merged, `slots` of them answers of shards and of the parts themselves: each part is here with
    /// its own.
    pub fn merging(parts: &[(&Self, usize)], slots: usize) -> Merging {
        let (mut merging, mut next) = (Merging::default(), slots);
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

impl Answered {
    /// Merges what nobody merged, of all parts at a time, up to what the query host merges with its own.
    pub fn merged<'a, B: Backend>(
        backend: &B,
        heads: Heads,
        parts: impl Iterator<Item = &'a Self>,
    ) -> Result<Merged<'a>, ModelError> {
        let mut merged = Merged { parts: parts.map(|part| (part, Vec::new())).collect(), values: Vec::new() };
        for (Self { there, .. }, places) in &mut merged.parts {
            *places = there.iter().map(|rows| rows.as_ref().map(|rows| Place::There(rows.values()))).collect();
        }
        let unmerged = Self::unmerged(merged.parts.iter().map(|(part, _)| *part));
        for level in unmerged.chunk_by(|(one, ..), (other, ..)| one == other) {
            merged.merge(backend, heads, level)?;
        }
        Ok(merged)
    }
}

/// Packed rows of the nodes of every part.
pub struct Merged<'a> {
    /// Answers, and where the rows of each node are.
    parts: Vec<(&'a Answered, Vec<Option<Place<'a>>>)>,
    /// What was merged here, level by level.
    values: Vec<Vec<f32>>,
}

#[derive(Clone)]
enum Place<'a> {
    There(&'a [f32]),
    Merged(usize, Range<usize>),
}

impl Merged<'_> {
    /// Those that the query host merges with its own, of each part in order.
    pub fn partials(&self) -> impl Iterator<Item = Vec<&[f32]>> {
        let top = |(part, (answered, _)): (usize, &(&Answered, _))| self.rows(part, answered.tree.top());
        self.parts.iter().enumerate().map(top)
    }

    /// Merges some nodes of the same height.
    fn merge<B: Backend>(
        &mut self,
        backend: &B,
        heads: Heads,
        nodes: &[(usize, usize, usize)],
    ) -> Result<(), ModelError> {
        let inputs = |part: usize, node: usize| self.rows(part, &self.parts[part].0.tree.nodes()[node].inputs);
        let unmerged: Vec<Vec<&[f32]>> = nodes.iter().map(|(_, part, node)| inputs(*part, *node)).collect();
        let sizes: Vec<usize> = unmerged.iter().map(|rows| rows.first().map_or(0, |rows| rows.len())).collect();
        let mut values = Vec::new();
        backend.merge_rows(heads, &unmerged, &mut values)?;
        let (level, mut start) = (self.values.len(), 0);
        for ((_, part, node), size) in nodes.iter().zip(sizes) {
            self.parts[*part].1[*node] = Some(Place::Merged(level, start..start + size));
            start += size;
        }
        self.values.push(values);
        Ok(())
    }

    fn rows(&self, part: usize, nodes: &[usize]) -> Vec<&[f32]> {
        let rows = |node: &usize| match self.parts[part].1[*node].as_ref()? {
            Place::There(values) => Some(*values),
            Place::Merged(level, range) => Some(&self.values[*level][range.clone()]),
        };
        nodes.iter().filter_map(rows).collect()
    }
}
