//! A checkpoint of zeros, large enough for the kernels of real models: heads of 64 elements, and as many KV heads as GPUs in these tests.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use serde_json::{Map, json};
use tests::golden;

/// Layers of the usual one.
pub const LAYERS: u64 = 6;
const HIDDEN: u64 = 512;
const INNER: u64 = 1024;
const HEADS: u64 = 8;
const KV_HEADS: u64 = 4;
const HEAD_SIZE: u64 = HIDDEN / HEADS;
const VOCABULARY: u64 = 512;
/// Bytes of keys and values of a token, in bf16.
pub const TOKEN_BYTES: u64 = LAYERS * 2 * KV_HEADS * HEAD_SIZE * 2;

/// Tensors and their shapes.
fn tensors(layers: u64) -> Vec<(String, Vec<u64>)> {
    let (queries, keys) = (HEADS * HEAD_SIZE, KV_HEADS * HEAD_SIZE);
    let of_layer = [
        ("input_layernorm", vec![HIDDEN]),
        ("self_attn.q_proj", vec![queries, HIDDEN]),
        ("self_attn.k_proj", vec![keys, HIDDEN]),
        ("self_attn.v_proj", vec![keys, HIDDEN]),
        ("self_attn.o_proj", vec![HIDDEN, queries]),
        ("post_attention_layernorm", vec![HIDDEN]),
        ("mlp.gate_proj", vec![INNER, HIDDEN]),
        ("mlp.up_proj", vec![INNER, HIDDEN]),
        ("mlp.down_proj", vec![HIDDEN, INNER]),
    ];
    let layer =
        |layer: u64| of_layer.clone().map(|(name, shape)| (format!("model.layers.{layer}.{name}.weight"), shape));
    let around = [
        ("model.embed_tokens", vec![VOCABULARY, HIDDEN]),
        ("model.norm", vec![HIDDEN]),
        ("lm_head", vec![VOCABULARY, HIDDEN]),
    ];
    let around = around.map(|(name, shape)| (format!("{name}.weight"), shape));
    (0..layers).flat_map(layer).chain(around).collect()
}

/// Bytes of all weights of a model of so many layers.
pub fn weight_bytes(layers: u64) -> u64 {
    tensors(layers).iter().map(|(_, shape)| 2 * shape.iter().product::<u64>()).sum()
}

/// Writes one of so many layers to a folder.
pub fn write(folder: &Path, layers: u64) {
    fs::create_dir_all(folder).expect("a folder");
    let small = golden().join("models/tiny-llama");
    fs::copy(small.join("tokenizer.json"), folder.join("tokenizer.json")).expect("a tokenizer of as many tokens");
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCABULARY, "hidden_size": HIDDEN,
        "intermediate_size": INNER, "num_hidden_layers": layers, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_SIZE, "hidden_act": "silu", "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5,
        "bos_token_id": 0, "eos_token_id": 1, "tie_word_embeddings": false, "rope_theta": 500_000.0, "torch_dtype": "bfloat16",
    });
    fs::write(folder.join("config.json"), config.to_string()).expect("written");
    let (mut header, mut end) = (Map::new(), 0);
    for (name, shape) in tensors(layers) {
        let start = end;
        end += 2 * shape.iter().product::<u64>();
        header.insert(name, json!({"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}));
    }
    let header = json!(header).to_string();
    let mut file = File::create(folder.join("model.safetensors")).expect("a file");
    file.write_all(&(header.len() as u64).to_le_bytes()).expect("written");
    file.write_all(header.as_bytes()).expect("written");
    // The rest are zeros.
    file.set_len(8 + header.len() as u64 + end).expect("a longer file");
}
