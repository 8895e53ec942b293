//! Phi-3 and Phi-4: after `Phi3Config` of transformers 5. Projections are stored joined, a part of a head may turn, and the window, if
//! there is one, is that of all layers.

use super::{
    class::{Family, PLAIN},
    layer::{TRANSFORMERS, TensorNames},
};

const PHI3_NAMES: TensorNames =
    TensorNames { style: "phi3", qkv: &["self_attn.qkv_proj"], gate_up: &["mlp.gate_up_proj"], ..TRANSFORMERS };

pub(super) const PHI3_FAMILY: Family = Family {
    model_type: "phi3",
    keys: &[
        ("vocab_size", "32064"),
        ("hidden_size", "3072"),
        ("intermediate_size", "8192"),
        ("num_key_value_heads", "null"),
        ("max_position_embeddings", "4096"),
        ("original_max_position_embeddings", "4096"),
        ("rms_norm_eps", "1e-5"),
        ("bos_token_id", "1"),
        ("eos_token_id", "32000"),
        ("sliding_window", "null"),
    ],
    free_head_dim: true,
    partial_rotation: true,
    rope_types: Some(&["default", "longrope", "su", "yarn"]),
    names: &PHI3_NAMES,
    about: "Phi-3 and Phi-3.5 mini and medium, Phi-4, Phi-4-mini",
    refused: "rotary types other than longrope; images",
    ..PLAIN
};
