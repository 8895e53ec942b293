//! Where the context's keys and values live, as a step asks for them: behind a wire, or in this very process.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Range,
    sync::Arc,
};

use asterism_kernels::{Ask, Backend, Heads, KvOps, Lent, Mask};
use asterism_plan::HiddenKeys;

use super::Team;
use crate::{EncodedShard, ModelError};

/// The queries of all parts of a step in one layer.
pub struct LayerQueries<'a, B: Backend> {
    /// Layer.
    pub layer: usize,
    /// Its heads.
    pub heads: Heads,
    /// `(t, query heads dim)` in compute type.
    pub q: &'a B::Tensor,
}

/// The rows of one part of a step, as its context is asked.
#[derive(Clone, Debug)]
pub struct PartAsk {
    /// Which part of the step.
    pub part: usize,
    /// Its rows of the query tensor.
    pub rows: Range<usize>,
    /// Which of the context's keys they see.
    pub mask: Mask,
}

/// What a part gets: one answer a shard or a group, in any order, or why there is none.
pub type PartAnswer<B> = Result<Vec<ShardPartial<B>>, StepError>;

/// Why a part of a step did not get to its end. The other parts do.
#[derive(Debug)]
pub enum StepError {
    /// Not now: the same step may be taken again.
    Later,
    /// Never.
    Failed(ModelError),
}

/// The answer of one shard to the rows of a part, or of a whole merge group.
pub struct ShardPartial<B: Backend> {
    /// Places of the shards in the merge, and the keys that each attended to.
    pub shards: Vec<(usize, u64)>,
    /// Their partial of each row.
    pub rows: PartialRows<B>,
}

impl<B: Backend> Clone for ShardPartial<B> {
    fn clone(&self) -> Self {
        Self { shards: self.shards.clone(), rows: self.rows.clone() }
    }
}

/// The packed rows of a partial.
pub enum PartialRows<B: Backend> {
    /// In memory of the host.
    Host(PackedRows),
    /// On a device, perhaps on their way there: some rows of a lent tensor `(rows, packed row)`.
    Lent(Arc<Lent<B>>, Range<usize>),
}

impl<B: Backend> Clone for PartialRows<B> {
    fn clone(&self) -> Self {
        match self {
            Self::Host(rows) => Self::Host(rows.clone()),
            Self::Lent(lent, rows) => Self::Lent(lent.clone(), rows.clone()),
        }
    }
}

/// Packed rows ([`asterism_kernels::packed`]) within whatever holds them, such as a frame.
#[derive(Clone)]
pub struct PackedRows {
    values: Arc<dyn AsRef<[f32]> + Send + Sync>,
    range: Range<usize>,
}

impl PackedRows {
    /// The values `range` of `values`, which must have them.
    pub fn new(values: Arc<dyn AsRef<[f32]> + Send + Sync>, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= (*values).as_ref().len(), "a range within the values");
        Self { values, range }
    }

    /// The values.
    pub fn values(&self) -> &[f32] {
        &(*self.values).as_ref()[self.range.clone()]
    }
}

/// Shards in this very process, as the rows of a part find them.
pub enum Held<'a, B: Backend> {
    /// Keys on the device of the step.
    Keys {
        /// Place of the shard in the merge, and the keys of it that are seen.
        shard: (usize, u64),
        /// All its keys.
        kv: &'a B::Kv,
        /// Those that are not seen.
        holes: &'a [Range<usize>],
    },
    /// What another device makes of the rows, on its way.
    Rows {
        /// Places of the shards in the merge, and the keys that each attended to.
        shards: Vec<(usize, u64)>,
        /// Packed rows of several such, and which of them these are.
        rows: (Arc<Lent<B>>, Range<usize>),
    },
}

/// The shards of each part's context, in the order of the parts.
pub type HeldShards<'a, B> = Vec<Vec<Held<'a, B>>>;

/// Where the context's keys and values live. A step of one layer asks, computes its own part, then collects.
pub trait ContextAttention<B: Backend> {
    /// The shards of each part's context, where all of them are in this process: a step then attends to them together with
    /// its own keys, and neither asks nor collects.
    fn here(&self, queries: &LayerQueries<'_, B>, asks: &[PartAsk]) -> Result<Option<HeldShards<'_, B>>, ModelError> {
        let _ = (queries, asks);
        Ok(None)
    }
    /// The devices of this process that share a step of this part alone and so many rows, where they gain by it: they have all of
    /// the context, and the step neither asks nor collects.
    fn team(&self, part: usize, rows: usize) -> Option<Team<'_, B>> {
        let _ = (part, rows);
        None
    }
    /// Sends the rows of each part to every shard of the part's context. Whether some answers stay on devices: a step then keeps
    /// its own part there, too.
    fn ask(&mut self, queries: LayerQueries<'_, B>, asks: &[PartAsk]) -> Result<bool, ModelError>;
    /// What the parts of the last `ask` get, in their order.
    fn collect(&mut self) -> Result<Vec<PartAnswer<B>>, ModelError>;
    /// The answers last collected are merged with the query host's own part, or handed to the device to be. For whoever takes
    /// the time; does nothing unless told otherwise.
    fn merged(&mut self) {}
}

/// Context shards in this very process: what context hosts do, without the wire.
pub struct LocalContext<'a, B: Backend> {
    backend: &'a B,
    /// Shards of each part's context.
    contexts: Vec<Vec<&'a EncodedShard<B>>>,
    /// Keys that nobody sees, by part and block.
    hidden: BTreeMap<(usize, usize), Vec<Range<usize>>>,
    answers: Vec<PartAnswer<B>>,
}

