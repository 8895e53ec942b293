//! Every key of config.json that transformers' classes for a decoder's family have or that could change its numbers: what it does,
//! and what stands for it where the file does not have it. A family is a column. Keys that stand nowhere here are ignored.

use std::{fmt::Display, sync::LazyLock};

use serde_json::{Map, Value};

use crate::ModelError;

/// Which of transformers' classes computes a checkpoint, by its `model_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    Llama,
    Mistral,
    Qwen2,
}

/// The families by their `model_type`, in the order of a key's columns.
pub(super) const FAMILIES: [(&str, Family); 3] =
    [("llama", Family::Llama), ("mistral", Family::Mistral), ("qwen2", Family::Qwen2)];

/// What a key does.
pub(super) enum Effect {
    /// What is computed depends on it. For each family the JSON that stands for an absent key, or that its class has no such key and
    /// the file's is without influence.
    Computed([Option<&'static str>; 3]),
    /// No number of a forward pass depends on it.
    Unused,
    /// These values change nothing, others would: they are refused, with what to do.
    Only(&'static [&'static str], &'static str),
}

/// A key of config.json.
pub(super) struct Key {
    pub name: &'static str,
    pub effect: Effect,
}

const fn computed(name: &'static str, absent: [&'static str; 3]) -> Key {
    let [llama, mistral, qwen2] = absent;
    Key { name, effect: Effect::Computed([Some(llama), Some(mistral), Some(qwen2)]) }
}

const fn of_some(name: &'static str, absent: [Option<&'static str>; 3]) -> Key {
    Key { name, effect: Effect::Computed(absent) }
}

const fn unused(name: &'static str) -> Key {
    Key { name, effect: Effect::Unused }
}

