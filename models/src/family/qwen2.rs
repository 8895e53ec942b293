//! Qwen2 and Qwen2.5: after `Qwen2Config` of transformers 5. Queries, keys and values have biases.

use super::class::{Family, PLAIN, Windows};

pub(super) const QWEN2_FAMILY: Family = Family {
    model_type: "qwen2",
    keys: &[
        ("vocab_size", "151936"),
        ("intermediate_size", "22016"),
        ("num_key_value_heads", "32"),
        ("max_position_embeddings", "32768"),
        ("bos_token_id", "null"),
        ("eos_token_id", "null"),
        ("sliding_window", "4096"),
        ("use_sliding_window", "false"),
        ("max_window_layers", "28"),
    ],
    free_head_dim: true,
    windows: Windows::Late,
    qkv_biases: true,
    about: "Qwen2, Qwen2.5, their Coders",
    ..PLAIN
};
