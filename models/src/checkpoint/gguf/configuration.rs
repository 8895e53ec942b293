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
/// Keys that say that a model computes something else.
const OTHERWISE: [(&str, &str); 4] = [
    ("expert_count", "no mixture of experts"),
    ("attention.clamp_kqv", "none"),
    ("attn_logit_softcapping", "none"),
    ("final_logit_softcapping", "none"),
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
}

/// config.json of a model.
pub(super) fn config_json(
    metadata: &Metadata<'_>,
    architecture: &Architecture,
    shape: Shapes<'_>,
    factors: Factors<'_>,
) -> Result<Value, ModelError> {
    let keys = Keys { metadata, architecture: architecture.name };
    for (name, expected) in OTHERWISE {
        match keys.float(name)? {
            Some(other) if other != 0.0 => return Err(metadata.refuses(&keys.key(name), other.to_string(), expected)),
            _ => {}
        }
    }
    let [vocab, _] = shape("model.embed_tokens.weight").unwrap_or_default() else {
        return Err(metadata.refuses("tensor token_embd.weight", "missing, or no table", "a row for each token"));
    };
    let epsilon = "attention.layer_norm_rms_epsilon";
    let mut config = json!({
        "model_type": architecture.model_type,
        "vocab_size": vocab,
        "hidden_size": keys.needed("embedding_length")?,
        "intermediate_size": keys.needed("feed_forward_length")?,
        "num_hidden_layers": keys.needed("block_count")?,
        "num_attention_heads": keys.needed("attention.head_count")?,
        "rms_norm_eps": metadata.needed(&keys.key(epsilon), keys.float(epsilon)?)?,
        "max_position_embeddings": keys.needed("context_length")?,
        "rope_theta": keys.float("rope.freq_base")?.unwrap_or(10_000.0),
        "tie_word_embeddings": shape("lm_head.weight").is_none(),
        "attention_bias": architecture.model_type == "llama" && shape("model.layers.0.self_attn.q_proj.bias").is_some(),
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
    let Some(dim) = keys.count("attention.key_length")? else { return Ok(()) };
    match keys.count("attention.value_length")? {
        Some(other) if other != dim => {
            let key = keys.key("attention.value_length");
            return Err(keys.metadata.refuses(&key, other.to_string(), format!("attention.key_length = {dim}")));
        }
        _ => {}
    }
    // Where heads divide the residual stream, it says nothing that some families would refuse.
    let implied = |key: &str| config[key].as_u64().unwrap_or(0);
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
            let kind = |layer: u64| if (layer + 1).is_multiple_of(6) { "full_attention" } else { "sliding_attention" };
            config.insert("layer_types".into(), (0..layers.min(1 << 12)).map(kind).collect());
            config.insert(
                "sliding_window".into(),
                json!(keys.metadata.needed(&keys.key("attention.sliding_window"), window)?),
            );
            config.insert("rope_local_base_freq".into(), json!(10_000.0));
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
    let kind = metadata.text(&keys.key("rope.scaling.type"))?.unwrap_or("none");
    let factor = || {
        let key = "rope.scaling.factor";
        metadata.needed(&keys.key(key), keys.float(key)?)
    };
    let by_pair =
        [factors("rope_freqs.weight")?, factors("rope_factors_short.weight")?, factors("rope_factors_long.weight")?];
    let scaling = match (by_pair, kind) {
        ([Some(all), _, _], _) => Some(divided((&all, &all), original, Some(1.0))),
        ([_, Some(short), Some(long)], _) => {
            Some(divided((&short, &long), original, keys.float("rope.scaling.attn_factor")?))
        }
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
