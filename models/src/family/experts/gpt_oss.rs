//! gpt-oss: after `GptOssConfig` of transformers 5. Layers with a window and layers without take turns, each head has a sink, and the
//! experts of a layer are stored together.

use super::super::{
    class::{Family, PLAIN, Windows},
    layer::{TRANSFORMERS, TensorNames},
};

const GPT_OSS_NAMES: TensorNames =
    TensorNames { style: "gpt_oss", router: "mlp.router", sinks: "self_attn.sinks", ..TRANSFORMERS };

pub(in super::super) const GPT_OSS_FAMILY: Family = Family {
    model_type: "gpt_oss",
    keys: &[
        ("vocab_size", "201088"),
        ("hidden_size", "2880"),
        ("intermediate_size", "2880"),
        ("num_hidden_layers", "36"),
        ("num_attention_heads", "64"),
        ("num_key_value_heads", "8"),
        ("head_dim", "64"),
        ("max_position_embeddings", "131072"),
        ("rms_norm_eps", "1e-5"),
        ("rope_theta", "150000.0"),
        (
            "rope_parameters",
            r#"{"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
                "original_max_position_embeddings": 4096}"#,
        ),
        ("bos_token_id", "null"),
        ("eos_token_id", "null"),
        ("attention_bias", "true"),
        ("sliding_window", "128"),
        ("num_local_experts", "128"),
        ("num_experts_per_tok", "4"),
        ("swiglu_alpha", "1.702"),
        ("swiglu_limit", "7.0"),
    ],
    free_head_dim: true,
    windows: Windows::AllBut(2),
    sinks: true,
    joint_experts: true,
    names: &GPT_OSS_NAMES,
    about: "gpt-oss 20B, 120B, with weights in bf16 or f32",
    refused: "MXFP4 folders",
    ..PLAIN
};
