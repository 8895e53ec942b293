//! What tells the families of decoders apart: one of transformers' classes as a value. Knows no family by name.

use super::layer::TensorNames;

/// The decoders that one of transformers' classes computes.
pub(crate) struct Family {
    /// Its `model_type`.
    pub model_type: &'static str,
    /// Keys of config.json that its class computes with, besides [`COMMON`] and before it: each with the JSON that stands for an
    /// absent one. A key that stands in neither is without influence.
    pub keys: &'static [(&'static str, &'static str)],
    /// Heads may together be wider or narrower than the residual stream is.
    pub free_head_dim: bool,
    /// `layer_types` says which layers have the window; else all have it.
    pub windows_by_layer: bool,
    /// Query, key and value projections have biases, whatever config.json says.
    pub qkv_biases: bool,
    /// As [`LayerSpec::head_norms`].
    pub head_norms: bool,
    /// As [`LayerSpec::names`].
    pub names: &'static TensorNames,
}

/// Keys that every class computes with, as most have them.
pub(crate) const COMMON: &[(&str, &str)] = &[
    ("vocab_size", "32000"),
    ("hidden_size", "4096"),
    ("num_hidden_layers", "32"),
    ("num_attention_heads", "32"),
    ("head_dim", "null"),
    ("rms_norm_eps", "1e-6"),
    ("tie_word_embeddings", "false"),
    ("layer_types", "null"),
    // What rope.rs reads. The first of the two dictionaries that says something is read alone.
    ("rope_scaling", "null"),
    ("rope_parameters", "null"),
    ("rope_theta", "10000.0"),
    ("partial_rotary_factor", "1.0"),
    ("original_max_position_embeddings", "null"),
];

impl Family {
    /// The JSON that stands for an absent key; nothing of a key without influence.
    pub fn absent(&self, name: &str) -> Option<&'static str> {
        self.keys.iter().chain(COMMON).find(|(key, _)| *key == name).map(|(_, json)| *json)
    }
}
