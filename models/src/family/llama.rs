//! Llama, and what has its shape: after `LlamaConfig` of transformers 5.

use super::class::{Family, PLAIN, Windows};

pub(super) const LLAMA_FAMILY: Family = Family {
    model_type: "llama",
    keys: &[
        ("intermediate_size", "11008"),
        ("num_key_value_heads", "null"),
        ("max_position_embeddings", "2048"),
        ("bos_token_id", "1"),
        ("eos_token_id", "2"),
        ("sliding_window", "null"),
        ("attention_bias", "false"),
        ("mlp_bias", "false"),
    ],
    windows: Windows::Bound,
    about: "Llama 2 and 3, SmolLM2, TinyLlama, Yi, DeepSeek distillations",
    refused: "a window that is not declared, beyond its length",
    ..PLAIN
};
