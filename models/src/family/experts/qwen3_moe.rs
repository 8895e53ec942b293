//! Qwen3's mixtures of experts: after `Qwen3MoeConfig` of transformers 5. Every layer has experts.

use super::super::{
    class::{Family, PLAIN},
    layer::HeadNorms,
};

pub(in super::super) const QWEN3_MOE_FAMILY: Family = Family {
    model_type: "qwen3_moe",
    keys: &[
        ("vocab_size", "151936"),
        ("hidden_size", "2048"),
        ("intermediate_size", "6144"),
        ("num_hidden_layers", "24"),
        ("num_key_value_heads", "4"),
        ("max_position_embeddings", "32768"),
        ("bos_token_id", "null"),
        ("eos_token_id", "null"),
        ("sliding_window", "4096"),
        ("use_sliding_window", "false"),
        ("attention_bias", "false"),
        ("num_experts", "128"),
        ("num_experts_per_tok", "8"),
        ("moe_intermediate_size", "768"),
        ("norm_topk_prob", "false"),
        ("decoder_sparse_step", "1"),
        ("mlp_only_layers", "[]"),
    ],
    free_head_dim: true,
    head_norms: HeadNorms::Each,
    about: "Qwen3 30B-A3B, 235B-A22B, Qwen3-Coder",
    refused: "layers without experts",
    ..PLAIN
};
