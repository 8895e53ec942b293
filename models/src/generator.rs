//! Phase 2: the query and the generated tokens, attending to context shards that live elsewhere.

use asterism_kernels::{Backend, Mask, Partial};

use crate::{Decoder, EncodedShard, ModelError, decoder::Projected};

/// One shard's answer to a layer step.
#[derive(Clone)]
pub struct ShardPartial<B: Backend> {
    /// Place of the shard in the merge.
    pub block: usize,
    /// Keys it attended to.
    pub keys: usize,
    /// Its partial.
    pub partial: Partial<B::Tensor>,
}

/// Where the context's keys and values live. A step of one layer asks, computes its own part, then collects.
pub trait ContextAttention<B: Backend> {
    /// Sends `q (query heads, t, dim)` of `layer` to every shard.
    fn ask(&mut self, layer: usize, q: &B::Tensor) -> Result<(), ModelError>;
    /// The answers to the last `ask`, one a shard, in any order.
    fn collect(&mut self) -> Result<Vec<ShardPartial<B>>, ModelError>;
}

/// The state of phase 2 on the query host: its own keys and values and the next position.
pub struct Generator<B: Backend> {
    tail: Vec<B::Kv>,
    context_tokens: usize,
    next_position: u32,
}

impl<B: Backend> Generator<B> {
    /// Starts behind a context of `context_tokens`; the first query token has position id `query_start`.
    pub fn new(context_tokens: usize, query_start: u32) -> Self {
        Self { tail: Vec::new(), context_tokens, next_position: query_start }
    }

    /// Runs `ids` (the query first, then one token at a time) through every layer. Returns the residual stream
    /// `(t, e)`: [`Decoder::logits`] of its last row give the next token.
    ///
    /// # Errors
    /// [`ModelError::KeyCount`] when the shards that answered do not add up to the context: a step is refused, never
    /// renormalised.
    pub fn step(
        &mut self,
        decoder: &Decoder<B>,
        ids: &[u32],
        context: &mut dyn ContextAttention<B>,
    ) -> Result<B::Tensor, ModelError> {
        let backend = decoder.backend();
        let positions: Vec<u32> = (self.next_position..).take(ids.len()).collect();
        let mut x = decoder.embed(ids)?;
        for layer in 0..decoder.config().layers {
            let Projected { q, k, v } = decoder.rotate(&decoder.project(layer, &x)?, &positions)?;
            context.ask(layer, &q)?;
            match self.tail.get_mut(layer) {
                Some(kv) => backend.kv_append(kv, &k, &v)?,
                None => self.tail.push(backend.kv(&k, &v)?),
            }
            let own = backend.attention(&q, &self.tail[layer], Mask::Causal)?;
            let mut answers = context.collect()?;
            let keys: usize = answers.iter().map(|a| a.keys).sum();
            if keys != self.context_tokens {
                return Err(ModelError::KeyCount { layer, expected: self.context_tokens, got: keys });
            }
            answers.sort_by_key(|a| a.block);
            let partials: Vec<_> = answers.into_iter().map(|a| a.partial).chain([own]).collect();
            x = decoder.finish(layer, x, &backend.merge(&partials)?.output)?;
        }
        self.next_position += ids.len() as u32;
        Ok(x)
    }
}

/// Context shards in this very process: what context hosts do, without the wire.
pub struct LocalContext<'a, B: Backend> {
    backend: &'a B,
    shards: &'a [EncodedShard<B>],
    asked: Vec<ShardPartial<B>>,
}

impl<'a, B: Backend> LocalContext<'a, B> {
    /// Answers from `shards`.
    pub fn new(backend: &'a B, shards: &'a [EncodedShard<B>]) -> Self {
        Self { backend, shards, asked: Vec::new() }
    }
}

impl<B: Backend> EncodedShard<B> {
    /// What a context host does in phase 2: attention of `q` over this shard, no mask.
    pub fn attend(&self, backend: &B, layer: usize, q: &B::Tensor) -> Result<ShardPartial<B>, ModelError> {
        let kv = &self.layers[layer];
        let partial = backend.attention(q, kv, Mask::None)?;
        Ok(ShardPartial { block: self.block, keys: backend.kv_len(kv), partial })
    }
}

impl<B: Backend> ContextAttention<B> for LocalContext<'_, B> {
    fn ask(&mut self, layer: usize, q: &B::Tensor) -> Result<(), ModelError> {
        self.asked = self.shards.iter().map(|s| s.attend(self.backend, layer, q)).collect::<Result<_, _>>()?;
        Ok(())
    }

    fn collect(&mut self) -> Result<Vec<ShardPartial<B>>, ModelError> {
        Ok(std::mem::take(&mut self.asked))
    }
}
