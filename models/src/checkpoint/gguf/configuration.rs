//! The shape of a model in GGUF, in the keys of config.json. Reads no tensor but those that say how positions are turned.

use serde_json::{Map, Value, json};

use super::{metadata::Metadata, names::Architecture};
use crate::ModelError;

/// The shape of a tensor by its name in transformers.
type Shapes<'a> = &'a dyn Fn(&str) -> Option<&'a [usize]>;
/// The numbers of a tensor by its name in the file.
type Factors<'a> = &'a dyn Fn(&str) -> Result<Option<Vec<f32>>, ModelError>;

/// Bounds of counts: those of config.json are narrower, and named there.
const MOST: u64 = 1 << 31;
/// The base that positions are turned by where the file has none.
const BASE: f64 = 10_000.0;
/// Of so many layers of Gemma 3 the last sees all keys.
const GEMMA_PERIOD: u64 = 6;
/// Keys that say that a model computes something else, but for one value.
const OTHERWISE: [(&str, f64, &str); 7] = [
    ("expert_count", 0.0, "no mixture of experts"),
    ("attention.clamp_kqv", 0.0, "none"),
    ("attention.max_alibi_bias", 0.0, "none"),
    ("attn_logit_softcapping", 0.0, "none"),
    ("final_logit_softcapping", 0.0, "none"),
    ("rope.scaling.yarn_ext_factor", 1.0, "1"),
    ("rope.scaling.yarn_attn_factor", 1.0, "1"),
];
/// What begins the keys of which none is passed over: one that is not known would change what is computed.
const COMPUTED: [&str; 2] = ["attention.", "rope."];
/// Keys of these that are known, of all architectures.
const KNOWN_KEYS: [&str; 18] = [
    "attention.causal",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_epsilon",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "attention.value_length",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.attn_factor",
    "rope.scaling.factor",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
];

/// Keys of one architecture.
struct Keys<'a> {
    metadata: &'a Metadata<'a>,
    architecture: &'a str,
}

impl Keys<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    fn count(&self, name: &str) -> Result<Option<u64>, ModelError> {
        self.metadata.count(&self.key(name), MOST)
    }

    fn needed(&self, name: &str) -> Result<u64, ModelError> {
        self.metadata.needed(&self.key(name), self.count(name)?)
    }

    fn float(&self, name: &str) -> Result<Option<f64>, ModelError> {
        self.metadata.float(&self.key(name))
    }

    /// Refuses what would change the arithmetic in a way that is not known here.
    fn are_known(&self, architecture: &Architecture) -> Result<(), ModelError> {
        let prefix = self.key("");
        let known = |name: &&str| {
            let listed = KNOWN_KEYS.contains(name) || OTHERWISE.iter().any(|(key, ..)| key == name);
            listed || architecture.keys.contains(name) || !COMPUTED.iter().any(|start| name.starts_with(start))
        };
        let mut names = self.metadata.keys().filter_map(|key| key.strip_prefix(&prefix));
        if let Some(other) = names.find(|name| !known(name)) {
            let key = self.key(other);
            let got = self.metadata.field(&key).map(|field| field.shown()).unwrap_or_default();
            return Err(self.metadata.refuses(&key, got, "no such key: what it changes is not computed here"));
        }
        match self.metadata.flag(&self.key("attention.causal"))? {
            Some(false) => Err(self.metadata.refuses(&self.key("attention.causal"), "false", "true")),
            _ => Ok(()),
        }
    }
}

/// config.json of a model.
pub(super) fn config_json(
    metadata: &Metadata<'_>,
    architecture: &Architecture,
    shape: Shapes<'_>,
    factors: Factors<'_>,
) -> Result<Value, ModelError> {
    let keys = Keys { metadata, architecture: architecture.name };
    for (name, neutral, expected) in OTHERWISE {
        match keys.float(name)? {
            Some(other) if other != neutral => {
                return Err(metadata.refuses(&keys.key(name), other.to_string(), expected));
            }
            _ => {}
        }
    }
    keys.are_known(architecture)?;
    let [vocab, _] = shape("model.embed_tokens.weight").unwrap_or_default() else {
        return Err(metadata.refuses("tensor token_embd.weight", "missing, or no table", "a row for each token"));
    };
    let epsilon = "attention.layer_norm_rms_epsilon";
    let of_layer = |names: &[&str]| names.iter().any(|name| shape(&format!("model.layers.0.{name}")).is_some());
    let mut config = json!({
        "model_type": architecture.model_type,
        "vocab_size": vocab,
        "hidden_size": keys.needed("embedding_length")?,
        "intermediate_size": keys.needed("feed_forward_length")?,
        "num_hidden_layers": keys.needed("block_count")?,
        "num_attention_heads": keys.needed("attention.head_count")?,
        "rms_norm_eps": metadata.needed(&keys.key(epsilon), keys.float(epsilon)?)?,
        "max_position_embeddings": keys.needed("context_length")?,
        "rope_theta": keys.float("rope.freq_base")?.unwrap_or(BASE),
        "tie_word_embeddings": shape("lm_head.weight").is_none(),
        "attention_bias": of_layer(&["self_attn.q_proj.bias", "self_attn.o_proj.bias"]) && architecture.has("attention_bias"),
        "mlp_bias": of_layer(&["mlp.gate_proj.bias", "mlp.down_proj.bias"]) && architecture.has("mlp_bias"),
        "bos_token_id": metadata.count("tokenizer.ggml.bos_token_id", MOST)?,
        "eos_token_id": super::tokenizer::ends(metadata)?,
    });
    let object = config.as_object_mut().expect("an object was written");
    heads(&keys, object)?;
    windows(&keys, architecture, object)?;
    rotation(&keys, object, factors)?;
    Ok(config)
}

