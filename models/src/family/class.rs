//! What tells the families of decoders apart: one of transformers' classes as a value. Knows no family by name.

use super::layer::{HeadNorms, TRANSFORMERS, TensorNames};

/// The decoders that one of transformers' classes computes.
pub(crate) struct Family {
    /// Its `model_type`.
    pub model_type: &'static str,
    /// Keys of config.json that its class computes with, besides [`COMMON`] and before it: each with the JSON that stands for an
    /// absent one. A key that stands in neither is without influence.
    pub keys: &'static [(&'static str, &'static str)],
    /// Heads may together be wider or narrower than the residual stream is.
    pub free_head_dim: bool,
    /// Which layers have the window.
    pub windows: Windows,
    /// Query, key and value projections have biases, whatever config.json says.
    pub qkv_biases: bool,
    /// As [`LayerSpec::head_norms`](super::LayerSpec::head_norms).
    pub head_norms: HeadNorms,
    /// As [`LayerSpec::norms_before`](super::LayerSpec::norms_before), and behind.
    pub norms: [bool; 2],
    /// As [`LayerSpec::norm_offset`](super::LayerSpec::norm_offset).
    pub norm_offset: f32,
    /// Embeddings are multiplied by the square root of their width.
    pub scaled_embeddings: bool,
    /// Layers with a window turn by a base of their own.
    pub local_rope: bool,
    /// Each head has a score that stands for no key.
    pub sinks: bool,
    /// The experts of a layer are one tensor of each kind.
    pub joint_experts: bool,
    /// A part of a head may turn, its first elements.
    pub partial_rotation: bool,
    /// Rotary types that its class takes, where it does not take all.
    pub rope_types: Option<&'static [&'static str]>,
    /// As [`LayerSpec::names`](super::LayerSpec::names).
    pub names: &'static TensorNames,
    /// Models that are of it, for people.
    pub about: &'static str,
    /// What of theirs is refused, for people.
    pub refused: &'static str,
}

/// Which layers have the window that config.json gives.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Windows {
    /// None is masked with it, but no more is kept than it: a sequence is no longer than it.
    Bound,
    /// All.
    All,
    /// Those that `layer_types` names, else those from `max_window_layers` on.
    Late,
    /// Those that `layer_types` names, else all but every so many; `sliding_window_pattern` may say another number.
    AllBut(usize),
    /// Those that `layer_types` names, else those that do not turn.
    Still,
}

/// What most families have.
pub(crate) const PLAIN: Family = Family {
    model_type: "",
    keys: &[],
    free_head_dim: false,
    windows: Windows::All,
    qkv_biases: false,
    head_norms: HeadNorms::None,
    norms: [true, false],
    norm_offset: 0.0,
    scaled_embeddings: false,
    local_rope: false,
    sinks: false,
    joint_experts: false,
    partial_rotation: false,
    rope_types: None,
    names: &TRANSFORMERS,
    about: "",
    refused: "nothing of its own",
};

/// Keys that every class computes with, as most have them.
pub(crate) const COMMON: &[(&str, &str)] = &[
    ("vocab_size", "32000"),
    ("hidden_size", "4096"),
    ("num_hidden_layers", "32"),
    ("num_attention_heads", "32"),
    ("head_dim", "null"),
    ("hidden_act", r#""silu""#),
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

    /// Whether its class has a key that not all have.
    pub fn has(&self, name: &str) -> bool {
        self.keys.iter().any(|(key, _)| *key == name)
    }
}
