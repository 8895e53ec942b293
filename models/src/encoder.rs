//! Phase 1: forward passes of shards, layer by layer, keeping the keys and values that the plan keeps. What shards pass each
//! other goes through [`Peers`]; who carries it is not known here. Rows attend to their own shard's keys as they were computed, in
//! whatever format they are kept afterwards.

mod all_to_all;
mod broadcast;
mod chained;
mod identity;
mod local;
mod max_pool;
mod passing;
mod peers;
mod retaining;
mod shared_prefix;
pub(crate) mod team;
mod windowed;

use std::sync::Arc;

use asterism_kernels::{Backend, Heads, KernelError, Mark, Mask, Partial, RawBytes, Selection};
use asterism_plan::{Exchange, Input, InputDigest, LocalAttention, Plan, Shard, Span, TokenIds};

pub use identity::{ShardIdentity, shard_identities};
pub use max_pool::max_pool;
pub use peers::{LocalPeers, Parcel, Part, Peers};
pub use retaining::{RetainingHeads, check_retaining_heads};

use crate::{Decoder, ModelError, decoder::Projected};

/// The keys and values one shard keeps for phase 2.
pub struct EncodedShard<B: Backend> {
    /// Place of the shard in the merge.
    pub block: usize,
    /// Kept tokens.
    pub tokens: usize,
    /// Position of the first of them; where layers have windows, the others follow.
    pub position: u32,
    /// One entry a layer.
    pub layers: Vec<B::Kv>,
    /// The checksum of what its pass read, as it was handed to the kernels.
    pub digest: u64,
}

/// Shares the keys and values.
impl<B: Backend> Clone for EncodedShard<B> {
    fn clone(&self) -> Self {
        Self { layers: self.layers.clone(), ..*self }
    }
}

impl<B: Backend> EncodedShard<B> {
    /// What comes of a shard that another host encoded, no layer yet, and a digest that whoever sends it knows.
    pub fn coming(shard: &Shard) -> Self {
        let (block, tokens, position) = (shard.block, shard.kept_tokens(), shard.keep_position());
        Self { block, tokens, position, layers: Vec::new(), digest: 0 }
    }

    /// Takes in its next layer: the bytes of all pieces of its keys, and of its values, as [`EncodedShard::raw`] gives them.
    ///
    /// # Errors
    /// What the kernels report.
    pub fn take(&mut self, decoder: &Decoder<B>, raw: [&[&[u8]]; 2]) -> Result<(), ModelError> {
        self.layers.push(decoder.kept_of(self.tokens, raw)?);
        Ok(())
    }

    /// Keys, then values, of a layer as they are kept: `(kv, tokens, row)`, of rows of as many bytes as their type says.
    ///
    /// # Errors
    /// What the kernels report.
    pub fn raw<'a>(&self, decoder: &'a Decoder<B>, layer: usize) -> Result<Box<dyn RawBytes + 'a>, ModelError> {
        Ok(decoder.backend().kept_raw(&self.layers[layer])?)
    }

    /// Bytes of the keys and values kept. Memory is allotted in whole blocks of tokens, so that up to one block more of each
    /// head is taken.
    pub fn bytes(&self, decoder: &Decoder<B>) -> u64 {
        let (backend, Heads { kv, dim, .. }) = (decoder.backend(), decoder.config().heads);
        let row = backend.kv_type().row_bytes(dim);
        self.layers.iter().map(|layer| (2 * backend.kv_len(layer) * kv * row) as u64).sum()
    }
}

/// Shards to encode together: those of one host, or all of them. A shard that passes nothing needs no company.
pub struct Phase1<'a, B: Backend> {
    /// The model.
    pub decoder: &'a Decoder<B>,
    /// Ascending by block.
    pub shards: &'a [Shard],
    /// What each of them reads.
    pub inputs: &'a [Input],
    /// Shards of the whole plan.
    pub blocks: usize,
    /// What they pass each other.
    pub exchange: &'a Exchange,
    /// Of each chain among them, in their order, what its shards before these keep.
    pub behind: &'a [Earlier<'a, B>],
    /// APB's retaining heads, where the exchange scores by them.
    pub heads: Option<&'a RetainingHeads<B>>,
}

