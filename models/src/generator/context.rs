//! Where the context's keys and values live, as a step asks for them: behind a wire, or in this very process.

use std::{collections::BTreeMap, ops::Range, sync::Arc};

use asterism_kernels::{Ask, Backend, Heads, Mask};
use asterism_plan::HiddenKeys;

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
pub type PartAnswer = Result<Vec<ShardPartial>, StepError>;

/// Why a part of a step did not get to its end. The other parts do.
#[derive(Debug)]
pub enum StepError {
    /// Not now: the same step may be taken again.
    Later,
    /// Never.
    Failed(ModelError),
}

/// The answer of one shard to the rows of a part, or of a whole merge group.
#[derive(Clone)]
pub struct ShardPartial {
    /// Places of the shards in the merge, and the keys that each attended to.
    pub shards: Vec<(usize, u64)>,
    /// Their partial of each row.
    pub rows: PackedRows,
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

/// Where the context's keys and values live. A step of one layer asks, computes its own part, then collects.
pub trait ContextAttention<B: Backend> {
    /// Sends the rows of each part to every shard of the part's context.
    fn ask(&mut self, queries: LayerQueries<'_, B>, asks: &[PartAsk]) -> Result<(), ModelError>;
    /// What the parts of the last `ask` get, in their order.
    fn collect(&mut self) -> Result<Vec<PartAnswer>, ModelError>;
    /// The answers last collected are merged with the query host's own part, or handed to the device to be. For whoever takes
    /// the time; does nothing unless told otherwise.
    fn merged(&mut self) {}
}

/// Context shards in this very process: what context hosts do, without the wire.
pub struct LocalContext<'a, B: Backend> {
    backend: &'a B,
    /// Shards of each part's context.
    contexts: Vec<&'a [EncodedShard<B>]>,
    /// Keys that nobody sees, by block.
    hidden: BTreeMap<usize, Vec<Range<usize>>>,
    answers: Vec<PartAnswer>,
}

impl<'a, B: Backend> LocalContext<'a, B> {
    /// Answers a step of one part from `shards`.
    pub fn new(backend: &'a B, shards: &'a [EncodedShard<B>]) -> Self {
        Self::of(backend, vec![shards])
    }

    /// Answers each part of a step from the shards of its own context.
    pub fn of(backend: &'a B, contexts: Vec<&'a [EncodedShard<B>]>) -> Self {
        Self { backend, contexts, hidden: BTreeMap::new(), answers: Vec::new() }
    }

    /// Without keys of shards that have others in their place.
    ///
    /// # Panics
    /// For keys that a shard does not have.
    pub fn without(self, hidden: &[HiddenKeys]) -> Self {
        let ranges = |hidden: &HiddenKeys| {
            let (block, shard) = (hidden.block as usize, self.contexts.iter().flat_map(|shards| shards.iter()));
            let keys = shard.filter(|shard| shard.block == block).map(|shard| shard.tokens).max().unwrap_or(0);
            (block, hidden.ranges(keys).expect("keys of a shard that there is"))
        };
        Self { hidden: hidden.iter().map(ranges).collect(), ..self }
    }
}

impl<B: Backend> ContextAttention<B> for LocalContext<'_, B> {
    fn ask(
        &mut self,
        LayerQueries { layer, heads, q }: LayerQueries<'_, B>,
        asks: &[PartAsk],
    ) -> Result<(), ModelError> {
        let shards = |ask: &PartAsk| self.contexts[ask.part].iter();
        let pairs = asks.iter().flat_map(|ask| shards(ask).map(move |shard| (ask, shard)));
        let hidden = |block: usize| self.hidden.get(&block).map_or(0, |holes| holes.iter().map(Range::len).sum());
        let each: Vec<_> = pairs
            .map(|(ask, shard)| {
                let (rows, mask) = (ask.rows.clone(), ask.mask);
                Ask {
                    kv: &shard.layers[layer],
                    rows,
                    mask,
                    holes: self.hidden.get(&shard.block).map_or(&[], |holes| &holes[..]),
                }
            })
            .collect();
        let mut packed = Vec::new();
        self.backend.attend_many(heads, q, &each, &mut packed)?;
        let (values, mut start) = (Arc::new(packed), 0);
        let mut answer = |ask: &PartAsk, shard: &EncodedShard<B>| {
            let range = start..start + ask.rows.len() * heads.packed_row();
            start = range.end;
            let rows = PackedRows::new(values.clone(), range);
            let keys = self.backend.kv_len(&shard.layers[layer]) - hidden(shard.block);
            ShardPartial { shards: vec![(shard.block, keys as u64)], rows }
        };
        self.answers = asks.iter().map(|ask| Ok(shards(ask).map(|shard| answer(ask, shard)).collect())).collect();
        Ok(())
    }

    fn collect(&mut self) -> Result<Vec<PartAnswer>, ModelError> {
        Ok(std::mem::take(&mut self.answers))
    }
}
