//! What both sides of a host compute with: the model that it loaded, what goes together through its layers, and what it hands
//! over as it lies on its device. Computes nothing.

use std::{sync::Arc, time::Duration};

use asterism_kernels::Backend;
use asterism_models::{Decoder, HeadsFiles, ModelDigest, ModelError, Tokenizer};

use crate::cores::Cores;

/// A loaded model: the layers a role needs, and the tokenizer.
pub struct LoadedModel<B: Backend> {
    /// The decoder.
    pub decoder: Arc<Decoder<B>>,
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// Which model it is.
    pub digest: ModelDigest,
    /// Where this host finds retaining heads, by the names that orders use.
    pub heads: HeadsFiles,
    /// What it computes with.
    pub cores: Arc<dyn Cores>,
}

/// Loads a model; runs on a thread of its own after the host has joined.
pub type ModelLoader<B> = Box<dyn FnOnce() -> Result<LoadedModel<B>, ModelError> + Send>;

/// Where a side of the host reports events; may be called from any thread.
pub(crate) type ReportSink<E> = Arc<dyn Fn(E) + Send + Sync>;

/// What goes together through the layers of a host; what is not said is as suits its device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Batching {
    /// How long a step of what it generates may take.
    pub token_interval: Option<Duration>,
    /// Rows of short contexts that are encoded together, at most; 0: each alone.
    pub pack_rows: Option<usize>,
}

impl Batching {
    /// How long a step may take on a device.
    pub(crate) fn interval<B: Backend>(self, backend: &B) -> Duration {
        self.token_interval.unwrap_or(if backend.queues() { STEP_OF_QUEUE } else { STEP_OF_CPU })
    }

    /// Rows that are encoded together on a device, which may like fewer at once.
    pub(crate) fn rows<B: Backend>(self, backend: &B) -> usize {
        self.pack_rows.unwrap_or(backend.linear_rows().min(MOST_PACKED_ROWS))
    }
}

/// How long a step takes on CPUs, where rows cost the most of it, and on devices that work off a queue.
const STEP_OF_CPU: Duration = Duration::from_millis(25);
const STEP_OF_QUEUE: Duration = Duration::from_millis(50);
/// More rows together would make a work that is not short.
const MOST_PACKED_ROWS: usize = 4096;

/// Which tensors go to a host of the same process as they lie on their device, where the link can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceHandover {
    /// None: their bytes do.
    Nothing,
    /// What shards pass each other.
    Parcels,
    /// The queries of phase 2 and their answers, too.
    Everything,
}

impl DeviceHandover {
    /// What suits a device: values of one that queues its work have to be waited for.
    pub(crate) fn of<B: Backend>(backend: &B) -> Self {
        if backend.queues() { Self::Everything } else { Self::Parcels }
    }
}

/// How often a device that is full is asked again, and how long after: a context that does not fit leaves it soon.
pub(crate) const CROWDED: usize = 40;
pub(crate) const ROOM_AFTER: Duration = Duration::from_millis(100);
