//! OLMo 2: after `Olmo2Config` of transformers 5. Norms stand behind attention and the MLP alone, and all heads of a row are normed
//! together.

use super::{
    class::{Family, PLAIN},
    layer::HeadNorms,
};

pub(super) const OLMO2_FAMILY: Family = Family {
    model_type: "olmo2",
    keys: &[
        ("vocab_size", "50304"),
        ("intermediate_size", "11008"),
        ("num_key_value_heads", "null"),
        ("max_position_embeddings", "2048"),
        ("rms_norm_eps", "1e-5"),
        ("bos_token_id", "null"),
        ("eos_token_id", "50279"),
        ("attention_bias", "false"),
    ],
    head_norms: HeadNorms::Joint,
    norms: [false, true],
    about: "OLMo 2 1B to 32B",
    refused: "clip_qkv",
    ..PLAIN
};
