//! What becomes of config.json.

use serde_json::{Value, json};

use super::*;
use crate::family::Biases;

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
    assert_eq!(bytes(DecoderParts::Context, DType::F32), 4 * (table + 8 * layer));
    assert_eq!(bytes(DecoderParts::Query, DType::Bf16), 2 * (2 * table + 8 * layer + 256));
    let (linears, outputs) = (layer - 2 * 256, 512 + 256 + 2 * 768 + 256);
    let eight_bits = checkpoint.config().weight_bytes(DecoderParts::Context, (DType::Bf16, true));
    assert_eq!(eight_bits, 2 * table + 8 * (linears + 4 * outputs + 2 * 2 * 256));
}

#[test]
fn absent_keys_take_the_defaults_of_the_family() {
    let config = with(json!({})).unwrap();
    assert_eq!(config.heads, Heads { query: 4, kv: 4, dim: 16 });
    assert_eq!((config.layer.biases, config.tied), (Biases::default(), false));
    assert_eq!((config.bos, config.eos.as_slice()), (Some(0), &[1][..]));
    let qwen = with(json!({"model_type": "qwen2", "num_key_value_heads": 2})).unwrap();
    assert_eq!(qwen.layer.biases, Biases { qkv: true, output: false, mlp: false });
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
    assert!(matches!(old.rope.scaling, RopeScaling::Llama3 { .. }));
}

