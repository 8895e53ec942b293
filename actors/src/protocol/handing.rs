//! What a context host hands over to a query host of its own process, where the channel between them can.

use std::sync::Arc;

use asterism_kernels::Backend;
use asterism_models::{Decoder, EncodedShard};

/// Shards that were attached, and whoever encoded them: all of their keys and values are there.
pub struct ShardsHere<B: Backend> {
    /// The model on their device.
    pub decoder: Arc<Decoder<B>>,
    /// They.
    pub shards: Vec<Arc<EncodedShard<B>>>,
}
