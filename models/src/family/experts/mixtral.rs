//! Mixtral: after `MixtralConfig` of transformers 5. Shares of the experts of a row add up to 1.

use super::super::{
    class::{Family, PLAIN},
    layer::{TRANSFORMERS, TensorNames},
};

const MIXTRAL_NAMES: TensorNames = TensorNames {
    style: "mixtral",
    router: "block_sparse_moe.gate",
    experts: "block_sparse_moe.experts",
    expert: ["w1", "w3", "w2"],
    ..TRANSFORMERS
};

pub(in super::super) const MIXTRAL_FAMILY: Family = Family {
    model_type: "mixtral",
    keys: &[
        ("intermediate_size", "14336"),
        ("num_key_value_heads", "8"),
        ("max_position_embeddings", "131072"),
        ("rope_theta", "1000000.0"),
        ("rms_norm_eps", "1e-5"),
        ("bos_token_id", "1"),
        ("eos_token_id", "2"),
        ("sliding_window", "null"),
        ("num_local_experts", "8"),
        ("num_experts_per_tok", "2"),
    ],
    free_head_dim: true,
    names: &MIXTRAL_NAMES,
    about: "Mixtral 8x7B, 8x22B",
    ..PLAIN
};
