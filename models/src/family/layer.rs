//! What a decoder's layer is, as a value: which keys its rows see, its norms, its linear layers with their biases, and what its tensors
//! are called. Loads and computes nothing.

use std::fmt;

use asterism_kernels::Heads;

/// A layer of a decoder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerSpec {
    /// Which keys a row sees.
    pub attention: AttentionKind,
    /// A norm of each head of queries and of keys, before they are rotated (Qwen3).
    pub head_norms: bool,
    /// What stands behind attention.
    pub feed_forward: FeedForward,
    /// Which linear layers have biases.
    pub biases: Biases,
    /// What its tensors are called.
    pub names: &'static TensorNames,
}

/// Which keys a row of a layer sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionKind {
    /// Those of all tokens before its own, and of that.
    Full,
}

/// What stands behind attention in a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedForward {
    /// `down(silu(gate(x)) * up(x))`.
    Gated {
        /// Outputs of gate and up.
        intermediate: usize,
    },
}

impl FeedForward {
    /// Width of what its last product is given.
    pub fn intermediate(self) -> usize {
        let Self::Gated { intermediate } = self;
        intermediate
    }
}

/// Linear layers with a bias.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Biases {
    /// Query, key and value projections (Qwen2 always).
    pub qkv: bool,
    /// Output projection.
    pub output: bool,
    /// Gate, up and down projections.
    pub mlp: bool,
}

/// Names of a decoder's tensors, without `.weight` and `.bias`; those of a layer behind `layers.{layer}.`.
#[derive(PartialEq, Eq)]
pub struct TensorNames {
    /// Whose names these are.
    pub(crate) style: &'static str,
    /// Embedding table.
    pub(crate) table: &'static str,
    pub(crate) layers: &'static str,
    pub(crate) attention_norm: &'static str,
    /// Query, key and value projections.
    pub(crate) qkv: [&'static str; 3],
    /// Norms of heads of queries and of keys.
    pub(crate) head_norms: [&'static str; 2],
    pub(crate) output: &'static str,
    pub(crate) feed_forward_norm: &'static str,
    pub(crate) gate_up: [&'static str; 2],
    pub(crate) down: &'static str,
    /// Norm behind the last layer.
    pub(crate) norm: &'static str,
    /// Output head.
    pub(crate) head: &'static str,
}

impl fmt::Debug for TensorNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.style)
    }
}

/// As transformers calls them in most families.
pub(crate) const TRANSFORMERS: TensorNames = TensorNames {
    style: "transformers",
    table: "model.embed_tokens",
    layers: "model.layers",
    attention_norm: "input_layernorm",
    qkv: ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    head_norms: ["self_attn.q_norm", "self_attn.k_norm"],
    output: "self_attn.o_proj",
    feed_forward_norm: "post_attention_layernorm",
    gate_up: ["mlp.gate_proj", "mlp.up_proj"],
    down: "mlp.down_proj",
    norm: "model.norm",
    head: "lm_head",
};

/// A linear layer: what it joins with the outputs of each, its inputs, and whether it has biases.
pub(crate) struct LinearSpec {
    pub parts: Vec<(&'static str, usize)>,
    pub inputs: usize,
    pub biased: bool,
}

/// A norm and its width.
pub(crate) type NormSpec = (&'static str, usize);

impl LayerSpec {
    /// Norms before attention and before what stands behind it.
    pub(crate) fn norms(&self, hidden: usize) -> [NormSpec; 2] {
        [(self.names.attention_norm, hidden), (self.names.feed_forward_norm, hidden)]
    }

    /// Norms of the heads of queries and of keys, if it has them.
    pub(crate) fn norms_of_heads(&self, heads: Heads) -> Option<[NormSpec; 2]> {
        self.head_norms.then(|| self.names.head_norms.map(|name| (name, heads.dim)))
    }

    /// Linear layers: queries, keys and values, the output projection, gate and up, down.
    pub(crate) fn linears(&self, hidden: usize, heads: Heads) -> [LinearSpec; 4] {
        let (TensorNames { qkv: [q, k, v], output, gate_up: [gate, up], down, .. }, biases) = (self.names, self.biases);
        let (query, kv, intermediate) =
            (heads.query * heads.dim, heads.kv * heads.dim, self.feed_forward.intermediate());
        let linear = |parts, inputs, biased| LinearSpec { parts, inputs, biased };
        [
            linear(vec![(*q, query), (*k, kv), (*v, kv)], hidden, biases.qkv),
            linear(vec![(*output, hidden)], query, biases.output),
            linear(vec![(*gate, intermediate), (*up, intermediate)], hidden, biases.mlp),
            linear(vec![(*down, hidden)], intermediate, biases.mlp),
        ]
    }

    /// The name of a tensor of one of the layers, without `.weight` and `.bias`.
    pub(crate) fn name(&self, layer: usize, name: &str) -> String {
        format!("{}.{layer}.{name}", self.names.layers)
    }
}
