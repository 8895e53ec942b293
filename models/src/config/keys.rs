//! Every key of config.json that transformers' classes for a decoder's family have or that could change its numbers, and what it does.
//! What stands for one that the file does not have, its family says. Keys that stand nowhere here are ignored.

use std::fmt::Display;

use serde_json::{Map, Value};

use crate::{
    ModelError,
    family::{FAMILIES, Family, family_of},
};

/// What a key does.
pub(super) enum Effect {
    /// What is computed depends on it, in the families whose class has it.
    Computed,
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

const fn computed(name: &'static str) -> Key {
    Key { name, effect: Effect::Computed }
}

const fn unused(name: &'static str) -> Key {
    Key { name, effect: Effect::Unused }
}

const fn only(name: &'static str, values: &'static [&'static str], remedy: &'static str) -> Key {
    Key { name, effect: Effect::Only(values, remedy) }
}

/// The table.
#[rustfmt::skip]
pub(super) const KEYS: &[Key] = &[
    computed("vocab_size"),
    computed("hidden_size"),
    computed("intermediate_size"),
    computed("num_hidden_layers"),
    computed("num_attention_heads"),
    computed("num_key_value_heads"),
    computed("head_dim"),
    computed("max_position_embeddings"),
    computed("rms_norm_eps"),
    computed("tie_word_embeddings"),
    computed("bos_token_id"),
    computed("eos_token_id"),
    computed("sliding_window"),
    computed("layer_types"),
    computed("use_sliding_window"),
    computed("max_window_layers"),
    computed("hidden_act"),
    computed("hidden_activation"),
    computed("query_pre_attn_scalar"),
    computed("attn_logit_softcapping"),
    computed("final_logit_softcapping"),
    computed("use_bidirectional_attention"),
    computed("sliding_window_pattern"),
    computed("no_rope_layers"),
    computed("no_rope_layer_interval"),
    computed("num_local_experts"),
    computed("num_experts"),
    computed("num_experts_per_tok"),
    computed("norm_topk_prob"),
    computed("swiglu_alpha"),
    computed("swiglu_limit"),
    computed("moe_intermediate_size"),
    computed("decoder_sparse_step"),
    computed("mlp_only_layers"),
    computed("attention_bias"),
    computed("mlp_bias"),
    computed("rope_scaling"),
    computed("rope_parameters"),
    computed("rope_theta"),
    computed("rope_local_base_freq"),
    computed("partial_rotary_factor"),
    computed("original_max_position_embeddings"),
    only("is_causal", &["true"], "every token sees those before it, and no other"),
    only("is_encoder_decoder", &["false"], "decoders alone are computed"),
    only("attention_chunk_size", &["null"], "attention in chunks is not computed"),
    only("kv_sharing_modes", &["null"], "every layer has keys and values of its own"),
    only("clip_qkv", &["null"], "queries, keys and values are not clipped"),
    only("configuration_files", &["null", "[]"], "no other file is read: put what counts into this one"),
    only("transformers_weights", &["null"], "weights are model.safetensors, or what its index names"),
    only("per_layer_config", &["null", "{}"], "all layers are alike"),
    // What the checkpoint reads.
    unused("quantization_config"),
    unused("compression_config"),
    unused("architectures"),
    unused("attention_dropout"),
    unused("auto_map"),
    unused("cache_implementation"),
    unused("dtype"),
    unused("embd_pdrop"),
    unused("initializer_range"),
    unused("output_attentions"),
    unused("output_hidden_states"),
    unused("pad_token_id"),
    unused("output_router_logits"),
    unused("pretraining_tp"),
    unused("resid_pdrop"),
    unused("return_dict"),
    unused("router_aux_loss_coef"),
    unused("router_jitter_noise"),
    unused("tie_last_hidden_states"),
    unused("torch_dtype"),
    unused("transformers_version"),
    unused("use_cache"),
];

/// The keys of a config.json, read by the table.
pub(super) struct Fields {
    pub family: &'static Family,
    /// What stands for keys that the family computes with and the file does not have.
    absent: Map<String, Value>,
    json: Map<String, Value>,
}

impl Fields {
    /// Of a family that is computed, and no key with a value that is refused.
    pub fn new(json: Map<String, Value>) -> Result<Self, ModelError> {
        let given = json.get("model_type").and_then(Value::as_str).unwrap_or("(none)");
        let Some(family) = family_of(given) else {
            let names = FAMILIES.map(|family| family.model_type).join(", ");
            return Err(refused("model_type", given, format!("supported decoders are those of {names}")));
        };
        for key in KEYS {
            let (Effect::Only(values, remedy), Some(got)) = (&key.effect, json.get(key.name)) else { continue };
            let harmless = |value: &&str| serde_json::from_str::<Value>(value).is_ok_and(|value| value == *got);
            if !values.iter().any(harmless) {
                return Err(refused(key.name, described(got), *remedy));
            }
        }
        let computed = KEYS.iter().filter(|key| matches!(key.effect, Effect::Computed));
        let absent = computed.filter_map(|key| Some((key.name.to_owned(), absent(family.absent(key.name)?)))).collect();
        Ok(Self { family, absent, json })
    }

    /// The file's value, or the class's where the file has none or the class does not read it.
    ///
    /// # Panics
    /// For a key that the table does not have as one that is computed with.
    pub fn value(&self, name: &'static str) -> &Value {
        static NULL: Value = Value::Null;
        let key = KEYS.iter().find(|key| key.name == name).expect("a key of the table");
        assert!(matches!(key.effect, Effect::Computed), "{name} is computed with");
        match self.absent.get(name) {
            None => &NULL,
            Some(absent) => self.json.get(name).unwrap_or(absent),
        }
    }

    /// Whether the family's class has a key.
    pub fn is_read(&self, name: &str) -> bool {
        self.absent.contains_key(name)
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
            Value::Null if !self.has(name) || !self.is_read(name) => Ok(false),
            other => Err(refused(name, described(other), "expected true or false")),
        }
    }

    /// A finite number above 0.
    pub fn positive(&self, name: &'static str) -> Result<f64, ModelError> {
        positive(name, self.value(name))
    }

    /// [`Fields::positive`], or none; none of a class that does not have the key.
    pub fn positive_or_none(&self, name: &'static str) -> Result<Option<f64>, ModelError> {
        match self.value(name) {
            Value::Null => Ok(None),
            value => positive(name, value).map(Some),
        }
    }

    /// Token ids: one, several or none. What is no id of any vocabulary, as -1, stands for none.
    pub fn ids(&self, name: &'static str) -> Result<Vec<u32>, ModelError> {
        ids(name, self.value(name))
    }
}

fn absent(json: &str) -> Value {
    serde_json::from_str(json).expect("a family has JSON")
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

/// A value as JSON, not at length.
pub(super) fn described(value: &Value) -> String {
    const SHOWN: usize = 80;
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
    use crate::family::COMMON;

    #[test]
    fn the_table_names_each_key_once_and_has_json() {
        let names: BTreeSet<&str> = KEYS.iter().map(|key| key.name).collect();
        assert_eq!(names.len(), KEYS.len());
        for key in KEYS {
            if let Effect::Only(values, _) = &key.effect {
                values.iter().for_each(|value| drop(serde_json::from_str::<Value>(value).expect(key.name)));
            }
        }
    }

    #[test]
    fn families_have_keys_of_the_table_and_json() {
        let computed = |name: &str| KEYS.iter().any(|key| key.name == name && matches!(key.effect, Effect::Computed));
        for (name, json) in FAMILIES.iter().flat_map(|family| family.keys).chain(COMMON) {
            assert!(computed(name), "{name}");
            absent(json);
        }
        let names: BTreeSet<&str> = FAMILIES.iter().map(|family| family.model_type).collect();
        assert_eq!(names.len(), FAMILIES.len());
    }
}