#[test]
fn eos_ids_of_generation_config_win() {
    let config = base().to_string();
    let read = |generation: &[u8]| ModelConfig::from_json(config.as_bytes(), Some(generation)).unwrap().eos;
    assert_eq!(read(br#"{"eos_token_id": [7, 8], "top_p": 0.9}"#), [7, 8]);
    assert_eq!(read(br#"{"temperature": 0.6}"#), [1]);
    assert!(read(br#"{"eos_token_id": null}"#).is_empty());
}

#[test]
fn what_would_change_the_arithmetic_is_refused() {
    let cases = [
        json!({"model_type": "gemma"}),
        json!({"hidden_act": "gelu"}),
        json!({"num_key_value_heads": 3}),
        json!({"num_hidden_layers": 0}),
        json!({"model_type": null}),
        json!({"hidden_act": null}),
        json!({"num_hidden_layers": 2.0}),
        json!({"tie_word_embeddings": null}),
        json!({"max_position_embeddings": null}),
        json!({"eos_token_id": 2.0}),
        json!({"is_causal": false}),
        json!({"attention_chunk_size": 64}),
        json!({"per_layer_config": {"0": {"intermediate_size": 64}}}),
        json!({"rope_theta": null}),
        json!({"rope_theta": "10000"}),
        json!({"rope_scaling": "linear"}),
        json!({"rope_scaling": {"type": "su", "factor": 4.0}}),
        json!({"rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}}),
        json!({"rope_scaling": {"rope_type": null, "type": "linear", "factor": 4.0}}),
        json!({"rope_scaling": {"type": "linear"}}),
        json!({"rope_scaling": {"type": "linear", "factor": "2.0"}}),
        json!({"rope_scaling": {"type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5}}),
        json!({"rope_scaling": {"type": "yarn", "original_max_position_embeddings": 1024}}),
        json!({"rope_scaling": {"type": "yarn", "factor": 4.0, "truncate": 1}}),
        json!({"rope_scaling": {"type": "longrope", "long_factor": [1.0]}}),
        json!({"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}}),
        json!({"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 500.0}}}),
        json!({"partial_rotary_factor": 0.5}),
        json!({"model_type": "mistral", "sliding_window": 0}),
        json!({"model_type": "qwen2", "num_key_value_heads": 2, "layer_types": ["full_attention", "sliding_attention"]}),
        json!({"layer_types": ["full_attention", "sliding_attention"]}),
        json!({"layer_types": ["full_attention", "chunked_attention"]}),
        json!({"layer_types": ["full_attention"]}),
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
}

#[test]
fn a_refusal_names_the_key() {
    let refused = |changes: Value| with(changes).unwrap_err().to_string();
    let theta = refused(json!({"rope_parameters": {"rope_type": "linear", "factor": 0}}));
    assert!(theta.contains("rope_parameters.factor = 0"), "{theta}");
}

#[test]
fn layers_have_the_windows_that_their_class_masks_with() {
    let windows = |changes: Value| {
        let config = with(changes).unwrap();
        assert_eq!((config.max_position, config.limiting_key()), (2048, "max_position_embeddings"));
        config.attention.iter().map(|layer| layer.window).collect::<Vec<_>>()
    };
    let (none, both, second) = ([None, None], [Some(1024), Some(1024)], [None, Some(1024)]);
    let qwen = |changes: Value| {
        let mut all = json!({"model_type": "qwen2", "num_key_value_heads": 2, "sliding_window": 1024});
        all.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        windows(all)
    };
    assert_eq!(qwen(json!({})), none);
    assert_eq!(qwen(json!({"use_sliding_window": true})), none, "28 layers before the first that slides");
    assert_eq!(qwen(json!({"use_sliding_window": true, "max_window_layers": 1})), second);
    assert_eq!(qwen(json!({"use_sliding_window": true, "max_window_layers": 0})), both);
    let types = json!(["full_attention", "sliding_attention"]);
    assert_eq!(qwen(json!({"use_sliding_window": true, "layer_types": types})), second);
    let types = json!(["attention", "attention"]);
    assert_eq!(qwen(json!({"use_sliding_window": true, "max_window_layers": 0, "layer_types": types})), none);
    let mistral =
        |window: Value| windows(json!({"model_type": "mistral", "num_key_value_heads": 2, "sliding_window": window}));
    assert_eq!((mistral(json!(1024)), mistral(json!(null))), (both.to_vec(), none.to_vec()));
    let absent = json!({"model_type": "mistral", "num_key_value_heads": 2});
    assert_eq!(windows(absent), [Some(4096), Some(4096)], "the class has a window of 4096");
    let gemma = |changes: Value| {
        let mut all = json!({"model_type": "gemma3_text", "num_hidden_layers": 3, "sliding_window": 8});
        all.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        with(all).unwrap().attention
    };
    let layer = |window, rotation| LayerAttention { window, rotation };
    let (local, global) = (layer(Some(8), Rotation::Local), layer(None, Rotation::Global));
    assert_eq!(gemma(json!({})), [local; 3]);
    assert_eq!(gemma(json!({"sliding_window_pattern": 2})), [local, global, local]);
    let still = with(json!({"model_type": "smollm3", "no_rope_layers": [0, 1]})).unwrap().attention;
    assert_eq!(still, [layer(None, Rotation::Still), global]);
}

#[test]
fn a_window_that_a_llama_does_not_declare_bounds_it() {
    let limit = |changes: Value| with(changes).map(|config| (config.max_position, config.limiting_key())).unwrap();
    assert_eq!(limit(json!({"sliding_window": 1024})), (1024, "sliding_window"));
    assert_eq!(limit(json!({"sliding_window": 4096})), (2048, "max_position_embeddings"));
    let notes = with(json!({"sliding_window": 1024})).unwrap().notes;
    assert!(notes[0].contains("of 2048 tokens the model is used for 1024"), "{notes:?}");
}

#[test]
fn what_a_decoder_needs_of_a_device_is_known_before_it_is_loaded() {
    let extras = |changes: Value| with(changes).unwrap().extras();
    assert_eq!(extras(json!({})), []);
    assert_eq!(extras(json!({"model_type": "mistral", "num_key_value_heads": 2})), []);
    assert_eq!(extras(json!({"model_type": "gemma2"})), [Extra::Activations, Extra::Sums, Extra::ScoreCap]);
    assert_eq!(extras(json!({"model_type": "mixtral", "num_key_value_heads": 2})), [Extra::Sums]);
}

#[test]
fn what_a_file_does_not_have_its_class_has() {
    let read = |text: &str| ModelConfig::from_json(text.as_bytes(), None).unwrap();
    let llama = read(r#"{"model_type": "llama"}"#);
    assert_eq!(llama.heads, Heads { query: 32, kv: 32, dim: 128 });
    assert_eq!((llama.vocab, llama.layer.feed_forward.intermediate(), llama.max_position), (32_000, 11_008, 2048));
    assert_eq!((llama.bos, llama.eos, llama.eps), (Some(1), vec![2], 1e-6));
    let mistral = read(r#"{"model_type": "mistral"}"#);
    assert_eq!(
        (mistral.heads.kv, mistral.layer.feed_forward.intermediate(), mistral.window(0)),
        (8, 14_336, Some(4096))
    );
    let qwen = read(r#"{"model_type": "qwen2"}"#);
    assert_eq!((qwen.vocab, qwen.layer.feed_forward.intermediate(), qwen.max_position), (151_936, 22_016, 32_768));
    assert_eq!((qwen.bos, qwen.eos.as_slice(), qwen.window(0)), (None, &[][..], None));
}

#[test]
fn ids_that_are_none_end_nothing() {
    let eos = |value: Value| with(json!({"eos_token_id": value})).unwrap().eos;
    assert_eq!(eos(json!(-1)), Vec::<u32>::new());
    assert_eq!(eos(Value::Null), Vec::<u32>::new());
    assert_eq!(eos(json!([3, -1, 4])), [3, 4]);
    let infinite = br#"{"model_type": "llama", "eos_token_id": 5, "router_loss": Infinity, "z": [NaN, -Infinity]}"#;
    assert_eq!(ModelConfig::from_json(infinite, None).unwrap().eos, [5]);
    let used = br#"{"model_type": "llama", "sliding_window": Infinity}"#;
    assert_eq!(ModelConfig::from_json(used, None).unwrap_err().code(), "model_config_unsupported");
}

#[test]
fn the_old_dictionary_wins_and_stands_alone() {
    let rope = |changes: Value| with(changes).unwrap().rope;
    let yarn = json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512});
    let plain = json!({"rope_type": "default", "rope_theta": 1e6});
    let both = rope(json!({"rope_scaling": yarn, "rope_parameters": plain}));
    assert_eq!(both, rope(json!({"rope_scaling": yarn})), "the base is that beside both");
    assert_eq!(both.theta, 500_000.0);
    assert_eq!(rope(json!({"rope_scaling": {}, "rope_parameters": plain})).theta, 1e6);
    let bare = br#"{"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": {"rope_theta": 5e5}}"#;
    let bare = ModelConfig::from_json(bare, None).unwrap();
    assert_eq!(bare.rope.theta, 10_000.0, "as transformers has it");
    assert!(bare.notes[0].contains("rope_parameters.rope_theta = 500000.0 is not read"), "{:?}", bare.notes);
    let given =
        rope(json!({"rope_scaling": {"type": "yarn", "rope_type": "linear", "factor": 2.0, "rope_theta": 700}}));
    assert_eq!(given, Rope { theta: 700.0, scaling: RopeScaling::Linear { factor: 2.0 } });
}

#[test]
fn scaling_extends_what_a_model_is_used_for() {
    let most = |scaling: Value| with(json!({"rope_scaling": scaling})).unwrap().max_position;
    assert_eq!(most(json!({"type": "linear", "factor": 2.0})), 4096);
    assert_eq!(most(json!({"type": "dynamic", "factor": 2.0})), 4096);
    assert_eq!(most(json!({"type": "yarn", "factor": 4.0})), 8192, "the positions of the pre-training are the model's");
    assert_eq!(most(json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512})), 2048);
    let divisors = [1.5; 8];
    assert_eq!(most(json!({"type": "longrope", "short_factor": divisors, "long_factor": divisors})), 2048);
}

#[test]
fn numbers_of_yarn_that_are_not_given_follow_from_others() {
    let of = |keys: Value| {
        let mut scaling = json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512});
        scaling.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        match with(json!({"rope_scaling": scaling})).unwrap().rope.scaling {
            RopeScaling::Yarn(yarn) => yarn,
            other => panic!("{other:?}"),
        }
    };
    let plain = of(json!({}));
    let factor = (0.1 * 4f64.ln() + 1.0) as f32;
    assert_eq!((plain.beta_fast, plain.beta_slow, plain.truncate, plain.attention_factor), (32.0, 1.0, true, factor));
    assert_eq!(of(json!({"mscale": 0, "mscale_all_dim": 1.0})), plain, "both, or neither");
    assert_eq!(of(json!({"factor": null})), plain, "2048 / 512");
    let quotient = (0.1 * 2.0 * 4f64.ln() + 1.0) / (0.1 * 4f64.ln() + 1.0);
    assert_eq!(of(json!({"mscale": 2.0, "mscale_all_dim": 1.0})).attention_factor, quotient as f32);
    assert_eq!(of(json!({"attention_factor": 2})).attention_factor, 2.0);
    assert!(!of(json!({"truncate": null})).truncate);
    let beside = json!({"original_max_position_embeddings": 256, "rope_scaling": {"type": "yarn", "factor": 4.0,
        "original_max_position_embeddings": 512}});
    assert!(matches!(with(beside).unwrap().rope.scaling, RopeScaling::Yarn(Yarn { original: 256.0, .. })));
}
