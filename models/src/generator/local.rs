//! A context on the device that steps are taken on: it gives its keys away, and computes nothing.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Range,
};

use asterism_kernels::{Ask, Backend, KvOps};
use asterism_plan::HiddenKeys;

use super::{
    answers::{PartialRows, ShardPartial},
    batch::PartAsk,
};
use crate::{EncodedShard, ModelError};

/// Context shards on the device that steps are taken on.
pub struct LocalContext<'a, B: Backend> {
    backend: &'a B,
    /// Shards of each part's context.
    contexts: Vec<Vec<&'a EncodedShard<B>>>,
    /// Keys that nobody sees, by part and block.
    hidden: BTreeMap<(usize, usize), Vec<Range<usize>>>,
}

impl<'a, B: Backend> LocalContext<'a, B> {
    /// Answers a step of one part from `shards`.
    pub fn new(backend: &'a B, shards: &'a [EncodedShard<B>]) -> Self {
        Self::of(backend, vec![shards.iter().collect()])
    }

    /// Answers each part of a step from the shards of its own context.
    pub fn of(backend: &'a B, contexts: Vec<Vec<&'a EncodedShard<B>>>) -> Self {
        Self { backend, contexts, hidden: BTreeMap::new() }
    }

    /// Without keys of a part's shards that have others in their place.
    ///
    /// # Panics
    /// For keys that a shard does not have.
    #[must_use]
    pub fn without(mut self, part: usize, hidden: &[HiddenKeys]) -> Self {
        if !hidden.is_empty() {
            let tokens: HashMap<usize, usize> =
                self.contexts[part].iter().map(|shard| (shard.block, shard.tokens)).collect();
            let of_shard = |hidden: &HiddenKeys| {
                let (block, tokens) = tokens.get_key_value(&(hidden.block as usize))?;
                Some(((part, *block), hidden.ranges(*tokens).expect("keys of a shard that there is")))
            };
            self.hidden.extend(hidden.iter().filter_map(of_shard));
        }
        self
    }

    /// Whether it has some of a part's context.
    pub(super) fn has(&self, part: usize) -> bool {
        self.contexts.get(part).is_some_and(|shards| !shards.is_empty())
    }

    /// A part's shards with their keys, where it hides none of them and layers are alike.
    pub(super) fn whole(&self, part: usize) -> Option<Vec<WholeShard<'a, B>>> {
        let hides = self.hidden.range((part, 0)..=(part, usize::MAX)).next().is_some();
        let shards = self.contexts.get(part).filter(|_| !hides)?;
        let whole = |shard: &&'a EncodedShard<B>| {
            let keys = self.backend.kv_len(shard.layers.first()?);
            let alike = shard.layers.iter().all(|kv| self.backend.kv_len(kv) == keys);
            alike.then_some((*shard, keys as u64))
        };
        shards.iter().map(whole).collect()
    }

    /// The device.
    pub(super) fn backend(&self) -> &'a B {
        self.backend
    }
}

/// A shard and its keys, as many in every layer.
pub(super) type WholeShard<'a, B> = (&'a EncodedShard<B>, u64);
/// A layer, and its window if it has one.
type LayerWindow = (usize, Option<usize>);

/// A shard and what is seen of it.
type Seen<'a, B> = (&'a EncodedShard<B>, u64, &'a <B as KvOps>::Kv, &'a [Range<usize>]);

impl<B: Backend> LocalContext<'_, B> {
    fn holes(&self, part: usize, block: usize) -> &[Range<usize>] {
        self.hidden.get(&(part, block)).map_or(&[], |holes| holes)
    }

    fn seen(&self, layer: usize, part: usize) -> impl Iterator<Item = Seen<'_, B>> {
        self.contexts[part].iter().map(move |shard| {
            let (kv, holes) = (&shard.layers[layer], self.holes(part, shard.block));
            let keys = self.backend.kv_len(kv) - holes.iter().map(Range::len).sum::<usize>();
            (*shard, keys as u64, kv, holes)
        })
    }

    /// A part's shards, as [`LocalContext::picked`] finds them in every layer.
    pub(super) fn shards(&self, part: usize) -> Result<Vec<(usize, u64)>, ModelError> {
        let seen = |layer| self.seen(layer, part).map(|(shard, keys, ..)| (shard.block, keys));
        let (shards, layers) =
            (seen(0).collect::<Vec<_>>(), self.contexts[part].first().map_or(0, |shard| shard.layers.len()));
        for layer in 1..layers {
            let other = seen(layer).zip(&shards).find(|(got, expected)| got != *expected);
            if let Some(((block, got), (_, expected))) = other {
                return Err(ModelError::KeyCount { layer, block, expected: *expected, got });
            }
        }
        Ok(shards)
    }

    /// What a part asks of some of its shards, by their places.
    pub(super) fn picked(&self, (layer, window): LayerWindow, ask: &PartAsk, places: &[usize]) -> Vec<Ask<'_, B::Kv>> {
        let of_shard = |place: &usize| {
            let (shard, rows) = (self.contexts[ask.part][*place], ask.rows.clone());
            let mask = ask.mask_within(window).beginning_at(shard.position as usize);
            Ask { kv: &shard.layers[layer], rows, mask, holes: self.holes(ask.part, shard.block) }
        };
        places.iter().map(of_shard).collect()
    }

    /// What each part asks of its shards, in the order of its answers.
    pub(super) fn asked(&self, (layer, window): LayerWindow, asks: &[PartAsk]) -> Vec<Ask<'_, B::Kv>> {
        let of_part = |ask: &PartAsk| {
            let (rows, mask) = (ask.rows.clone(), ask.mask_within(window));
            self.seen(layer, ask.part).map(move |(shard, _, kv, holes)| {
                let mask = mask.beginning_at(shard.position as usize);
                Ask { kv, rows: rows.clone(), mask, holes }
            })
        };
        asks.iter().flat_map(of_part).collect()
    }

    /// The shards of each part, to be attended to by the step.
    pub(super) fn answers(&self, (layer, window): LayerWindow, asks: &[PartAsk]) -> Vec<Vec<ShardPartial<'_, B>>> {
        let of_part = |ask: &PartAsk| {
            let mask = ask.mask_within(window);
            let partials = self.seen(layer, ask.part).map(|(shard, keys, kv, holes)| {
                let rows = PartialRows::Keys { kv, mask: mask.beginning_at(shard.position as usize), holes };
                ShardPartial { shards: vec![(shard.block, keys)], rows }
            });
            partials.collect()
        };
        asks.iter().map(of_part).collect()
    }
}