fn heads(keys: &Keys<'_>, config: &mut Map<String, Value>) -> Result<(), ModelError> {
    if let Some(kv) = keys.count("attention.head_count_kv")? {
        config.insert("num_key_value_heads".into(), kv.into());
    } else {
        config.insert("num_key_value_heads".into(), config["num_attention_heads"].clone());
    }
    let implied = |key: &str| config[key].as_u64().unwrap_or(0);
    let even = implied("hidden_size") / implied("num_attention_heads").max(1);
    let dim = keys.count("attention.key_length")?.unwrap_or(even);
    match keys.count("attention.value_length")? {
        Some(other) if other != dim => {
            let key = keys.key("attention.value_length");
            return Err(keys.metadata.refuses(&key, other.to_string(), format!("{dim}, as keys have")));
        }
        _ => {}
    }
    // Where heads divide the residual stream, it says nothing that some families would refuse.
    if implied("hidden_size") != dim * implied("num_attention_heads") || config["model_type"] != "llama" {
        config.insert("head_dim".into(), dim.into());
    }
    Ok(())
}

/// Which layers see how far.
fn windows(keys: &Keys<'_>, architecture: &Architecture, config: &mut Map<String, Value>) -> Result<(), ModelError> {
    let window = keys.count("attention.sliding_window")?.filter(|window| *window > 0);
    match (architecture.model_type, window) {
        ("mistral" | "phi3", window) => {
            config.insert("sliding_window".into(), json!(window));
        }
        ("gemma3_text", window) => {
            let layers = config["num_hidden_layers"].as_u64().unwrap_or(0);
            let period = keys.count("attention.sliding_window_pattern")?.unwrap_or(GEMMA_PERIOD);
            let is_full = |layer: u64| (layer + 1).is_multiple_of(period);
            let kind = |layer: u64| if is_full(layer) { "full_attention" } else { "sliding_attention" };
            config.insert("layer_types".into(), (0..layers.min(1 << 12)).map(kind).collect());
            config.insert(
                "sliding_window".into(),
                json!(keys.metadata.needed(&keys.key("attention.sliding_window"), window)?),
            );
            config.insert("rope_local_base_freq".into(), json!(keys.float("rope.freq_base_swa")?.unwrap_or(BASE)));
            // Of the largest alone it is the width of the stream a head, not a head's.
            let dim = keys.needed("attention.key_length")?;
            let scalar = if layers == 62 {
                keys.needed("embedding_length")? / keys.needed("attention.head_count")?.max(1)
            } else {
                dim
            };
            config.insert("query_pre_attn_scalar".into(), scalar.into());
            config.insert("hidden_activation".into(), "gelu_pytorch_tanh".into());
        }
        _ => {}
    }
    Ok(())
}

