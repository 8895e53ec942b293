//! What config.json says about a Llama or Qwen2 decoder, as transformers 4 and 5 write it. Reads no weights.
//!
//! Unknown keys are ignored; a known key with a value that would change the arithmetic is refused.

mod rope;

use asterism_kernels::{DType, Heads};
use asterism_plan::ModelShape;
use serde::Deserialize;

use crate::{ModelError, decoder::Parts};
pub use rope::Rope;
use rope::RopeKeys;

/// Shape and constants of a decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Decoder layers.
    pub layers: usize,
    /// Attention heads of a layer.
    pub heads: Heads,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the gated MLP.
    pub intermediate: usize,
    /// Rows of the embedding table.
    pub vocab: usize,
    /// Longest context the model was made for, tokens.
    pub max_position: usize,
    /// Added to the mean square in every norm.
    pub eps: f32,
    /// Rotary embedding.
    pub rope: Rope,
    /// Which linear layers have biases.
    pub biases: Biases,
    /// The output head is the embedding table.
    pub tied: bool,
    /// Begins a text.
    pub bos: Option<u32>,
    /// Each ends a generation.
    pub eos: Vec<u32>,
}

/// Linear layers with a bias.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Biases {
    /// Query, key and value projections (Qwen2 always).
    pub qkv: bool,
    /// Output projection.
    pub output: bool,
    /// Gate, up and down projections.
    pub mlp: bool,
}

impl ModelConfig {
    /// Reads config.json and, where the folder has one, generation_config.json, whose eos ids win.
    pub fn from_json(config: &[u8], generation: Option<&[u8]>) -> Result<Self, ModelError> {
        let keys: Keys = parse("config.json", config)?;
        let generation: Option<GenerationKeys> =
            generation.map(|bytes| parse("generation_config.json", bytes)).transpose()?;
        keys.resolve(generation.unwrap_or_default())
    }

    /// Rotary frequencies `(dim / 2)`, in f32 as the reference computes them.
    pub fn inv_freq(&self) -> Vec<f32> {
        self.rope.inv_freq(self.heads.dim)
    }

    /// Bytes of the weights that `parts` of the model take, computed in `dtype`, with linear layers of 8 bits and a scale for each
    /// output where that is said. A head that is the embedding table is laid out once more.
    pub fn weight_bytes(&self, parts: Parts, (dtype, eight_bits): (DType, bool)) -> u64 {
        let &Self { hidden, intermediate, vocab, biases, heads, .. } = self;
        let (query, kv) = (heads.query * heads.dim, heads.kv * heads.dim);
        let element = if dtype == DType::F32 { 4 } else { 2 };
        let linears = [
            (query + 2 * kv, hidden, biases.qkv),
            (hidden, query, biases.output),
            (2 * intermediate, hidden, biases.mlp),
            (hidden, intermediate, biases.mlp),
        ];
        let linear = |(outputs, inputs, biased): (usize, usize, bool)| {
            let bias = if biased { element * outputs } else { 0 };
            let weights = if eight_bits { outputs * inputs + 4 * outputs } else { element * outputs * inputs };
            weights + bias
        };
        let layer = element * 2 * hidden + linears.map(linear).iter().sum::<usize>();
        let head = match parts {
            Parts::Context => 0,
            Parts::Query | Parts::All => element * (hidden + vocab * hidden),
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
            intermediate: self.intermediate,
            vocab: self.vocab,
            kv_bytes_per_element: if kv == DType::F32 { 4 } else { 2 },
        }
    }
}

/// config.json as typed.
#[derive(Deserialize)]
struct Keys {
    model_type: Option<String>,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    vocab_size: usize,
    max_position_embeddings: usize,
    rms_norm_eps: Option<f64>,
    #[serde(flatten)]
    options: OptionKeys,
    #[serde(flatten)]
    rope: RopeKeys,
}

/// The keys that only some checkpoints have.
#[derive(Deserialize)]
struct OptionKeys {
    hidden_act: Option<String>,
    tie_word_embeddings: Option<bool>,
    attention_bias: Option<bool>,
    mlp_bias: Option<bool>,
    use_sliding_window: Option<bool>,
    sliding_window: Option<usize>,
    layer_types: Option<Vec<String>>,
    bos_token_id: Option<Ids>,
    eos_token_id: Option<Ids>,
}