/// Shards of a chain that stand before some that are encoded.
pub struct Earlier<'a, B: Backend> {
    /// The place of the first one behind them, among those that are encoded: a chain begins there.
    pub before: usize,
    /// All of them in block order; none before a chain's first.
    pub shards: &'a [Arc<EncodedShard<B>>],
}

/// Who looks on while shards are encoded.
pub trait Watch {
    /// A shard has so many layers done. `false` stops the encoding ([`ModelError::Cancelled`]).
    fn layer(&mut self, block: usize, done: usize) -> bool;

    /// Whether to go on with what is nobody's progress. Asked between layers.
    fn goes_on(&mut self) -> bool {
        true
    }

    /// So many (row, key) pairs, over all query heads, went through the softmax of one layer of a shard.
    fn pairs(&mut self, block: usize, pairs: u64) {
        let _ = (block, pairs);
    }

    /// Keys were chosen by their scores.
    fn chosen(&mut self, layer: usize, block: usize, chosen: Chosen<'_>) {
        let _ = (layer, block, chosen);
    }

    /// Whether the last layer is computed too. Its rows feed nothing, so it is not unless somebody wants to see it.
    fn wants_last_layer(&self) -> bool {
        false
    }
}

/// Whether to go on after layer `done` of `block`.
impl<F: FnMut(usize, usize) -> bool> Watch for F {
    fn layer(&mut self, block: usize, done: usize) -> bool {
        self(block, done)
    }
}

/// Encodes all shards of a plan for `context` in this process.
///
/// # Errors
/// As [`Phase1::encode`], and [`ModelError::NoTokens`] when it is the plan of another context.
pub fn encode_plan<B: Backend>(
    decoder: &Decoder<B>,
    plan: &Plan,
    context: &[u32],
    heads: Option<&RetainingHeads<B>>,
    watch: &mut dyn Watch,
) -> Result<Vec<EncodedShard<B>>, ModelError> {
    let (blocks, exchange) = (plan.shards.len(), &plan.exchange);
    // Shards that pass nothing go one by one, which needs the memory of one.
    let together = if *exchange == Exchange::None { 1 } else { blocks };
    let mut encoded = Vec::with_capacity(blocks);
    let ids = plan.numbered_ids(context);
    for shards in plan.shards.chunks(together) {
        let inputs = inputs_of(shards, ids.as_slice())?;
        let behind = &[Earlier { before: 0, shards: &encoded }];
        let phase = Phase1 { decoder, shards, inputs: &inputs, blocks, exchange, behind, heads };
        let passed = phase.encode(&mut LocalPeers::default(), watch)?;
        encoded.extend(passed.into_iter().map(Arc::new));
    }
    Ok(encoded.iter().map(|shard| EncodedShard::clone(shard)).collect())
}

/// Encodes what a question gets anew, behind no other shard.
///
/// # Errors
/// As [`Phase1::encode`].
pub fn encode_alone<B: Backend>(
    decoder: &Decoder<B>,
    (shard, input): (&Shard, &Input),
    watch: &mut dyn Watch,
) -> Result<EncodedShard<B>, ModelError> {
    let (shards, inputs, exchange) = (std::slice::from_ref(shard), std::slice::from_ref(input), &Exchange::None);
    let phase = Phase1 { decoder, shards, inputs, blocks: 1, exchange, behind: &[], heads: None };
    Ok(phase.encode(&mut LocalPeers::default(), watch)?.swap_remove(0))
}

/// What each of some shards reads, of the ids that are `known`.
///
/// # Errors
/// [`ModelError::NoTokens`] with the first that are not.
pub fn inputs_of(shards: &[Shard], known: &(impl TokenIds + ?Sized)) -> Result<Vec<Input>, ModelError> {
    let input = |shard: &Shard| {
        let missing = |span: Span| ModelError::NoTokens { block: shard.block, start: span.start, tokens: span.tokens };
        shard.input(known).map_err(missing)
    };
    shards.iter().map(input).collect()
}

