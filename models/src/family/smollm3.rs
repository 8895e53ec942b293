//! SmolLM3: after `SmolLM3Config` of transformers 5. Queries and keys of some layers do not turn.

use super::class::{Family, PLAIN, Windows};

pub(super) const SMOLLM3_FAMILY: Family = Family {
    model_type: "smollm3",
    keys: &[
        ("vocab_size", "128256"),
        ("hidden_size", "2048"),
        ("intermediate_size", "11008"),
        ("num_hidden_layers", "36"),
        ("num_attention_heads", "16"),
        ("num_key_value_heads", "4"),
        ("max_position_embeddings", "32768"),
        ("rope_theta", "2000000.0"),
        ("bos_token_id", "128000"),
        ("eos_token_id", "128001"),
        ("tie_word_embeddings", "true"),
        ("use_sliding_window", "false"),
        ("sliding_window", "null"),
        ("no_rope_layers", "null"),
        ("no_rope_layer_interval", "4"),
        ("attention_bias", "false"),
        ("mlp_bias", "false"),
    ],
    windows: Windows::Still,
    about: "SmolLM3 3B",
    ..PLAIN
};
