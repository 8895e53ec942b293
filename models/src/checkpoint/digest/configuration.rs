//! What a configuration resolves to, as keys and values: every field that it has, those of later versions too, by the names of
//! config.json where that has one. Judges no value.

use crate::ModelConfig;

/// What config.json calls a field that has another name here.
const CONFIG_KEYS: [(&str, &str); 14] = [
    ("layers", "num_hidden_layers"),
    ("heads.query", "num_attention_heads"),
    ("heads.kv", "num_key_value_heads"),
    ("heads.dim", "head_dim"),
    ("hidden", "hidden_size"),
    ("layer.feed_forward.intermediate", "intermediate_size"),
    ("layer.names", "tensor_names"),
    ("vocab", "vocab_size"),
    ("max_position", "max_position_embeddings"),
    ("eps", "rms_norm_eps"),
    ("tied", "tie_word_embeddings"),
    ("rope.scaling", "rope_type"),
    ("rope.scaling.factor", "rope_scaling.factor"),
    ("rope.theta", "rope_theta"),
];

/// Keys and values, in the order of the configuration's fields.
pub(crate) fn configuration(config: &ModelConfig) -> Vec<(String, String)> {
    // Its own words for itself name each field, so that none is forgotten that is added to it. All processes of a cluster run one version.
    flattened(&format!("{config:#?}"))
}

/// The leaves of a value as `{:#?}` writes it: one line each, indented below what they belong to.
fn flattened(pretty: &str) -> Vec<(String, String)> {
    let mut path: Vec<String> = Vec::new();
    let mut pairs: Vec<(String, String)> = Vec::new();
    // The first line and the last are the whole's.
    for line in pretty.lines().skip(1) {
        let line = line.trim().trim_end_matches(',');
        if matches!(line, "}" | "]" | ")") {
            path.pop();
            continue;
        }
        let (name, value) = line.split_once(": ").map_or((None, line), |(name, value)| (Some(name), value));
        let here: Vec<&str> = path.iter().map(String::as_str).chain(name).filter(|name| !name.is_empty()).collect();
        let key = key_of(&here.join("."));
        let opened = value.strip_suffix(['{', '[', '(']).map(str::trim);
        let stated = opened.unwrap_or(value);
        match pairs.last_mut().filter(|(last, _)| *last == key) {
            // What an option or a list holds.
            Some((_, values)) if !values.is_empty() => *values += &format!(" {stated}"),
            Some((_, values)) => stated.clone_into(values),
            None => pairs.push((key, if stated == "Some" { String::new() } else { stated.to_owned() })),
        }
        if opened.is_some() {
            path.push(name.unwrap_or_default().to_owned());
        }
    }
    pairs
}

fn key_of(path: &str) -> String {
    let known = CONFIG_KEYS.iter().find(|(field, _)| *field == path).map(|(_, key)| *key);
    known.unwrap_or(path).to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn keys(changed: Value) -> Vec<(String, String)> {
        let mut config = json!({
            "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100, "max_position_embeddings": 512,
            "rms_norm_eps": 1e-5, "bos_token_id": 1, "eos_token_id": [2, 3],
        });
        config.as_object_mut().unwrap().extend(changed.as_object().unwrap().clone());
        configuration(&ModelConfig::from_json(config.to_string().as_bytes(), None).unwrap())
    }

    fn value(keys: &[(String, String)], key: &str) -> String {
        let found: Vec<&String> = keys.iter().filter(|(name, _)| name == key).map(|(_, value)| value).collect();
        assert_eq!(found.len(), 1, "{key} of {keys:?}");
        found[0].clone()
    }

    #[test]
    fn every_key_has_its_value() {
        let plain = keys(json!({"rope_theta": 500_000.0}));
        let expected = [
            ("num_hidden_layers", "2"),
            ("num_key_value_heads", "2"),
            ("head_dim", "16"),
            ("hidden_size", "64"),
            ("vocab_size", "100"),
            ("rms_norm_eps", "1e-5"),
            ("rope_theta", "500000.0"),
            ("rope_type", "Plain"),
            ("bos", "1"),
            ("eos", "2 3"),
        ];
        for (key, wanted) in expected {
            assert_eq!(value(&plain, key), wanted, "{key}");
        }
    }

    #[test]
    fn one_key_that_differs_is_one_pair_that_differs() {
        let plain = keys(json!({}));
        for (changed, key) in [
            (json!({"rope_theta": 500_000.0}), "rope_theta"),
            (json!({"rms_norm_eps": 1e-6}), "rms_norm_eps"),
            (json!({"eos_token_id": [2, 4]}), "eos"),
            (json!({"bos_token_id": null}), "bos"),
            (json!({"tie_word_embeddings": true}), "tie_word_embeddings"),
            (json!({"attention_bias": true}), "layer.biases.qkv"),
        ] {
            let other = keys(changed);
            let differs: Vec<&String> =
                plain.iter().filter(|pair| !other.contains(pair)).map(|(name, _)| name).collect();
            assert!(differs.contains(&&key.to_owned()), "{key}: {differs:?}");
        }
        let scaled = keys(json!({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}));
        assert_eq!(value(&scaled, "rope_type"), "Linear");
        assert_eq!(value(&scaled, "rope_scaling.factor"), "2.0");
    }
}
