//! What config.json says about a decoder of one of the families, read as transformers 5 reads it. Reads no weights.
//!
//! `keys.rs` has the table of all keys. Unknown ones are ignored; a known key with a value that would change the arithmetic is
//! refused by name.

mod attention;
mod json;
mod keys;
mod layer;
mod rope;
mod rope_keys;
#[cfg(test)]
mod tests;

use asterism_kernels::{Activation, DType, Extra, Heads, KvType};
use asterism_plan::ModelShape;
use serde_json::Value;

use crate::{
    ModelError,
    family::{FAMILIES, FeedForward, LayerAttention, LayerSpec, LinearSpec, Rotation},
};
pub(crate) use json::parse;
use keys::{Fields, ids, refused};
pub use rope::{Rope, RopeScaling, Yarn};
use rope_keys::Turning;

/// Shape and constants of a decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Decoder layers.
    pub layers: usize,
    /// Attention heads of a layer.
    pub heads: Heads,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Rows of the embedding table.
    pub vocab: usize,
    /// Longest sequence that is computed as the model was made to, tokens: what it was trained for or its rotary embedding stretches
    /// to, and no more than a window that its class bounds the sequence by.
    pub max_position: usize,
    /// That window, tokens.
    pub bound: Option<usize>,
    /// Added to the mean square in every norm.
    pub eps: f32,
    /// Rotary embedding.
    pub rope: Rope,
    /// That of layers with a window, where they have one of their own.
    pub local_rope: Option<Rope>,
    /// Elements of a head that turn.
    pub turned: usize,
    /// What all layers are.
    pub layer: LayerSpec,
    /// What tells the attention of each from that of others.
    pub attention: Vec<LayerAttention>,
    /// What embeddings are multiplied by.
    pub embedding_scale: f32,
    /// What scores of attention are multiplied by, beside `1 / sqrt(dim)`.
    pub score_scale: f32,
    /// Bound of the scores of attention: `s` becomes `cap tanh(s / cap)`.
    pub score_cap: Option<f32>,
    /// Bound of the logits, likewise.
    pub logit_cap: Option<f32>,
    /// The output head is the embedding table, where the weights have no head of their own.
    pub tied: bool,
    /// Begins a text.
    pub bos: Option<u32>,
    /// Each ends a generation.
    pub eos: Vec<u32>,
    /// What whoever wrote the file may not have meant, in words.
    pub notes: Vec<String>,
    /// What lies in blocks of the weights beside it.
    pub in_blocks: InBlocks,
}

/// Matrices that are stored in blocks, which devices keep in about as many bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InBlocks {
    /// Of all layers.
    pub layers: BlockWeights,
    /// The output head.
    pub head: BlockWeights,
}

/// How many weights, and the bytes that they are kept in at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockWeights {
    /// Weights.
    pub elements: u64,
    /// Bytes.
    pub bytes: u64,
}

impl BlockWeights {
    /// Bytes of weights that were counted as `bytes`, with those in blocks of `dtype`.
    fn of(self, bytes: u64, dtype: DType) -> u64 {
        bytes - self.elements * dtype.size() as u64 + self.bytes
    }
}

/// What a host needs of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecoderParts {
    /// A context host: layers only, no final norm and no output head.
    Context,
    /// The query host: layers and head.
    Query,
    /// One process that is both.
    All,
}

impl ModelConfig {
    /// Reads config.json and, where the folder has one, generation_config.json: the eos ids that it has win, and where it has a null
    /// there are none.
    pub fn from_json(config: &[u8], generation: Option<&[u8]>) -> Result<Self, ModelError> {
        let config: Value = parse("config.json", config)?;
        let Value::Object(config) = config else {
            let cause = "it is no JSON object".to_owned();
            return Err(ModelError::Malformed { path: "config.json".to_owned(), cause });
        };
        let generation: Option<Value> = generation.map(|bytes| parse("generation_config.json", bytes)).transpose()?;
        resolve(&Fields::new(config)?, generation.as_ref().and_then(|generation| generation.get("eos_token_id")))
    }

