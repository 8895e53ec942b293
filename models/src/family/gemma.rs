//! Gemma 2 and the text decoders of Gemma 3: after `Gemma2Config` and `Gemma3TextConfig` of transformers 5. Layers with a window and
//! layers without take turns; norms stand before and behind, with 1 added to their weights; embeddings are scaled.

use super::{
    class::{Family, PLAIN, Windows},
    layer::{HeadNorms, TRANSFORMERS, TensorNames},
};

const GEMMA_NAMES: TensorNames =
    TensorNames { style: "gemma", feed_forward_norm: "pre_feedforward_layernorm", ..TRANSFORMERS };

const GEMMA: Family = Family {
    free_head_dim: true,
    norms: [true, true],
    norm_offset: 1.0,
    scaled_embeddings: true,
    names: &GEMMA_NAMES,
    refused: "images; attention in both directions",
    ..PLAIN
};

pub(super) const GEMMA2_FAMILY: Family = Family {
    model_type: "gemma2",
    keys: &[
        ("vocab_size", "256000"),
        ("hidden_size", "2304"),
        ("intermediate_size", "9216"),
        ("num_hidden_layers", "26"),
        ("num_attention_heads", "8"),
        ("num_key_value_heads", "4"),
        ("head_dim", "256"),
        ("hidden_activation", r#""gelu_pytorch_tanh""#),
        ("max_position_embeddings", "8192"),
        ("bos_token_id", "2"),
        ("eos_token_id", "1"),
        ("tie_word_embeddings", "true"),
        ("attention_bias", "false"),
        ("query_pre_attn_scalar", "256"),
        ("sliding_window", "4096"),
        ("attn_logit_softcapping", "50.0"),
        ("final_logit_softcapping", "30.0"),
        ("use_bidirectional_attention", "null"),
    ],
    windows: Windows::AllBut(2),
    about: "Gemma 2 2B, 9B, 27B",
    ..GEMMA
};

pub(super) const GEMMA3_FAMILY: Family = Family {
    model_type: "gemma3_text",
    keys: &[
        ("vocab_size", "262208"),
        ("hidden_size", "2304"),
        ("intermediate_size", "9216"),
        ("num_hidden_layers", "26"),
        ("num_attention_heads", "8"),
        ("num_key_value_heads", "4"),
        ("head_dim", "256"),
        ("hidden_activation", r#""gelu_pytorch_tanh""#),
        ("max_position_embeddings", "131072"),
        ("bos_token_id", "2"),
        ("eos_token_id", "1"),
        ("tie_word_embeddings", "true"),
        ("attention_bias", "false"),
        ("query_pre_attn_scalar", "256"),
        ("sliding_window", "4096"),
        ("sliding_window_pattern", "6"),
        ("rope_theta", "1000000.0"),
        ("rope_local_base_freq", "10000.0"),
        ("final_logit_softcapping", "null"),
        ("use_bidirectional_attention", "false"),
    ],
    windows: Windows::AllBut(6),
    head_norms: HeadNorms::Each,
    local_rope: true,
    about: "the text models of Gemma 3: 270M, 1B",
    ..GEMMA
};
