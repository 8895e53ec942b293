//! A decoder cut open at attention. Attention itself, the KV cache and the loop over layers belong to the
//! caller: the phase-1 encoder, the phase-2 generator.

mod feed_forward;
mod head;
mod stored;
mod weights;

use std::{borrow::Cow, ops::Range, sync::Arc};

use asterism_kernels::{Backend, Heads, KernelError, Partial, Rotary, RowChoice, RowToken};

use crate::{
    Checkpoint, DecoderParts, ModelConfig, ModelError,
    family::{HeadNorms, Rotation},
};
use head::HeadOf;
use weights::{Body, FeedForwardWeights, Head, LayerWeights, Uploaded};
pub use weights::{Loading, SharedWeights};

/// Queries, keys and values of one layer.
pub struct Projected<B: Backend> {
    /// `(query, t, dim)`, rotated.
    pub q: B::Tensor,
    /// `(kv, t, dim)`, rotated.
    pub k: B::Tensor,
    /// `(kv, t, dim)`.
    pub v: B::Tensor,
}

/// Rows of products of a step, of steps of many jobs, of a question and of a context.
const REHEARSED: [usize; 6] = [1, 64, 128, 256, 512, 2048];
/// Most of these that the head's are of.
const HEAD_REHEARSED: usize = 256;

/// A decoder on a device.
pub struct Decoder<B: Backend> {
    backend: Arc<B>,
    config: ModelConfig,
    /// Rotary frequencies of short sequences, or of all, by [`Rotation`].
    inv_freq: [Vec<f32>; 3],
    body: Arc<Body<B>>,
    head: HeadOf<B>,
}

/// What others of this device compute with may be freed once this one is gone: not before it is done with it.
impl<B: Backend> Drop for Decoder<B> {
    fn drop(&mut self) {
        // A device that failed does nothing more.
        let _ = self.backend.finish();
    }
}

impl<B: Backend> Loading<'_, B> {
    /// A decoder on `backend`, which is of this device and has the numerics of those before. Uploads what is not there yet of what
    /// `parts` needs.
    pub fn decoder(
        &mut self,
        backend: Arc<B>,
        checkpoint: &Checkpoint,
        parts: DecoderParts,
    ) -> Result<Decoder<B>, ModelError> {
        checkpoint.config().extras().into_iter().try_for_each(|extra| backend.needs(extra))?;
        let Uploaded { body, head } = self.upload(&backend, checkpoint, parts)?;
        let (config, head) = (checkpoint.config().clone(), head.map_or(HeadOf::None, HeadOf::Loaded));
        let inv_freq =
            [Rotation::Global, Rotation::Local, Rotation::Still].map(|rotation| config.frequencies(rotation, 0));
        let decoder = Decoder { inv_freq, body, head, config, backend };
        if decoder.backend.queues() {
            decoder.rehearse_where_there_is_room()?;
        }
        Ok(decoder)
    }
}

impl<B: Backend> Decoder<B> {
    /// Uploads what `parts` needs.
    pub fn load(backend: Arc<B>, checkpoint: &Checkpoint, parts: DecoderParts) -> Result<Self, ModelError> {
        SharedWeights::default().loading().decoder(backend, checkpoint, parts)
    }

    /// Of one with layers alone: one whose head is loaded when logits are first asked for, among the `weights` that it shares. Looks at
    /// the head's tensors now, so that none is found damaged then.
    ///
    /// # Errors
    /// As loading it.
    pub fn with_late_head(
        mut self,
        checkpoint: Arc<Checkpoint>,
        weights: Arc<SharedWeights<B>>,
    ) -> Result<Self, ModelError> {
        if !self.head.is_loaded() {
            weights::check_head(&checkpoint)?;
            self.head = HeadOf::late(checkpoint, weights);
        }
        Ok(self)
    }

    /// Has a device that chooses how it multiplies do so now, while there is room. Where there is none it chooses when it is asked.
    fn rehearse_where_there_is_room(&self) -> Result<(), ModelError> {
        match self.rehearse() {
            Err(ModelError::Kernel(KernelError::DeviceMemory { .. })) => Ok(()),
            rehearsed => rehearsed,
        }
    }

