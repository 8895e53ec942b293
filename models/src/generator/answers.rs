//! What a step asks of a context in a layer, and what it may get: keys, or partials wherever they are. Merges nothing.

use std::{ops::Range, sync::Arc};

use asterism_kernels::{Backend, Exported, Heads, Mask};

use crate::ModelError;

/// The queries of all parts of a step in one layer.
pub struct LayerQueries<'a, B: Backend> {
    /// Layer.
    pub layer: usize,
    /// The latest tokens that its rows see, their own included, where they do not see all.
    pub window: Option<usize>,
    /// Its heads.
    pub heads: Heads,
    /// `(t, query heads dim)` in compute type.
    pub q: &'a B::Tensor,
}

/// What a context answers a layer's queries with: for each part, in the order they were asked.
pub enum Answers<'a, B: Backend> {
    /// All of it is in this process: a step attends to its own keys together with the context's.
    Here(Vec<PartAnswer<'a, B>>),
    /// It was asked for elsewhere: a step attends to its own keys meanwhile.
    Coming {
        /// Whether some of it stays on devices: a step keeps the partials of its own keys there, too.
        on_devices: bool,
        /// Waits for it.
        collect: Box<dyn FnOnce() -> Result<Vec<PartAnswer<'a, B>>, ModelError> + 'a>,
    },
}

/// What a part gets: one answer a shard or a group, in any order, or why there is none.
pub type PartAnswer<'a, B> = Result<Vec<ShardPartial<'a, B>>, StepError>;

impl<'a, B: Backend> Answers<'a, B> {
    /// Partials of every part.
    pub fn here(parts: Vec<Vec<ShardPartial<'a, B>>>) -> Self {
        Self::Here(parts.into_iter().map(Ok).collect())
    }
}

/// Why a part of a step did not get to its end. The other parts do.
#[derive(Debug)]
pub enum StepError {
    /// Not now: the same step may be taken again.
    Later,
    /// Never.
    Failed(ModelError),
}

/// The answer of one shard to the rows of a part, or of a whole merge group.
pub struct ShardPartial<'a, B: Backend> {
    /// Places of the shards in the merge, and the keys that each attended to.
    pub shards: Vec<(usize, u64)>,
    /// Their partial of each row.
    pub rows: PartialRows<'a, B>,
}

/// The packed rows of a partial.
pub enum PartialRows<'a, B: Backend> {
    /// Not computed yet: the shard is on the device of the step.
    Keys {
        /// All its keys.
        kv: &'a B::Kv,
        /// Which of them the rows see.
        mask: Mask,
        /// Those that are not seen.
        holes: &'a [Range<usize>],
    },
    /// On a device, perhaps on their way there: some rows of a exported tensor `(rows, packed row)`.
    Exported(Arc<Exported<B>>, Range<usize>),
    /// In memory of the host.
    Host(PackedRows),
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
