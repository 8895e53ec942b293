//! What config.json says about a decoder of one of the families, read as transformers 5 reads it. Reads no weights.
//!
//! `keys.rs` has the table of all keys. Unknown ones are ignored; a known key with a value that would change the arithmetic is
//! refused by name.

mod json;
mod keys;
mod rope;
mod rope_keys;
#[cfg(test)]
mod tests;
mod window;

use asterism_kernels::{DType, Heads};
use asterism_plan::ModelShape;
use serde_json::Value;

use crate::{
    ModelError,
    family::{AttentionKind, Biases, FAMILIES, FeedForward, LayerSpec, LinearSpec},
};
pub(crate) use json::parse;
use keys::{Fields, ids, refused};
pub use rope::{Rope, RopeScaling, Yarn};

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
    /// to, and no more than its sliding window.
    pub max_position: usize,
    /// The sliding window of some layers, tokens.
    pub window: Option<usize>,
    /// Added to the mean square in every norm.
    pub eps: f32,
    /// Rotary embedding.
    pub rope: Rope,
    /// What a layer is: all are alike.
    pub layer: LayerSpec,
    /// The output head is the embedding table, where the weights have no head of their own.
    pub tied: bool,
    /// Begins a text.
    pub bos: Option<u32>,
    /// Each ends a generation.
    pub eos: Vec<u32>,
    /// What whoever wrote the file may not have meant, in words.
    pub notes: Vec<String>,
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
        self.rope.inv_freq(self.heads.dim, tokens)
    }

    /// The key of config.json that says how long a sequence may be.
    pub fn limiting_key(&self) -> &'static str {
        match self.window {
            Some(window) if window == self.max_position => "sliding_window",
            _ => "max_position_embeddings",
        }
    }

    /// Bytes of the weights that `parts` of the model take, computed in `dtype`, with linear layers of 8 bits and a scale for each
    /// output where that is said. A head that is the embedding table is laid out once more.
    pub fn weight_bytes(&self, parts: DecoderParts, (dtype, eight_bits): (DType, bool)) -> u64 {
        let &Self { hidden, vocab, heads, .. } = self;
        let element = dtype.size();
        let linear = |LinearSpec { parts, inputs, biased }: LinearSpec| {
            let outputs: usize = parts.iter().map(|(_, outputs)| outputs).sum();
            let bias = if biased { element * outputs } else { 0 };
            let weights = if eight_bits { outputs * inputs + 4 * outputs } else { element * outputs * inputs };
            weights + bias
        };
        let norms = self.layer.norms_of_heads(heads).into_iter().flatten().chain(self.layer.norms(hidden));
        let norms: usize = norms.map(|(_, width)| width).sum();
        let layer = element * norms + self.layer.linears(hidden, heads).map(linear).iter().sum::<usize>();
        let head = match parts {
            DecoderParts::Context => 0,
            DecoderParts::Query | DecoderParts::All => element * (hidden + vocab * hidden),
        };
        (element * vocab * hidden + self.layers * layer + head) as u64
    }

    /// The sizes that a plan's cost depends on, with cached keys and values of type `kv`.
    pub fn shape(&self, kv: DType) -> ModelShape {
        ModelShape {
            layers: self.layers,
            query_heads: self.heads.query,
            kv_heads: self.heads.kv,
            head_dim: self.heads.dim,
            hidden: self.hidden,
            intermediate: self.layer.feed_forward.intermediate(),
            vocab: self.vocab,
            kv_bytes_per_element: kv.size(),
            rope: self.rope.lengths(),
        }
    }
}

fn resolve(fields: &Fields, eos: Option<&Value>) -> Result<ModelConfig, ModelError> {
    let hidden = fields.count("hidden_size", 1 << 18)?;
    let layers = fields.count("num_hidden_layers", 1 << 12)?;
    let heads = heads(fields, hidden)?;
    let (rope, usable) = rope_keys::read(fields, heads.dim, fields.count("max_position_embeddings", 1 << 28)?)?;
    let window = window::window(fields, layers)?;
    let windowed = window.filter(|window| *window < usable).map(|window| {
        format!(
            "config.json: sliding_window = {window} is not computed: of {usable} tokens the model is used for {window}"
        )
    });
    Ok(ModelConfig {
        layers,
        heads,
        hidden,
        vocab: fields.count("vocab_size", 1 << 24)?,
        max_position: window.map_or(usable, |window| window.min(usable)),
        window,
        eps: eps(fields)?,
        rope,
        layer: layer(fields)?,
        tied: fields.flag("tie_word_embeddings")?,
        bos: fields.ids("bos_token_id")?.first().copied(),
        eos: eos.map_or_else(|| fields.ids("eos_token_id"), |eos| ids("eos_token_id", eos))?,
        notes: rope_keys::note(fields).into_iter().chain(windowed).collect(),
    })
}

fn layer(fields: &Fields) -> Result<LayerSpec, ModelError> {
    let (family, attention_bias) = (fields.family, fields.flag("attention_bias")?);
    Ok(LayerSpec {
        attention: AttentionKind::Full,
        head_norms: family.head_norms,
        feed_forward: FeedForward::Gated { intermediate: fields.count("intermediate_size", 1 << 20)? },
        biases: Biases {
            qkv: attention_bias || family.qkv_biases,
            output: attention_bias,
            mlp: fields.flag("mlp_bias")?,
        },
        names: family.names,
    })
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
