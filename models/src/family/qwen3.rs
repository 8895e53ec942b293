//! Qwen3: after `Qwen3Config` of transformers 5. Each head of queries and of keys is normed before it is rotated.

use super::{
    class::{Family, PLAIN, Windows},
    layer::HeadNorms,
};

pub(super) const QWEN3_FAMILY: Family = Family {
    model_type: "qwen3",
    keys: &[
        ("vocab_size", "151936"),
        ("intermediate_size", "22016"),
        ("num_key_value_heads", "32"),
        ("head_dim", "128"),
        ("max_position_embeddings", "32768"),
        ("bos_token_id", "null"),
        ("eos_token_id", "null"),
        ("sliding_window", "4096"),
        ("use_sliding_window", "false"),
        ("max_window_layers", "28"),
        ("attention_bias", "false"),
    ],
    free_head_dim: true,
    windows: Windows::Late,
    head_norms: HeadNorms::Each,
    about: "Qwen3 0.6B to 32B",
    ..PLAIN
};