    /// Rotary frequencies `(dim / 2)` of a sequence of so many tokens, in f32 as the reference computes them.
    pub fn inv_freq(&self, tokens: u32) -> Vec<f32> {
        self.frequencies(Rotation::Global, tokens)
    }

    /// Rotary frequencies `(dim / 2)` of layers that turn so; pairs that do not turn have none.
    pub(crate) fn frequencies(&self, rotation: Rotation, tokens: u32) -> Vec<f32> {
        let mut frequencies = match rotation {
            Rotation::Global => self.rope.inv_freq(self.turned, tokens),
            Rotation::Local => self.local_rope.as_ref().unwrap_or(&self.rope).inv_freq(self.turned, tokens),
            Rotation::Still => Vec::new(),
        };
        frequencies.resize(self.heads.dim / 2, 0.0);
        frequencies
    }

    /// Operations that not every device has and this decoder needs.
    pub fn extras(&self) -> Vec<Extra> {
        let LayerSpec { activation, feed_forward, norms_before, norms_behind, .. } = &self.layer;
        let sums = !norms_before || *norms_behind || matches!(feed_forward, FeedForward::Experts(_));
        let needed = [
            (*activation != Activation::Silu).then_some(Extra::Activations),
            (sums || self.embedding_scale != 1.0).then_some(Extra::Sums),
            self.score_cap.map(|_| Extra::ScoreCap),
        ];
        needed.into_iter().flatten().collect()
    }

    /// The window of layer `layer`, if it has one.
    pub fn window(&self, layer: usize) -> Option<usize> {
        self.attention.get(layer).and_then(|layer| layer.window)
    }

    /// The key of config.json that says how long a sequence may be.
    pub fn limiting_key(&self) -> &'static str {
        match self.bound {
            Some(window) if window == self.max_position => "sliding_window",
            _ => "max_position_embeddings",
        }
    }

    /// Bytes of the weights that `parts` of the model take, computed in `dtype`, with linear layers of 8 bits and a scale for each
    /// output where that is said. A head that is the embedding table is laid out once more. What is stored in blocks stays so where it is
    /// computed in bf16; on processors in f32, too, where this counts more.
    pub fn weight_bytes(&self, parts: DecoderParts, (dtype, eight_bits): (DType, bool)) -> u64 {
        let &Self { hidden, vocab, heads, .. } = self;
        let element = dtype.size();
        let linear = |LinearSpec { parts, inputs, biased, .. }: LinearSpec| {
            let outputs: usize = parts.iter().map(|(_, outputs)| outputs).sum();
            let bias = if biased { element * outputs } else { 0 };
            let weights = if eight_bits { outputs * inputs + 4 * outputs } else { element * outputs * inputs };
            weights + bias
        };
        let sinks = if self.layer.sinks { heads.query } else { 0 };
        let norms = sinks + self.layer.norms(hidden, heads).map(|(_, width)| width).sum::<usize>();
        let layer = element * norms + self.layer.linears(hidden, heads).into_iter().map(linear).sum::<usize>();
        let head = match parts {
            DecoderParts::Context => 0,
            DecoderParts::Query | DecoderParts::All => element * (hidden + vocab * hidden),
        };
        let (mut layers, mut head) = ((self.layers * layer) as u64, head as u64);
        if dtype == DType::Bf16 && !eight_bits {
            layers = self.in_blocks.layers.of(layers, dtype);
        }
        if dtype == DType::Bf16 && head > 0 {
            head = self.in_blocks.head.of(head, dtype);
        }
        (element * vocab * hidden) as u64 + layers + head
    }

    /// The sizes that a plan's cost depends on, with keys and values of type `kv`.
    pub fn shape(&self, kv: impl Into<KvType>) -> ModelShape {
        let kv = kv.into();
        ModelShape {
            layers: self.layers,
            query_heads: self.heads.query,
            kv_heads: self.heads.kv,
            head_dim: self.heads.dim,
            hidden: self.hidden,
            intermediate: self.layer.feed_forward.active(),
            vocab: self.vocab,
            kv_bytes_per_element: kv.computed.size(),
            kept_row_bytes: if kv.is_computed() { 0 } else { kv.row_bytes(self.heads.dim) },
            rope: self.rope.lengths(),
            windowed_layers: self.attention.iter().filter(|layer| layer.window.is_some()).count(),
            window: self.attention.iter().filter_map(|layer| layer.window).max().unwrap_or(0),
        }
    }
}