/// How positions are turned, and how far beyond what the model was trained for.
fn rotation(keys: &Keys<'_>, config: &mut Map<String, Value>, factors: Factors<'_>) -> Result<(), ModelError> {
    let metadata = keys.metadata;
    let dim = config.get("head_dim").cloned();
    let implied =
        config["hidden_size"].as_u64().unwrap_or(0) / config["num_attention_heads"].as_u64().unwrap_or(1).max(1);
    let dim = dim.and_then(|dim| dim.as_u64()).unwrap_or(implied);
    match keys.count("rope.dimension_count")? {
        Some(turned) if turned != dim => {
            let key = keys.key("rope.dimension_count");
            return Err(metadata.refuses(&key, turned.to_string(), format!("all {dim} elements of a head")));
        }
        _ => {}
    }
    let context = keys.needed("context_length")?;
    let original = keys.count("rope.scaling.original_context_length")?.unwrap_or(context);
    // An older key says the same.
    let given = keys.float("rope.scaling.factor")?.or(keys.float("rope.scale_linear")?).filter(|factor| *factor != 0.0);
    let untold = if given.is_some() { "linear" } else { "none" };
    let kind = metadata.text(&keys.key("rope.scaling.type"))?.unwrap_or(untold);
    let factor = || metadata.needed(&keys.key("rope.scaling.factor"), given);
    let attention = keys.float("rope.scaling.attn_factor")?;
    let by_pair =
        [factors("rope_freqs.weight")?, factors("rope_factors_short.weight")?, factors("rope_factors_long.weight")?];
    let scaling = match (by_pair, kind) {
        ([_, Some(short), Some(long)], _) => Some(divided((&short, &long), original, attention)),
        _ if attention.is_some_and(|factor| factor != 1.0) => {
            let got = attention.unwrap_or_default().to_string();
            return Err(metadata.refuses(&keys.key("rope.scaling.attn_factor"), got, "1, or two tensors of factors"));
        }
        ([Some(all), _, _], _) => Some(divided((&all, &all), original, Some(1.0))),
        (_, "none") => None,
        (_, "linear") => Some(json!({"rope_type": "linear", "factor": factor()?})),
        (_, "yarn") => {
            let mut yarn = json!({
                "rope_type": "yarn", "factor": factor()?, "original_max_position_embeddings": original,
            });
            for (name, key) in
                [("rope.scaling.yarn_beta_fast", "beta_fast"), ("rope.scaling.yarn_beta_slow", "beta_slow")]
            {
                if let Some(given) = keys.float(name)? {
                    yarn[key] = given.into();
                }
            }
            Some(yarn)
        }
        (_, other) => {
            return Err(metadata.refuses(
                &keys.key("rope.scaling.type"),
                other,
                "none, linear or yarn, or tensors of factors",
            ));
        }
    };
    if let Some(scaling) = scaling {
        config.insert("rope_scaling".into(), with_base(scaling, &config["rope_theta"]));
    }
    Ok(())
}

/// Divisors of the frequencies, of sequences up to `original` and beyond.
fn divided((short, long): (&[f32], &[f32]), original: u64, attention: Option<f64>) -> Value {
    let mut scaling = json!({
        "rope_type": "longrope", "short_factor": short, "long_factor": long,
        "original_max_position_embeddings": original,
    });
    if let Some(attention) = attention {
        scaling["attention_factor"] = attention.into();
    }
    scaling
}

fn with_base(mut scaling: Value, theta: &Value) -> Value {
    scaling["rope_theta"] = theta.clone();
    scaling
}

#[cfg(test)]
mod tests {
    use super::{
        super::{header::Header, names},
        *,
    };

    /// A file of these keys alone, with numbers of 4 bytes: whole ones and others.
    fn file(counts: &[(&str, u32)], floats: &[(&str, f32)]) -> Vec<u8> {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend(0u64.to_le_bytes());
        bytes.extend((counts.len() as u64 + floats.len() as u64 + 1).to_le_bytes());
        let text = |bytes: &mut Vec<u8>, text: &str| {
            bytes.extend((text.len() as u64).to_le_bytes());
            bytes.extend(text.bytes());
        };
        text(&mut bytes, "general.architecture");
        bytes.extend(8u32.to_le_bytes());
        text(&mut bytes, "gemma3");
        let counts = counts.iter().map(|(key, count)| (key, 4u32, count.to_le_bytes()));
        let floats = floats.iter().map(|(key, float)| (key, 6u32, float.to_le_bytes()));
        for (key, kind, value) in counts.chain(floats) {
            text(&mut bytes, &format!("gemma3.{key}"));
            bytes.extend(kind.to_le_bytes());
            bytes.extend(value);
        }
        bytes
    }

    #[test]
    fn windows_of_gemma_3_are_as_the_file_has_them() {
        const KEYS: [(&str, u32); 9] = [
            ("embedding_length", 32),
            ("feed_forward_length", 64),
            ("block_count", 7),
            ("attention.head_count", 4),
            ("attention.key_length", 8),
            ("context_length", 256),
            ("attention.sliding_window", 16),
            ("attention.sliding_window_pattern", 3),
            ("rope.dimension_count", 8),
        ];
        for (own, full, base) in [(true, vec![2, 5], 50_000.0), (false, vec![5], 10_000.0)] {
            let keys: Vec<_> =
                KEYS.into_iter().filter(|(key, _)| own || *key != "attention.sliding_window_pattern").collect();
            let floats = [("attention.layer_norm_rms_epsilon", 1e-6), ("rope.freq_base_swa", 50_000.0)];
            let bytes = file(&keys, &floats[..1 + usize::from(own)]);
            let header = Header::read("here", &bytes).unwrap();
            let metadata = Metadata::new("here", &header);
            let architecture = names::architecture(&metadata).unwrap();
            let shape = |name: &str| (name == "model.embed_tokens.weight").then_some(&[100, 32][..]);
            let config = config_json(&metadata, architecture, &shape, &|_| Ok(None)).unwrap();
            let layers = config["layer_types"].as_array().unwrap();
            let seen: Vec<usize> = (0..7).filter(|layer| layers[*layer] == "full_attention").collect();
            assert_eq!((seen, config["rope_local_base_freq"].as_f64()), (full, Some(base)));
        }
    }
}