    /// By the counts of rows that differ for the choice, through a layer and the head.
    fn rehearse(&self) -> Result<(), ModelError> {
        for rows in REHEARSED {
            let ids = vec![0; rows];
            let qkv = self.project(0, &self.embed(&ids)?)?;
            let Projected { q, .. } = self.rotate(0, &qkv, &ids, 0)?;
            let x = self.finish(0, self.embed(&ids)?, &q)?;
            if self.head.is_loaded() && rows <= HEAD_REHEARSED {
                self.head_of(&x)?;
            }
        }
        Ok(self.backend.finish()?)
    }

    /// The device.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    pub(crate) fn shared_backend(&self) -> &Arc<B> {
        &self.backend
    }

    /// A decoder with the same weights whose work does not stand behind this one's; none where work does not stand in queues.
    ///
    /// # Errors
    /// What the device reports.
    pub fn another(&self) -> Result<Option<Self>, ModelError> {
        let Some(backend) = self.backend.another()?.map(Arc::new) else { return Ok(None) };
        let (config, inv_freq) = (self.config.clone(), self.inv_freq.clone());
        let decoder = Self { backend, config, inv_freq, body: self.body.clone(), head: self.head.clone() };
        decoder.rehearse_where_there_is_room()?;
        Ok(Some(decoder))
    }

    /// Whether both compute with the same memory.
    pub fn shares_weights(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.body, &other.body)
    }

    /// The decoder's shape.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The residual stream `(t, e)` before the first layer.
    pub fn embed(&self, ids: &[u32]) -> Result<B::Tensor, ModelError> {
        self.check_ids(ids)?;
        let embedded = self.backend.embed(&self.body.table, ids)?;
        match self.config.embedding_scale {
            1.0 => Ok(embedded),
            scale => Ok(self.backend.multiple(&embedded, self.backend.dtype().rounded(scale))?),
        }
    }

    /// Scores of a layer that stand for no key, one a query head, if it has them.
    pub(crate) fn sinks(&self, layer: usize) -> Option<&[f32]> {
        self.body.layers[layer].sinks.as_deref()
    }

    /// The output of a layer's attention of some query heads, all of whose keys a partial has seen: with their sinks, where there are.
    pub(crate) fn settled(
        &self,
        layer: usize,
        partial: Partial<B::Tensor>,
        heads: Range<usize>,
    ) -> Result<B::Tensor, ModelError> {
        let Some(sinks) = self.sinks(layer) else { return Ok(partial.output) };
        let (backend, shape) = (&self.backend, self.backend.shape(&partial.output));
        let rows = shape[1];
        let lse: Vec<f32> = sinks[heads.clone()].iter().flat_map(|sink| std::iter::repeat_n(*sink, rows)).collect();
        let output = backend.upload(&shape, &vec![0.0; shape.iter().product()])?;
        let sink = Partial { output, lse: backend.upload(&[heads.len(), rows], &lse)? };
        Ok(backend.merge(&[partial, sink])?.output)
    }

    /// Keys and values `(kv, t, dim)` as they are, by the model's rule of scores: what phase 1 attends to.
    pub(crate) fn kv(&self, k: &B::Tensor, v: &B::Tensor) -> Result<B::Kv, ModelError> {
        self.ruled(self.backend.kv(k, v)?)
    }

    /// The same as they are kept, and as phase 2 attends to them.
    pub(crate) fn kept(&self, k: &B::Tensor, v: &B::Tensor) -> Result<B::Kv, ModelError> {
        self.ruled(self.backend.kv_kept(k, v)?)
    }

    /// The same of bytes as they travelled: of the pieces of keys, and of values.
    pub(crate) fn kept_of(&self, tokens: usize, raw: [&[&[u8]]; 2]) -> Result<B::Kv, ModelError> {
        let Heads { kv, dim, .. } = self.config.heads;
        self.ruled(self.backend.upload_kept([kv, tokens, dim], raw)?)
    }

    fn ruled(&self, kv: B::Kv) -> Result<B::Kv, ModelError> {
        match self.config.score_cap {
            Some(cap) => Ok(self.backend.kv_capped(kv, cap)?),
            None => Ok(kv),
        }
    }

    /// Whether these are tokens of the vocabulary.
    pub(crate) fn check_ids(&self, ids: &[u32]) -> Result<(), ModelError> {
        let vocab = self.config.vocab;
        match ids.iter().copied().find(|id| *id as usize >= vocab) {
            Some(id) => Err(ModelError::TokenId { id, vocab }),
            None => Ok(()),
        }
    }

    /// Queries, keys and values of `x (t, e)` side by side, not rotated: `(t, (query + 2 kv) dim)`.
    pub fn project(&self, layer: usize, x: &B::Tensor) -> Result<B::Tensor, ModelError> {
        let LayerWeights { norms_before, qkv, .. } = &self.body.layers[layer];
        self.in_turns(x, |x| match norms_before {
            Some([norm, _]) => Ok(self.backend.norm_linear(x, (norm, self.config.eps), qkv)?),
            None => Ok(self.backend.linear(x, qkv)?),
        })
    }

    /// What [`Decoder::project`] gave of a layer, split into heads, queries and keys normed where the layer has norms of heads, and
    /// rotated, as rows of a sequence of so many tokens or of one that these stand for.
    pub fn rotate(
        &self,
        layer: usize,
        qkv: &B::Tensor,
        positions: &[u32],
        tokens: u32,
    ) -> Result<Projected<B>, ModelError> {
        let qkv = self.normed_heads(layer, qkv, positions)?;
        let (config, rotation) = (&self.config, self.config.attention[layer].rotation);
        let rope = match (rotation, &config.local_rope) {
            (Rotation::Local, Some(local)) => local,
            _ => &config.rope,
        };
        let inv_freq = match rope.lengths().stands_for(u64::from(tokens)) {
            0 => Cow::Borrowed(&self.inv_freq[rotation as usize]),
            tokens => Cow::Owned(config.frequencies(rotation, tokens)),
        };
        // Scores are products of a query and a key: each has the square root of what they are multiplied by.
        let rotary = Rotary { inv_freq: &inv_freq, factor: rope.attention_factor() * config.score_scale.sqrt() };
        let (q, k, v) = self.backend.split_rotate(&qkv, self.config.heads, positions, rotary)?;
        Ok(Projected { q, k, v })
    }

    /// `qkv (t, (query + 2 kv) dim)` with queries and keys normed, where the layer has such norms.
    fn normed_heads<'a>(
        &self,
        layer: usize,
        qkv: &'a B::Tensor,
        positions: &[u32],
    ) -> Result<Cow<'a, B::Tensor>, ModelError> {
        let Some([query, key]) = &self.body.layers[layer].head_norms else { return Ok(Cow::Borrowed(qkv)) };
        let (backend, heads) = (&self.backend, self.config.heads);
        if self.config.layer.head_norms == HeadNorms::Joint {
            let [q, k] = [heads.query * heads.dim, heads.kv * heads.dim];
            let part = |start: usize, end: usize| backend.narrow(qkv, 1, start, end);
            let (queries, keys) = (part(0, q)?, part(q, q + k)?);
            let (queries, keys) =
                (backend.rms_norm(&queries, query, self.config.eps)?, backend.rms_norm(&keys, key, self.config.eps)?);
            return Ok(Cow::Owned(backend.concat(&[queries, keys, part(q + k, q + 2 * k)?], 1)?));
        }
        // Turned by no angle, heads are split and nothing else.
        let still = vec![0.0; heads.dim / 2];
        let (q, k, v) = backend.split_rotate(qkv, heads, positions, Rotary::plain(&still))?;
        let (q, k) = (backend.rms_norm(&q, query, self.config.eps)?, backend.rms_norm(&k, key, self.config.eps)?);
        let joined = [q, k, v].iter().map(|x| backend.join_heads(x)).collect::<Result<Vec<_>, _>>()?;
        Ok(Cow::Owned(backend.concat(&joined, 1)?))
    }

    /// [`Decoder::rotate`] of rows of several sequences, one behind the other: how many each has here, and its tokens.
    pub(crate) fn rotate_stacked(
        &self,
        layer: usize,
        qkv: &B::Tensor,
        positions: &[u32],
        sequences: &[(usize, u32)],
    ) -> Result<Projected<B>, ModelError> {
        let stands_for = |tokens: u32| self.config.rope.lengths().stands_for(u64::from(tokens));
        let lengths: Vec<(usize, u32)> = sequences.iter().map(|(rows, tokens)| (*rows, stands_for(*tokens))).collect();
        let one = lengths.first().map_or(0, |(_, tokens)| *tokens);
        if lengths.iter().all(|(_, tokens)| *tokens == one) {
            return self.rotate(layer, qkv, positions, one);
        }
        let (mut parts, mut start) = (Vec::new(), 0);
        for (rows, tokens) in lengths {
            let end = start + rows;
            let rows = self.backend.rows(qkv, start, end)?;
            parts.push(self.rotate(layer, &rows, &positions[start..end], tokens)?);
            start = end;
        }
        let joined = |part: fn(&Projected<B>) -> &B::Tensor| {
            self.backend.concat(&parts.iter().map(|projected| part(projected).clone()).collect::<Vec<_>>(), 1)
        };
        Ok(Projected { q: joined(|part| &part.q)?, k: joined(|part| &part.k)?, v: joined(|part| &part.v)? })
    }

    /// The rest of the layer: `x (t, e)` plus the output projection of `attention (query, t, dim)` in f32, plus the MLP.
    pub fn finish(&self, layer: usize, x: B::Tensor, attention: &B::Tensor) -> Result<B::Tensor, ModelError> {
        self.finish_joined(layer, x, &self.backend.join_heads(attention)?)
    }

    /// Attention `(query, t, dim)` of several inputs as [`Decoder::finish_joined`] takes it: `(t of all, query dim)`, one after the other.
    pub(crate) fn joined(&self, attention: &[B::Tensor]) -> Result<B::Tensor, ModelError> {
        let joined = attention.iter().map(|heads| self.backend.join_heads(heads)).collect::<Result<Vec<_>, _>>()?;
        Ok(self.backend.put_together(&joined)?)
    }

    /// [`Decoder::finish`] of `attention (t, query dim)` in compute type.
    pub(crate) fn finish_joined(
        &self,
        layer: usize,
        x: B::Tensor,
        attention: &B::Tensor,
    ) -> Result<B::Tensor, ModelError> {
        let x = self.output(layer, x, attention)?;
        self.in_turns(&x, |x| self.feed_forward(layer, x))
    }

    /// `x (t, e)` plus the output projection of `attention (t, query dim)` in compute type.
    pub(crate) fn output(&self, layer: usize, x: B::Tensor, attention: &B::Tensor) -> Result<B::Tensor, ModelError> {
        let LayerWeights { output, norms_behind, .. } = &self.body.layers[layer];
        match norms_behind {
            Some([norm, _]) => {
                let made = self.backend.linear(attention, output)?;
                Ok(self.backend.sum(&x, &self.backend.rms_norm(&made, norm, self.config.eps)?)?)
            }
            None => Ok(self.backend.linear_add(attention, output, x)?),
        }
    }

    /// Columns `outputs` of what the MLP's second product is given for `x (t, e)`, that is of `(t, intermediate)`.
    pub(crate) fn gated_part(
        &self,
        layer: usize,
        x: &B::Tensor,
        outputs: Range<usize>,
    ) -> Result<B::Tensor, ModelError> {
        let (norm, [gate_up, _]) = self.shared_products(layer);
        Ok(self.backend.norm_gated_part(x, (norm, self.config.eps), gate_up, outputs)?)
    }

    /// Columns `outputs` of `x (t, e)` plus the MLP's second product of `gated (t, intermediate)`.
    pub(crate) fn down_part(
        &self,
        layer: usize,
        gated: &B::Tensor,
        x: &B::Tensor,
        outputs: Range<usize>,
    ) -> Result<B::Tensor, ModelError> {
        let (_, [_, down]) = self.shared_products(layer);
        Ok(self.backend.linear_add_part(gated, (down, x), outputs)?)
    }

    /// Whether devices may share what stands behind attention.
    pub(crate) fn is_shareable(&self) -> bool {
        self.config.layer.ends_plainly()
    }

    /// The norm and the products of a layer that devices share.
    fn shared_products(&self, layer: usize) -> (&B::Tensor, &[B::Linear; 2]) {
        match &self.body.layers[layer] {
            LayerWeights {
                norms_before: Some([_, norm]), feed_forward: FeedForwardWeights::Gated(products), ..
            } => (norm, products),
            _ => unreachable!("devices share plain layers alone"),
        }
    }

    /// What `work` makes of the rows of `x (t, e)`, no more at a time than the device likes.
    fn in_turns(
        &self,
        x: &B::Tensor,
        work: impl Fn(&B::Tensor) -> Result<B::Tensor, ModelError>,
    ) -> Result<B::Tensor, ModelError> {
        let (rows, most) = (self.backend.shape(x)[0], self.backend.linear_rows());
        if most == 0 || rows <= most {
            return work(x);
        }
        let turn = |start: usize| work(&self.backend.rows(x, start, rows.min(start + most))?);
        let parts = (0..rows).step_by(most).map(turn).collect::<Result<Vec<_>, _>>()?;
        Ok(self.backend.concat(&parts, 0)?)
    }

    /// Logits `(vocab)` of the last row of `x (t, e)`: they give the next token.
    ///
    /// # Errors
    /// [`ModelError::LogitsNotFinite`] when one of them is infinite or no number.
    pub fn logits(&self, x: &B::Tensor) -> Result<Vec<f32>, ModelError> {
        self.last_logits(&[x])?.remove(0)
    }

    /// [`Decoder::logits`] of each tensor, by one product.
    pub fn last_logits(&self, parts: &[&B::Tensor]) -> Result<Vec<Result<Vec<f32>, ModelError>>, ModelError> {
        let logits = self.download_logits(&self.head_of_last(parts)?)?;
        if parts.len() == 1 {
            return Ok(vec![self.finite(logits)]);
        }
        Ok(logits.chunks_exact(self.config.vocab).map(|row| self.finite(row.to_vec())).collect())
    }

    /// A token behind each tensor, as asked, by one product: sampling on the device, with what logarithms of probabilities are made of.
    pub fn choose_last(
        &self,
        parts: &[&B::Tensor],
        choices: &[RowChoice],
    ) -> Result<Vec<Result<RowToken, ModelError>>, ModelError> {
        self.choose(&self.head_of_last(parts)?, choices)
    }

    /// [`Decoder::choose_last`] of every row of `x (t, e)`.
    pub fn choose_each(
        &self,
        x: &B::Tensor,
        choices: &[RowChoice],
    ) -> Result<Vec<Result<RowToken, ModelError>>, ModelError> {
        self.choose(&self.head_of(x)?, choices)
    }

    fn choose(
        &self,
        logits: &B::Tensor,
        choices: &[RowChoice],
    ) -> Result<Vec<Result<RowToken, ModelError>>, ModelError> {
        if self.config.logit_cap.is_some() {
            let rows = self.download_logits(logits)?;
            let of_row = |(row, choice): (&[f32], &RowChoice)| Ok(choice.of(&self.finite(row.to_vec())?));
            return Ok(rows.chunks_exact(self.config.vocab).zip(choices).map(of_row).collect());
        }
        let finite = |(at, token): (usize, RowToken)| match token.is_finite {
            true => Ok(Ok(token)),
            false => {
                let row = self.backend.download(&self.backend.rows(logits, at, at + 1)?)?;
                Ok(self.finite(row).map(|_| token))
            }
        };
        self.backend.choose_tokens(logits, choices)?.into_iter().enumerate().map(finite).collect()
    }

    /// Logits `(parts, vocab)` of the last row of each tensor, on the device.
    fn head_of_last(&self, parts: &[&B::Tensor]) -> Result<B::Tensor, ModelError> {
        let last = |x: &&B::Tensor| {
            let t = self.backend.shape(x)[0];
            self.backend.rows(x, t - 1, t)
        };
        match &parts.iter().map(last).collect::<Result<Vec<_>, _>>()?[..] {
            [one] => self.head_of(one),
            rows => self.head_of(&self.backend.concat(rows, 0)?),
        }
    }

    /// Logits `(t, vocab)` of every row of `x (t, e)`.
    ///
    /// # Errors
    /// [`ModelError::LogitsNotFinite`] when one of them is infinite or no number.
    pub fn all_logits(&self, x: &B::Tensor) -> Result<Vec<f32>, ModelError> {
        self.finite(self.download_logits(&self.head_of(x)?)?)
    }

    fn head_of(&self, x: &B::Tensor) -> Result<B::Tensor, ModelError> {
        let Head { norm, linear } = self.head.get(&self.backend)?;
        let x = self.backend.rms_norm(x, norm, self.config.eps)?;
        Ok(self.backend.linear(&x, linear)?)
    }

    /// Logits on the host, as the model caps them.
    fn download_logits(&self, logits: &B::Tensor) -> Result<Vec<f32>, ModelError> {
        let mut logits = self.backend.download(logits)?;
        if let Some(cap) = self.config.logit_cap {
            logits.iter_mut().for_each(|logit| *logit = cap * (*logit / cap).tanh());
        }
        Ok(logits)
    }

    fn finite(&self, logits: Vec<f32>) -> Result<Vec<f32>, ModelError> {
        // One pass over what took a product with `hidden` rows each to make.
        if logits.iter().fold(true, |finite, logit| finite & logit.is_finite()) {
            return Ok(logits);
        }
        let at = logits.iter().position(|logit| !logit.is_finite()).expect("one is not");
        Err(ModelError::LogitsNotFinite { token: at % self.config.vocab, got: logits[at] })
    }
}