impl<'a, B: Backend> LocalContext<'a, B> {
    /// Answers a step of one part from `shards`.
    pub fn new(backend: &'a B, shards: &'a [EncodedShard<B>]) -> Self {
        Self::of(backend, vec![shards.iter().collect()])
    }

    /// Answers each part of a step from the shards of its own context.
    pub fn of(backend: &'a B, contexts: Vec<Vec<&'a EncodedShard<B>>>) -> Self {
        Self { backend, contexts, hidden: BTreeMap::new(), answers: Vec::new() }
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

    /// The device.
    pub(super) fn backend(&self) -> &'a B {
        self.backend
    }
}

/// A shard and what is seen of it.
type Seen<'a, B> = ((usize, u64), &'a <B as KvOps>::Kv, &'a [Range<usize>]);

impl<B: Backend> LocalContext<'_, B> {
    fn holes(&self, part: usize, block: usize) -> &[Range<usize>] {
        self.hidden.get(&(part, block)).map_or(&[], |holes| holes)
    }

    fn seen(&self, layer: usize, part: usize) -> impl Iterator<Item = Seen<'_, B>> {
        self.contexts[part].iter().map(move |shard| {
            let (kv, holes) = (&shard.layers[layer], self.holes(part, shard.block));
            let keys = self.backend.kv_len(kv) - holes.iter().map(Range::len).sum::<usize>();
            ((shard.block, keys as u64), kv, holes)
        })
    }

    /// A part's shards, as [`LocalContext::picked`] finds them in every layer.
    pub(super) fn shards(&self, part: usize) -> Result<Vec<(usize, u64)>, ModelError> {
        let seen = |layer| self.seen(layer, part).map(|(shard, ..)| shard);
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

    /// What is asked of some of a part's shards, by their places.
    pub(super) fn picked(
        &self,
        (layer, part): (usize, usize),
        (rows, mask): (&Range<usize>, Mask),
        places: &[usize],
    ) -> Vec<Ask<'_, B::Kv>> {
        let ask = |place: &usize| {
            let shard = self.contexts[part][*place];
            Ask { kv: &shard.layers[layer], rows: rows.clone(), mask, holes: self.holes(part, shard.block) }
        };
        places.iter().map(ask).collect()
    }

    /// The shards of each part, and what their asks are, in order.
    #[allow(clippy::type_complexity)]
    pub(super) fn asked(&self, layer: usize, asks: &[PartAsk]) -> (Vec<Vec<(usize, u64)>>, Vec<Ask<'_, B::Kv>>) {
        let (mut shards, mut each) = (Vec::with_capacity(asks.len()), Vec::new());
        for PartAsk { part, rows, mask } in asks {
            let seen = self.seen(layer, *part);
            shards.push(
                seen.map(|(shard, kv, holes)| {
                    each.push(Ask { kv, rows: rows.clone(), mask: *mask, holes });
                    shard
                })
                .collect(),
            );
        }
        (shards, each)
    }

    /// As [`ContextAttention::here`].
    pub(super) fn keys(&self, layer: usize, asks: &[PartAsk]) -> HeldShards<'_, B> {
        let keys = |(shard, kv, holes)| Held::Keys { shard, kv, holes };
        asks.iter().map(|ask| self.seen(layer, ask.part).map(keys).collect()).collect()
    }
}

impl<B: Backend> ContextAttention<B> for LocalContext<'_, B> {
    fn here(&self, queries: &LayerQueries<'_, B>, asks: &[PartAsk]) -> Result<Option<HeldShards<'_, B>>, ModelError> {
        Ok(Some(self.keys(queries.layer, asks)))
    }

    fn ask(
        &mut self,
        LayerQueries { layer, heads, q }: LayerQueries<'_, B>,
        asks: &[PartAsk],
    ) -> Result<bool, ModelError> {
        let (shards, each) = self.asked(layer, asks);
        let mut packed = Vec::new();
        self.backend.attend_many(heads, q, &each, &mut packed)?;
        let (values, mut start) = (Arc::new(packed), 0);
        let mut answer = |(ask, shard): (&PartAsk, (usize, u64))| {
            let range = start..start + ask.rows.len() * heads.packed_row();
            start = range.end;
            ShardPartial { shards: vec![shard], rows: PartialRows::Host(PackedRows::new(values.clone(), range)) }
        };
        let of_part = |(ask, shards): (&PartAsk, Vec<(usize, u64)>)| {
            Ok(shards.into_iter().map(|shard| answer((ask, shard))).collect())
        };
        self.answers = asks.iter().zip(shards).map(of_part).collect();
        Ok(false)
    }

    fn collect(&mut self) -> Result<Vec<PartAnswer<B>>, ModelError> {
        Ok(std::mem::take(&mut self.answers))
    }
}