/// generation_config.json as typed.
#[derive(Default, Deserialize)]
struct GenerationKeys {
    eos_token_id: Option<Ids>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Ids {
    One(u32),
    Many(Vec<u32>),
}

impl Ids {
    fn into_vec(self) -> Vec<u32> {
        match self {
            Self::One(id) => vec![id],
            Self::Many(ids) => ids,
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Family {
    Llama,
    Mistral,
    Qwen2,
}

impl Keys {
    fn resolve(self, generation: GenerationKeys) -> Result<ModelConfig, ModelError> {
        let family = self.family()?;
        let options = &self.options;
        self.refuse_sliding_window(family)?;
        match options.hidden_act.as_deref() {
            None | Some("silu" | "swish") => {}
            Some(other) => return Err(refused("hidden_act", other, "the gated MLP is computed with silu")),
        }
        let attention_bias = options.attention_bias.unwrap_or(false) && family == Family::Llama;
        let biases = Biases {
            qkv: attention_bias || family == Family::Qwen2,
            output: attention_bias,
            mlp: options.mlp_bias.unwrap_or(false) && family == Family::Llama,
        };
        Ok(ModelConfig {
            layers: counted("num_hidden_layers", self.num_hidden_layers, 1 << 12)?,
            heads: self.heads()?,
            hidden: counted("hidden_size", self.hidden_size, 1 << 18)?,
            intermediate: counted("intermediate_size", self.intermediate_size, 1 << 20)?,
            vocab: counted("vocab_size", self.vocab_size, 1 << 24)?,
            max_position: counted("max_position_embeddings", self.max_position_embeddings, 1 << 28)?,
            eps: self.eps()?,
            rope: self.rope.resolve(self.max_position_embeddings)?,
            biases,
            tied: options.tie_word_embeddings.unwrap_or(false),
            bos: self.options.bos_token_id.and_then(|ids| ids.into_vec().first().copied()),
            eos: generation.eos_token_id.or(self.options.eos_token_id).map(Ids::into_vec).unwrap_or_default(),
        })
    }

    fn family(&self) -> Result<Family, ModelError> {
        match self.model_type.as_deref() {
            Some("llama") => Ok(Family::Llama),
            Some("mistral") => Ok(Family::Mistral),
            Some("qwen2") => Ok(Family::Qwen2),
            other => {
                Err(refused("model_type", other.unwrap_or("(none)"), "llama, mistral and qwen2 decoders are supported"))
            }
        }
    }

    fn eps(&self) -> Result<f32, ModelError> {
        let eps = self.rms_norm_eps.unwrap_or(1e-6);
        match eps as f32 {
            small if small > 0.0 && small < 1.0 => Ok(small),
            _ => Err(refused("rms_norm_eps", eps, "expected a number above 0 and below 1")),
        }
    }

    fn heads(&self) -> Result<Heads, ModelError> {
        let query = counted("num_attention_heads", self.num_attention_heads, 1 << 12)?;
        let kv = counted("num_key_value_heads", self.num_key_value_heads.unwrap_or(query), 1 << 12)?;
        if !query.is_multiple_of(kv) {
            return Err(refused("num_key_value_heads", kv, "it must divide num_attention_heads"));
        }
        if self.head_dim.is_none() && !self.hidden_size.is_multiple_of(query) {
            return Err(refused(
                "hidden_size",
                self.hidden_size,
                "without head_dim, num_attention_heads must divide it",
            ));
        }
        let dim = counted("head_dim", self.head_dim.unwrap_or(self.hidden_size / query), 1 << 12)?;
        if !dim.is_multiple_of(2) {
            return Err(refused("head_dim", dim, "it must be even"));
        }
        Ok(Heads { query, kv, dim })
    }

    /// A window as long as the model's context hides nothing and passes.
    fn refuse_sliding_window(&self, family: Family) -> Result<(), ModelError> {
        let options = &self.options;
        let used = match family {
            Family::Llama => false,
            Family::Mistral => true,
            Family::Qwen2 => options.use_sliding_window.unwrap_or(false),
        };
        let window = options.sliding_window.filter(|_| used).unwrap_or(usize::MAX);
        if window < self.max_position_embeddings {
            return Err(refused("sliding_window", window, "layers with a sliding window are not computed"));
        }
        let types = options.layer_types.iter().flatten();
        match types.into_iter().find(|kind| *kind != "full_attention") {
            Some(kind) => Err(refused("layer_types", kind, "every layer must have full attention")),
            None => Ok(()),
        }
    }
}

pub(crate) fn parse<'a, T: Deserialize<'a>>(path: &str, bytes: &'a [u8]) -> Result<T, ModelError> {
    serde_json::from_slice(bytes)
        .map_err(|error| ModelError::Malformed { path: path.to_owned(), cause: error.to_string() })
}

fn refused(key: &'static str, got: impl ToString, supported: impl Into<String>) -> ModelError {
    ModelError::Config { key, got: got.to_string(), supported: supported.into() }
}

/// Far above any model that is, and low enough that no product of these sizes is more than a 64-bit integer holds.
fn counted(key: &'static str, value: usize, most: usize) -> Result<usize, ModelError> {
    if (1..=most).contains(&value) { Ok(value) } else { Err(refused(key, value, format!("expected 1 to {most}"))) }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn base() -> Value {
        json!({
            "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
            "num_attention_heads": 4, "vocab_size": 512, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0, "bos_token_id": 0, "eos_token_id": 1, "some_future_key": {"a": [1]},
        })
    }

    fn with(changes: Value) -> Result<ModelConfig, ModelError> {
        let mut config = base();
        for (key, value) in changes.as_object().expect("an object") {
            config[key] = value.clone();
        }
        ModelConfig::from_json(config.to_string().as_bytes(), None)
    }

    #[test]
    fn weights_of_the_embedded_model() {
        let checkpoint = crate::Checkpoint::embedded().unwrap();
        let bytes = |parts, dtype| checkpoint.config().weight_bytes(parts, (dtype, false));
        let (table, layer) = (4096 * 256, 256 * 512 + 256 * 256 + 3 * 256 * 768 + 2 * 256);
        assert_eq!(bytes(Parts::Context, DType::F32), 4 * (table + 8 * layer));
        assert_eq!(bytes(Parts::Query, DType::Bf16), 2 * (2 * table + 8 * layer + 256));
        let (linears, outputs) = (layer - 2 * 256, 512 + 256 + 2 * 768 + 256);
        let eight_bits = checkpoint.config().weight_bytes(Parts::Context, (DType::Bf16, true));
        assert_eq!(eight_bits, 2 * table + 8 * (linears + 4 * outputs + 2 * 2 * 256));
    }

    #[test]
    fn absent_keys_take_the_defaults_of_the_family() {
        let config = with(json!({})).unwrap();
        assert_eq!(config.heads, Heads { query: 4, kv: 4, dim: 16 });
        assert_eq!((config.biases, config.tied), (Biases::default(), false));
        assert_eq!((config.bos, config.eos.as_slice()), (Some(0), &[1][..]));
        let qwen = with(json!({"model_type": "qwen2", "num_key_value_heads": 2})).unwrap();
        assert_eq!(qwen.biases, Biases { qkv: true, output: false, mlp: false });
        assert_eq!(qwen.heads.kv, 2);
    }

    #[test]
    fn both_generations_of_config_agree() {
        let scaling = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64});
        let old = with(json!({"rope_scaling": scaling, "torch_dtype": "bfloat16"})).unwrap();
        let mut parameters = scaling.clone();
        parameters["rope_theta"] = json!(500000.0);
        let new = with(json!({"rope_theta": null, "rope_parameters": parameters, "dtype": "bfloat16"})).unwrap();
        assert_eq!(old, new);
        assert!(matches!(old.rope, Rope::Llama3 { .. }));
    }

    #[test]
    fn eos_ids_of_generation_config_win() {
        let config = base().to_string();
        let read = |generation: &[u8]| ModelConfig::from_json(config.as_bytes(), Some(generation)).unwrap().eos;
        assert_eq!(read(br#"{"eos_token_id": [7, 8], "top_p": 0.9}"#), [7, 8]);
        assert_eq!(read(br#"{"temperature": 0.6}"#), [1]);
    }

    #[test]
    fn what_would_change_the_arithmetic_is_refused() {
        let cases = [
            json!({"model_type": "gemma"}),
            json!({"hidden_act": "gelu"}),
            json!({"num_key_value_heads": 3}),
            json!({"num_hidden_layers": 0}),
            json!({"rope_scaling": {"type": "yarn", "factor": 4.0}}),
            json!({"partial_rotary_factor": 0.5}),
            json!({"model_type": "mistral", "sliding_window": 1024}),
            json!({"model_type": "qwen2", "use_sliding_window": true, "sliding_window": 1024}),
            json!({"layer_types": ["full_attention", "sliding_attention"]}),
            json!({"rope_theta": 0.0}),
            json!({"rope_theta": -10000.0}),
            json!({"rope_scaling": {"rope_type": "linear", "factor": 1e39}}),
            json!({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0}}),
            json!({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": -1.0}}),
            json!({"rms_norm_eps": -1e-5}),
            json!({"rms_norm_eps": 0.0}),
            json!({"rms_norm_eps": 1e-60}),
            json!({"rms_norm_eps": 1e60}),
            json!({"num_attention_heads": 0}),
            json!({"num_key_value_heads": 0}),
            json!({"num_attention_heads": 5}),
            json!({"head_dim": 0}),
            json!({"head_dim": usize::MAX - 1}),
            json!({"hidden_size": 1usize << 62}),
            json!({"vocab_size": usize::MAX}),
            json!({"intermediate_size": usize::MAX}),
            json!({"num_hidden_layers": usize::MAX}),
            json!({"max_position_embeddings": 0}),
            json!({"max_position_embeddings": usize::MAX}),
        ];
        for case in cases {
            assert_eq!(with(case.clone()).unwrap_err().code(), "model_config_unsupported", "{case}");
        }
        with(json!({"model_type": "qwen2", "use_sliding_window": false, "sliding_window": 1024})).unwrap();
        with(json!({"model_type": "mistral", "sliding_window": null})).unwrap();
    }
}
