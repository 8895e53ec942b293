//! Phase 1: one shard's forward pass, keeping the keys and values that the plan keeps.

use asterism_kernels::{Backend, Mask};
use asterism_plan::{LocalAttention, Shard};

use crate::{Decoder, ModelError};

/// The keys and values one shard keeps for phase 2.
#[derive(Clone)]
pub struct EncodedShard<B: Backend> {
    /// Place of the shard in the merge.
    pub block: usize,
    /// Kept context tokens.
    pub tokens: usize,
    /// One entry a layer.
    pub layers: Vec<B::Kv>,
}

impl<B: Backend> EncodedShard<B> {
    /// Bytes of KV held.
    pub fn bytes(&self, backend: &B) -> usize {
        self.layers.iter().map(|kv| backend.kv_bytes(kv)).sum()
    }
}

/// Encodes one shard. `progress(layers done)` is asked after each layer and stops the pass by returning `false`
/// ([`ModelError::Cancelled`]).
pub fn encode_shard<B: Backend>(
    decoder: &Decoder<B>,
    shard: &Shard,
    mut progress: impl FnMut(usize) -> bool,
) -> Result<EncodedShard<B>, ModelError> {
    let backend = decoder.backend();
    let rows = shard.input_ids.len();
    let mut layers = Vec::with_capacity(decoder.config().layers);
    let mut x = decoder.embed(&shard.input_ids)?;
    for layer in 0..decoder.config().layers {
        let (q, k, v) = decoder.project(layer, &x, &shard.position_ids)?;
        let kv = backend.kv(&k, &v)?;
        let mask = match shard.attention {
            LocalAttention::Causal => Mask::Causal,
        };
        // The last layer's rows feed nothing: only its keys and values are kept.
        if layer + 1 < decoder.config().layers {
            let partial = backend.attention(&q, &kv, mask)?;
            x = decoder.finish(layer, x, &partial.output)?;
        }
        layers.push(if shard.keep_from == 0 { kv } else { backend.kv_rows(&kv, shard.keep_from, rows)? });
        if !progress(layer + 1) {
            return Err(ModelError::Cancelled);
        }
    }
    Ok(EncodedShard { block: shard.block, tokens: shard.kept_tokens(), layers })
}
