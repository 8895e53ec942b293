//! The order in which partials are merged: shards of a group first, then the groups. Whoever merged a group already, the bits
//! are the plan's.

use std::ops::Range;

use asterism_kernels::{Backend, Heads};

use super::{ContextKeys, context::ShardPartial};
use crate::ModelError;

/// A part's answers: the partials of each group, both in merge order.
pub struct Groups(Vec<Vec<ShardPartial>>);

impl Groups {
    /// Checks that every shard answered for the keys that the plan kept of it, once, and sorts the answers.
    ///
    /// # Errors
    /// [`ModelError::KeyCount`] with the first shard that did not.
    pub fn of(context: &ContextKeys, layer: usize, mut answers: Vec<ShardPartial>) -> Result<Self, ModelError> {
        let mut keys = vec![0_u64; context.shards.len()];
        for (block, got) in answers.iter().flat_map(|answer| &answer.shards) {
            let expected = context.shards.get(*block).map_or(0, |shard| shard.keys);
            match keys.get_mut(*block).filter(|keys| **keys == 0) {
                Some(keys) if *got == expected => *keys = *got,
                _ => return Err(ModelError::KeyCount { layer, block: *block, expected, got: *got }),
            }
        }
        let missing = context.shards.iter().zip(&keys).position(|(shard, keys)| shard.keys != *keys);
        if let Some(block) = missing {
            let (expected, got) = (context.shards[block].keys, 0);
            return Err(ModelError::KeyCount { layer, block, expected, got });
        }
        answers.sort_by_key(|answer| answer.shards.first().map(|shard| shard.0));
        let mut groups: Vec<(Option<u32>, Vec<ShardPartial>)> = Vec::new();
        for answer in answers {
            let group = answer.shards.first().and_then(|shard| context.shards.get(shard.0)).map(|shard| shard.group);
            match groups.iter_mut().find(|(known, _)| *known == group) {
                Some((_, partials)) => partials.push(answer),
                None => groups.push((group, vec![answer])),
            }
        }
        Ok(Self(groups.into_iter().map(|(_, partials)| partials).collect()))
    }

    /// Merges the groups of all parts that nobody merged.
    pub fn merged<'a, B: Backend>(
        backend: &B,
        heads: Heads,
        parts: impl Iterator<Item = &'a Self>,
    ) -> Result<Merged<'a>, ModelError> {
        let (mut unmerged, mut places, mut end) = (Vec::new(), Vec::new(), 0);
        for Self(groups) in parts {
            let mut place = |partials: &'a Vec<ShardPartial>| match &partials[..] {
                [whole] => Place::There(whole.rows.values()),
                partials => {
                    let start = end;
                    end += partials[0].rows.values().len();
                    unmerged.push(partials.iter().map(|partial| partial.rows.values()).collect());
                    Place::Merged(start..end)
                }
            };
            places.push(groups.iter().map(&mut place).collect());
        }
        let mut values = Vec::new();
        if !unmerged.is_empty() {
            backend.merge_rows(heads, &unmerged, &mut values)?;
        }
        Ok(Merged { values, places })
    }
}

/// Packed rows of every group of every part.
pub struct Merged<'a> {
    values: Vec<f32>,
    places: Vec<Vec<Place<'a>>>,
}

enum Place<'a> {
    There(&'a [f32]),
    Merged(Range<usize>),
}

impl Merged<'_> {
    /// Those of each part, in merge order.
    pub fn partials(&self) -> impl Iterator<Item = Vec<&[f32]>> {
        self.places.iter().map(|places| places.iter().map(|place| self.values_of(place)).collect())
    }

    fn values_of<'s>(&'s self, place: &'s Place<'_>) -> &'s [f32] {
        match place {
            Place::There(values) => values,
            Place::Merged(range) => &self.values[range.clone()],
        }
    }
}