/// Keys chosen by their scores.
pub enum Chosen<'a> {
    /// By local attention, as row indices of the shard's input.
    Keys(&'a Selection<'a>),
    /// To be passed on: rows of the shard's input, ascending, for each KV head.
    Passed(&'a [Vec<u32>]),
}

/// Shards whose rows go through the linear layers together.
struct Stack<B: Backend> {
    /// How many.
    shards: usize,
    /// Residual stream `(t of all, e)`, one shard after the other.
    x: B::Tensor,
}

/// One shard within a layer.
struct Pass<'a, B: Backend> {
    shard: &'a Shard,
    /// Not rotated, `(t, (query + 2 kv) dim)`; where retaining heads want it.
    raw: Option<B::Tensor>,
    qkv: Projected<B>,
    /// Its keys and values as attention of this pass reads them.
    kv: B::Kv,
    /// What is kept of them, where that is something else.
    kept: Option<B::Kv>,
}

/// One layer of all passes.
struct Layer<'a, B: Backend> {
    phase: &'a Phase1<'a, B>,
    index: usize,
    passes: &'a [Pass<'a, B>],
}

impl<B: Backend> Phase1<'_, B> {
    /// Encodes the shards, in lock step.
    ///
    /// # Errors
    /// [`ModelError::Cancelled`] when `watch` says stop, [`ModelError::NoRoom`] when the device is full; what `peers` and the
    /// kernels report otherwise.
    pub fn encode(&self, peers: &mut dyn Peers<B>, watch: &mut dyn Watch) -> Result<Vec<EncodedShard<B>>, ModelError> {
        let mut encoded = Vec::with_capacity(self.shards.len());
        let end = self.encode_layers(peers, watch, &mut encoded);
        end.map_err(|error| match error {
            ModelError::Kernel(KernelError::DeviceMemory { bytes, free }) => {
                self.no_room(encoded.first().map_or(0, |shard| shard.layers.len()), bytes as u64, free as u64)
            }
            error => error,
        })?;
        Ok(encoded)
    }

    /// What is missing where the device was full after so many layers: `wanted` bytes at once, of which `free` were there.
    fn no_room(&self, layers: usize, wanted: u64, free: u64) -> ModelError {
        let config = self.decoder.config();
        let tokens = self.shards.iter().map(Shard::kept_tokens).sum::<usize>();
        let each = config.shape(self.decoder.backend().kv_type()).kv_bytes_per_token();
        let held = tokens as u64 * each * layers as u64 / config.layers as u64;
        let missing = (tokens as u64 * each - held).max(wanted).saturating_sub(free);
        ModelError::NoRoom { tokens, missing, fits: ((held + free) / each) as usize }
    }

    fn encode_layers(
        &self,
        peers: &mut dyn Peers<B>,
        watch: &mut dyn Watch,
        encoded: &mut Vec<EncodedShard<B>>,
    ) -> Result<(), ModelError> {
        let (decoder, count) = (self.decoder, self.decoder.config().layers);
        let mut read = vec![InputDigest::default(); self.shards.len()];
        let mut stacks = self.stacks(&mut read)?;
        encoded.extend(self.shards.iter().map(|shard| EncodedShard::coming(shard)));
        let mut before: Option<Mark> = None;
        for index in 0..count {
            let passes = self.project(index, &stacks, &mut read)?;
            let mut outputs = Vec::new();
            if index + 1 < count || watch.wants_last_layer() {
                outputs = Layer { phase: self, index, passes: &passes }.attend(peers, watch)?;
                peers.layer_done(index);
            }
            let inputs = self.inputs.iter().map(|input| &input.behind);
            let each = encoded.iter_mut().zip(passes).zip(&mut read).zip(inputs);
            for (((encoded, Pass { shard, kv, kept: own, .. }), read), behind) in each {
                let kept = shard.keep_from()..shard.rows();
                if index == 0 {
                    read.mask(shard.prefix_rows(), &shard.attention);
                    read.kept(kept.clone());
                    read.behind(behind);
                    encoded.digest = read.value();
                }
                encoded.layers.push(match (own, kept.start) {
                    (Some(own), _) => own,
                    (None, 0) => kv,
                    (None, from) => decoder.backend().kv_rows(&kv, from, kept.end)?,
                });
            }
            if !outputs.is_empty() {
                stacks = self.finish(index, stacks, outputs)?;
            }
            // A device that works off a queue has a layer at work and one waiting, no more: so a layer is reported when the one before
            // it is done, turns are as long as they take, and who stops need not wait for all that was queued.
            if let Some(before) = before.replace(decoder.backend().mark()?) {
                before()?;
            }
            for shard in self.shards {
                if !watch.layer(shard.block, index + 1) {
                    return Err(ModelError::Cancelled);
                }
            }
        }
        Ok(())
    }

    /// The shards in stacks of as many rows as the device likes, each at least one shard, embedded.
    fn stacks(&self, read: &mut [InputDigest]) -> Result<Vec<Stack<B>>, ModelError> {
        let most = self.decoder.backend().linear_rows();
        let (mut stacks, mut rest, mut read) = (Vec::new(), self.inputs, read.iter_mut());
        while let Some(first) = rest.first() {
            let mut rows = first.ids.len();
            let more = rest[1..].iter().take_while(|input| {
                rows += input.ids.len();
                rows <= most
            });
            let (inputs, after) = rest.split_at(1 + more.count());
            let ids: Vec<u32> = inputs.iter().flat_map(|input| &input.ids).copied().collect();
            let mut left = &ids[..];
            for (input, read) in inputs.iter().zip(&mut read) {
                let (own, after) = left.split_at(input.ids.len());
                read.ids(own);
                left = after;
            }
            stacks.push(Stack { shards: inputs.len(), x: self.decoder.embed(&ids)? });
            rest = after;
        }
        Ok(stacks)
    }

    fn project(
        &self,
        layer: usize,
        stacks: &[Stack<B>],
        read: &mut [InputDigest],
    ) -> Result<Vec<Pass<'_, B>>, ModelError> {
        let (decoder, backend) = (self.decoder, self.decoder.backend());
        let mut passes = Vec::with_capacity(self.shards.len());
        let mut shards = self.shards.iter().zip(self.inputs).zip(read);
        for Stack { shards: stacked, x } in stacks {
            let (all, mut start) = (decoder.project(layer, x)?, 0);
            for ((shard, input), read) in shards.by_ref().take(*stacked) {
                let end = start + shard.rows();
                let raw = if *stacked == 1 { all.clone() } else { backend.rows(&all, start, end)? };
                if layer == 0 {
                    read.positions(&input.positions);
                    read.rope_length(shard.rope_length);
                }
                let qkv = decoder.rotate(layer, &raw, &input.positions, shard.rope_length)?;
                let kv = decoder.kv(&qkv.k, &qkv.v)?;
                let kept = if backend.kv_type().is_computed() { None } else { Some(self.kept(shard, &qkv)?) };
                passes.push(Pass { shard, raw: self.heads.map(|_| raw), qkv, kv, kept });
                start = end;
            }
        }
        Ok(passes)
    }

    /// What a shard keeps, where that is something else than it computes with.
    fn kept(&self, shard: &Shard, Projected { k, v, .. }: &Projected<B>) -> Result<B::Kv, ModelError> {
        let (decoder, rows) = (self.decoder, shard.keep_from()..shard.rows());
        if rows.start == 0 {
            return decoder.kept(k, v);
        }
        let [k, v] = [k, v].map(|x| decoder.backend().narrow(x, 1, rows.start, rows.end));
        decoder.kept(&k?, &v?)
    }

    /// The rest of a layer, with the attention of every shard.
    fn finish(
        &self,
        layer: usize,
        stacks: Vec<Stack<B>>,
        outputs: Vec<Vec<B::Tensor>>,
    ) -> Result<Vec<Stack<B>>, ModelError> {
        let mut outputs = outputs.into_iter();
        let mut joined =
            |stack: &Stack<B>| self.decoder.joined(&outputs.by_ref().take(stack.shards).flatten().collect::<Vec<_>>());
        let (mut finished, mut left) = (Vec::with_capacity(stacks.len()), stacks.into_iter().peekable());
        let mut next = left.peek().map(&mut joined);
        while let (Some(Stack { shards, x }), Some(attention)) = (left.next(), next.take()) {
            // Devices may have some heads each: while they are at one stack, the rows of the next come together.
            next = left.peek().map(&mut joined);
            finished.push(Stack { shards, x: self.decoder.finish_joined(layer, x, &attention?)? });
        }
        Ok(finished)
    }
}

