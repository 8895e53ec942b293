//! Phase 2: the query and the generated tokens, attending to context shards that live elsewhere.

use asterism_kernels::{Backend, Mask, Partial};
use asterism_plan::{ContextView, Plan, attention::Streaming};

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
    /// Sends `q (query heads, t, dim)` of `layer` to every shard; `mask` says which of its keys a row sees.
    fn ask(&mut self, layer: usize, q: &B::Tensor, mask: Mask) -> Result<(), ModelError>;
    /// The answers to the last `ask`, one a shard, in any order.
    fn collect(&mut self) -> Result<Vec<ShardPartial<B>>, ModelError>;
    /// The answers last collected are merged with the query host's own part, or handed to the device to be. For whoever takes
    /// the time; does nothing unless told otherwise.
    fn merged(&mut self) {}
}

/// The state of phase 2 on the query host: its own keys and values and the next position.
pub struct Generator<B: Backend> {
    tail: Vec<B::Kv>,
    context: ContextKeys,
    next_position: u32,
    /// Rows that went through.
    rows: usize,
}

/// The keys that phase 2 finds in the context.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ContextKeys {
    /// How many there must be over all shards.
    pub count: usize,
    /// Which of them a row sees.
    pub view: ContextView,
}

impl<B: Backend> Generator<B> {
    /// Starts behind a context; the first query token has position id `query_start`.
    pub fn new(context: ContextKeys, query_start: u32) -> Self {
        Self { tail: Vec::new(), context, next_position: query_start, rows: 0 }
    }

    /// Starts behind the context of a plan.
    pub fn of(plan: &Plan) -> Self {
        Self::new(ContextKeys { count: plan.kept_tokens(), view: plan.view }, plan.query_start)
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
        let (in_context, in_tail) = self.context.masks(self.rows);
        let mut x = decoder.embed(ids)?;
        for layer in 0..decoder.config().layers {
            let Projected { q, k, v } = decoder.rotate(&decoder.project(layer, &x)?, &positions)?;
            context.ask(layer, &q, in_context)?;
            match self.tail.get_mut(layer) {
                Some(kv) => backend.kv_append(kv, &k, &v)?,
                None => self.tail.push(backend.kv(&k, &v)?),
            }
            let own = backend.attention(&q, &self.tail[layer], in_tail)?;
            let mut answers = context.collect()?;
            let keys: usize = answers.iter().map(|a| a.keys).sum();
            if keys != self.context.count {
                return Err(ModelError::KeyCount { layer, expected: self.context.count, got: keys });
            }
            answers.sort_by_key(|a| a.block);
            let partials: Vec<_> = answers.into_iter().map(|a| a.partial).chain([own]).collect();
            let merged = backend.merge(&partials)?;
            context.merged();
            x = decoder.finish(layer, x, &merged.output)?;
        }
        self.next_position += ids.len() as u32;
        self.rows += ids.len();
        Ok(x)
    }
}

impl ContextKeys {
    /// What rows behind `rows` others see of the context, and of the query and the generated tokens.
    fn masks(&self, rows: usize) -> (Mask, Mask) {
        match self.view {
            ContextView::All => (Mask::None, Mask::Causal),
            ContextView::Streaming(Streaming { sink_tokens: sink, window_tokens: window }) => {
                let from = |first_key| Mask::Streaming { sink, window, first_row: self.count + rows, first_key };
                (from(0), from(self.count))
            }
        }
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
    /// What a context host does in phase 2: attention of `q` over this shard.
    pub fn attend(&self, backend: &B, layer: usize, q: &B::Tensor, mask: Mask) -> Result<ShardPartial<B>, ModelError> {
        let kv = &self.layers[layer];
        let partial = backend.attention(q, kv, mask)?;
        Ok(ShardPartial { block: self.block, keys: backend.kv_len(kv), partial })
    }
}

impl<B: Backend> ContextAttention<B> for LocalContext<'_, B> {
    fn ask(&mut self, layer: usize, q: &B::Tensor, mask: Mask) -> Result<(), ModelError> {
        self.asked = self.shards.iter().map(|s| s.attend(self.backend, layer, q, mask)).collect::<Result<_, _>>()?;
        Ok(())
    }

    fn collect(&mut self) -> Result<Vec<ShardPartial<B>>, ModelError> {
        Ok(std::mem::take(&mut self.asked))
    }
}