fn resolve(fields: &Fields, eos: Option<&Value>) -> Result<ModelConfig, ModelError> {
    let hidden = fields.count("hidden_size", 1 << 18)?;
    let layers = fields.count("num_hidden_layers", 1 << 12)?;
    let heads = heads(fields, hidden)?;
    let positions = fields.count("max_position_embeddings", 1 << 28)?;
    let Turning { rope, local, turned, usable } = rope_keys::read(fields, heads.dim, positions)?;
    let attention::ConfiguredAttention { layers: attention, bound } = attention::attention(fields, layers)?;
    let layer = layer::layer(fields)?;
    if layer.sinks && attention.iter().all(|layer| layer.window.is_none()) {
        let expected = "layers with sinks are computed beside layers with a window alone: some have sliding_attention";
        return Err(refused("layer_types", "no layer with a window", expected));
    }
    let bounded = bound.filter(|bound| *bound < usable).map(|bound| {
        format!(
            "config.json: sliding_window = {bound} is not computed: of {usable} tokens the model is used for {bound}"
        )
    });
    Ok(ModelConfig {
        layers,
        heads,
        hidden,
        vocab: fields.count("vocab_size", 1 << 24)?,
        max_position: bound.map_or(usable, |bound| bound.min(usable)),
        bound,
        eps: eps(fields)?,
        rope,
        local_rope: local,
        turned,
        layer,
        attention,
        embedding_scale: if fields.family.scaled_embeddings { (hidden as f32).sqrt() } else { 1.0 },
        score_scale: score_scale(fields, heads.dim)?,
        score_cap: fields.positive_or_none("attn_logit_softcapping")?.map(|cap| cap as f32),
        logit_cap: fields.positive_or_none("final_logit_softcapping")?.map(|cap| cap as f32),
        tied: fields.flag("tie_word_embeddings")?,
        bos: fields.ids("bos_token_id")?.first().copied(),
        eos: eos.map_or_else(|| fields.ids("eos_token_id"), |eos| ids("eos_token_id", eos))?,
        notes: rope_keys::note(fields).into_iter().chain(bounded).collect(),
        in_blocks: InBlocks::default(),
    })
}

/// What scores are multiplied by, beside `1 / sqrt(dim)`.
fn score_scale(fields: &Fields, dim: usize) -> Result<f32, ModelError> {
    if !fields.is_read("query_pre_attn_scalar") {
        return Ok(1.0);
    }
    Ok((dim as f64 / fields.positive("query_pre_attn_scalar")?).sqrt() as f32)
}

fn eps(fields: &Fields) -> Result<f32, ModelError> {
    match fields.positive("rms_norm_eps")? as f32 {
        small if small < 1.0 => Ok(small),
        large => Err(refused("rms_norm_eps", large, "expected a number above 0 and below 1")),
    }
}

fn heads(fields: &Fields, hidden: usize) -> Result<Heads, ModelError> {
    let query = fields.count("num_attention_heads", 1 << 12)?;
    let kv = fields.count_or_none("num_key_value_heads", 1 << 12)?.unwrap_or(query);
    if !query.is_multiple_of(kv) {
        return Err(refused("num_key_value_heads", kv, format!("it must divide num_attention_heads = {query}")));
    }
    let given = fields.count_or_none("head_dim", 1 << 12)?;
    if !hidden.is_multiple_of(query) && (given.is_none() || !fields.family.free_head_dim) {
        let free = FAMILIES.iter().filter(|family| family.free_head_dim).map(|family| family.model_type);
        let free = free.collect::<Vec<_>>().join(", ");
        let expected = format!("num_attention_heads = {query} must divide it, except with the head_dim of {free}");
        return Err(refused("hidden_size", hidden, expected));
    }
    let dim = given.unwrap_or(hidden / query);
    if !dim.is_multiple_of(2) {
        return Err(refused("head_dim", dim, "it must be even"));
    }
    Ok(Heads { query, kv, dim })
}