impl<B: Backend> Layer<'_, B> {
    /// Attention output `(query, t, dim)` in f32 of every pass, in pieces that lie one behind the other.
    fn attend(&self, peers: &mut dyn Peers<B>, watch: &mut dyn Watch) -> Result<Vec<Vec<B::Tensor>>, ModelError> {
        let window = self.phase.decoder.config().window(self.index);
        if self.has_chains() {
            return self.attend_chained(window, watch);
        }
        if let Some(window) = window {
            return self.attend_within(window, peers, watch);
        }
        let whole = match self.phase.exchange {
            Exchange::SharedPrefix { sink_rows } => {
                return self.attend_behind_shared_prefix(*sink_rows, peers, watch);
            }
            Exchange::None => return self.passes.iter().map(|pass| self.alone(pass, watch)).collect(),
            Exchange::PassCompressed(passing) => self.attend_with_passed(passing, peers, watch),
            Exchange::Broadcast => self.attend_with_all_earlier(peers, watch),
            Exchange::AllToAll => self.attend_by_heads(Mask::Causal, peers, watch),
        };
        Ok(whole?.into_iter().map(|output| vec![output]).collect())
    }

    /// Attention output of a pass that nobody passes anything.
    fn alone(&self, pass: &Pass<'_, B>, watch: &mut dyn Watch) -> Result<Vec<B::Tensor>, ModelError> {
        let apart = pass.shard.apart_rows > 0 && self.backend().independent_rows() > 0;
        match apart && pass.shard.attention == LocalAttention::Causal {
            true => self.behind_own_prefix(pass, watch),
            false => Ok(vec![self.settled(self.local(pass, watch)?)?]),
        }
    }

    fn backend(&self) -> &B {
        self.phase.decoder.backend()
    }

    /// The output of all query heads, all of whose keys a partial has seen.
    fn settled(&self, partial: Partial<B::Tensor>) -> Result<B::Tensor, ModelError> {
        self.phase.decoder.settled(self.index, partial, 0..self.phase.decoder.config().heads.query)
    }

    /// Whether shards come after `pass`.
    fn has_later(&self, pass: &Pass<'_, B>) -> bool {
        pass.shard.block + 1 < self.phase.blocks
    }

    /// The parcel of keys and values that the shard of block `from` gives to all later ones.
    fn keys_of(&self, from: usize) -> Parcel {
        Parcel { layer: self.index, part: Part::Keys, from, to: None }
    }

    /// Keys and values that the shards before `pass` gave, in block order.
    fn earlier_keys(&self, pass: &Pass<'_, B>, peers: &mut dyn Peers<B>) -> Result<Vec<[B::Tensor; 2]>, ModelError> {
        (0..pass.shard.block).map(|from| self.keys_from(from, peers)).collect()
    }

    /// Keys and values that the shard of block `from` gave.
    fn keys_from(&self, from: usize, peers: &mut dyn Peers<B>) -> Result<[B::Tensor; 2], ModelError> {
        let tensors = peers.receive(self.keys_of(from))?;
        Ok(tensors.try_into().ok().expect("carriers deliver what was sent: keys, then values"))
    }

    fn query_heads(&self) -> u64 {
        self.phase.decoder.config().heads.query as u64
    }
}