const fn only(name: &'static str, values: &'static [&'static str], remedy: &'static str) -> Key {
    Key { name, effect: Effect::Only(values, remedy) }
}

/// The table, after the classes `LlamaConfig`, `MistralConfig` and `Qwen2Config` of transformers 5.
#[rustfmt::skip]
pub(super) const KEYS: &[Key] = &[
    //                                    llama      mistral    qwen2
    computed("vocab_size",              ["32000",   "32000",   "151936"]),
    computed("hidden_size",             ["4096",    "4096",    "4096"]),
    computed("intermediate_size",       ["11008",   "14336",   "22016"]),
    computed("num_hidden_layers",       ["32",      "32",      "32"]),
    computed("num_attention_heads",     ["32",      "32",      "32"]),
    computed("num_key_value_heads",     ["null",    "8",       "32"]),
    computed("head_dim",                ["null",    "null",    "null"]),
    computed("max_position_embeddings", ["2048",    "131072",  "32768"]),
    computed("rms_norm_eps",            ["1e-6",    "1e-6",    "1e-6"]),
    computed("tie_word_embeddings",     ["false",   "false",   "false"]),
    computed("bos_token_id",            ["1",       "1",       "null"]),
    computed("eos_token_id",            ["2",       "2",       "null"]),
    computed("sliding_window",          ["null",    "4096",    "4096"]),
    computed("layer_types",             ["null",    "null",    "null"]),
    of_some("use_sliding_window",       [None,       None,      Some("false")]),
    of_some("max_window_layers",        [None,       None,      Some("28")]),
    of_some("attention_bias",           [Some("false"), None,   None]),
    of_some("mlp_bias",                 [Some("false"), None,   None]),
    // What rope.rs reads. The first of the two dictionaries that says something is read alone.
    computed("rope_scaling",            ["null",    "null",    "null"]),
    computed("rope_parameters",         ["null",    "null",    "null"]),
    computed("rope_theta",              ["10000.0", "10000.0", "10000.0"]),
    of_some("partial_rotary_factor",    [Some("1.0"), Some("1.0"), Some("1.0")]),
    computed("original_max_position_embeddings", ["null", "null", "null"]),
    only("hidden_act", &[r#""silu""#, r#""swish""#], "the gated MLP is computed with silu"),
    only("is_causal", &["true"], "every token sees those before it, and no other"),
    only("is_encoder_decoder", &["false"], "decoders alone are computed"),
    only("attention_chunk_size", &["null"], "attention in chunks is not computed"),
    only("kv_sharing_modes", &["null"], "every layer has keys and values of its own"),
    only("configuration_files", &["null", "[]"], "no other file is read: put what counts into this one"),
    only("transformers_weights", &["null"], "weights are model.safetensors, or what its index names"),
    only("per_layer_config", &["null", "{}"], "all layers are alike"),
    only("quantization_config", &["null"], "weights are read as bf16, f16 or f32: take the checkpoint that was quantised"),
    only("compression_config", &["null"], "weights are read as bf16, f16 or f32: take the checkpoint that was compressed"),
    unused("architectures"),
    unused("attention_dropout"),
    unused("auto_map"),
    unused("dtype"),
    unused("initializer_range"),
    unused("output_attentions"),
    unused("output_hidden_states"),
    unused("pad_token_id"),
    unused("pretraining_tp"),
    unused("return_dict"),
    unused("tie_last_hidden_states"),
    unused("torch_dtype"),
    unused("transformers_version"),
    unused("use_cache"),
];

/// The keys of a config.json, read by the table.
pub(super) struct Fields {
    pub family: Family,
    column: usize,
    json: Map<String, Value>,
}

impl Fields {
    /// Of a family that is computed, and no key with a value that is refused.
    pub fn new(json: Map<String, Value>) -> Result<Self, ModelError> {
        let given = json.get("model_type").and_then(Value::as_str).unwrap_or("(none)");
        let Some(column) = FAMILIES.iter().position(|(name, _)| *name == given) else {
            return Err(refused("model_type", given, "llama, mistral and qwen2 decoders are supported"));
        };
        for key in KEYS {
            let (Effect::Only(values, remedy), Some(got)) = (&key.effect, json.get(key.name)) else { continue };
            let harmless = |value: &&str| serde_json::from_str::<Value>(value).is_ok_and(|value| value == *got);
            if !values.iter().any(harmless) {
                return Err(refused(key.name, described(got), *remedy));
            }
        }
        Ok(Self { family: FAMILIES[column].1, column, json })
    }

    /// The file's value, or the class's where the file has none or the class does not read it.
    ///
    /// # Panics
    /// For a key that the table does not have as one that is computed with.
    pub fn value(&self, name: &'static str) -> &Value {
        static NULL: Value = Value::Null;
        static ABSENT: LazyLock<Vec<[Option<Value>; 3]>> = LazyLock::new(|| KEYS.iter().map(absent).collect());
        let at = KEYS.iter().position(|key| key.name == name).expect("a key of the table");
        assert!(matches!(KEYS[at].effect, Effect::Computed(_)), "{name} is computed with");
        match &ABSENT[at][self.column] {
            None => &NULL,
            Some(absent) => self.json.get(name).unwrap_or(absent),
        }
    }

    /// Whether the file has a key, be it null.
    pub fn has(&self, name: &str) -> bool {
        self.json.contains_key(name)
    }

    /// An integer from 1 to `most`: far above any model that is, and low enough that no product of such sizes is more than a
    /// 64-bit integer holds.
    pub fn count(&self, name: &'static str, most: usize) -> Result<usize, ModelError> {
        counted(name, self.value(name), most)
    }

    /// [`Fields::count`], or none.
    pub fn count_or_none(&self, name: &'static str, most: usize) -> Result<Option<usize>, ModelError> {
        match self.value(name) {
            Value::Null => Ok(None),
            value => counted(name, value, most).map(Some),
        }
    }

    /// True or false; false of a class that does not have the key.
    pub fn flag(&self, name: &'static str) -> Result<bool, ModelError> {
        match self.value(name) {
            Value::Bool(flag) => Ok(*flag),
            Value::Null if !self.has(name) || self.of_other_class(name) => Ok(false),
            other => Err(refused(name, described(other), "expected true or false")),
        }
    }

    /// A finite number above 0.
    pub fn positive(&self, name: &'static str) -> Result<f64, ModelError> {
        positive(name, self.value(name))
    }

    /// Token ids: one, several or none. What is no id of any vocabulary, as -1, stands for none.
    pub fn ids(&self, name: &'static str) -> Result<Vec<u32>, ModelError> {
        ids(name, self.value(name))
    }

    fn of_other_class(&self, name: &str) -> bool {
        KEYS.iter().any(|key| key.name == name && absent(key)[self.column].is_none())
    }
}

fn absent(key: &Key) -> [Option<Value>; 3] {
    match key.effect {
        Effect::Computed(values) => {
            values.map(|value| value.map(|json| serde_json::from_str(json).expect("the table has JSON")))
        }
        _ => [None, None, None],
    }
}

/// Ids as config.json and generation_config.json have them.
pub(super) fn ids(name: &'static str, value: &Value) -> Result<Vec<u32>, ModelError> {
    let listed = match value {
        Value::Null => &[],
        Value::Array(listed) => &listed[..],
        one => std::slice::from_ref(one),
    };
    let id = |value: &Value| match value.as_i64() {
        Some(id) => Ok(u32::try_from(id).ok()),
        None => Err(refused(name, described(value), "expected a token id, a list of them, or null")),
    };
    Ok(listed.iter().map(id).collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
}

pub(super) fn counted(name: &'static str, value: &Value, most: usize) -> Result<usize, ModelError> {
    let count = value.as_u64().and_then(|count| usize::try_from(count).ok());
    count
        .filter(|count| (1..=most).contains(count))
        .ok_or_else(|| refused(name, described(value), format!("expected an integer from 1 to {most}")))
}

pub(super) fn positive(name: &'static str, value: &Value) -> Result<f64, ModelError> {
    // Powers and quotients are taken in f32.
    let fits = |number: &f64| *number > 0.0 && (*number as f32).is_finite() && *number as f32 > 0.0;
    value.as_f64().filter(fits).ok_or_else(|| refused(name, described(value), "expected a finite number above 0"))
}

pub(super) fn refused(key: &'static str, got: impl Display, supported: impl Into<String>) -> ModelError {
    ModelError::Config { key, got: got.to_string(), supported: supported.into() }
}

/// A value as JSON, not at length; of a quantisation its method.
pub(super) fn described(value: &Value) -> String {
    const SHOWN: usize = 80;
    if let Some(method) = value.get("quant_method").and_then(Value::as_str) {
        return format!("quant_method {method}");
    }
    // Before it wrote its name, bitsandbytes said what it loads.
    if ["load_in_4bit", "load_in_8bit"].iter().any(|key| value.get(*key).and_then(Value::as_bool) == Some(true)) {
        return "quant_method bitsandbytes".to_owned();
    }
    let text = value.to_string();
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_table_names_each_key_once_and_has_json() {
        let names: BTreeSet<&str> = KEYS.iter().map(|key| key.name).collect();
        assert_eq!(names.len(), KEYS.len());
        for key in KEYS {
            absent(key);
            if let Effect::Only(values, _) = &key.effect {
                values.iter().for_each(|value| drop(serde_json::from_str::<Value>(value).expect(key.name)));
            }
        }
    }
}
