//! Mistral: after `MistralConfig` of transformers 5, which masks all layers alike.

use super::class::{Family, PLAIN};

pub(super) const MISTRAL_FAMILY: Family = Family {
    model_type: "mistral",
    keys: &[
        ("intermediate_size", "14336"),
        ("num_key_value_heads", "8"),
        ("max_position_embeddings", "131072"),
        ("bos_token_id", "1"),
        ("eos_token_id", "2"),
        ("sliding_window", "4096"),
    ],
    free_head_dim: true,
    about: "Mistral 7B, Nemo, Small",
    refused: "images",
    ..PLAIN
};
