//! What a decoder's layer is, as a value: which keys its rows see, its norms, its linear layers with their biases, and what its tensors
//! are called. Loads and computes nothing.

use std::{borrow::Cow, fmt};

use asterism_kernels::{Activation, Heads};

/// What all layers of a decoder are.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// Norms of queries and keys, before they are rotated.
    pub head_norms: HeadNorms,
    /// Each query head has a score that stands for no key, and takes its share of the attention of every row.
    pub sinks: bool,
    /// Attention, and what stands behind it, get their input normed.
    pub norms_before: bool,
    /// What both give is normed before it is added to the residual stream.
    pub norms_behind: bool,
    /// Added to the weight of every norm (1 in Gemma).
    pub norm_offset: f32,
    /// How a gate and what it gates become one.
    pub activation: Activation,
    /// What stands behind attention.
    pub feed_forward: FeedForward,
    /// Which linear layers have biases.
    pub biases: Biases,
    /// What its tensors are called.
    pub names: &'static TensorNames,
}

/// Norms of queries and keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HeadNorms {
    /// There are none.
    #[default]
    None,
    /// Of each head, all with the same weight (Qwen3).
    Each,
    /// Of all heads of a row together (OLMo2).
    Joint,
}

/// What tells the attention of a layer from that of others.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct LayerAttention {
    /// The latest tokens that a row sees, its own included; none where it sees all before it.
    pub window: Option<usize>,
    /// How its queries and keys turn.
    pub rotation: Rotation,
}

/// On one line, however it is written: hosts compare configurations by the lines of all layers.
impl fmt::Debug for LayerAttention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.window {
            Some(window) => write!(f, "window {window}")?,
            None => f.write_str("full")?,
        }
        f.write_str(match self.rotation {
            Rotation::Global => "",
            Rotation::Local => " local",
            Rotation::Still => " still",
        })
    }
}

/// How queries and keys of a layer turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rotation {
    /// By the model's rotary embedding.
    #[default]
    Global,
    /// By that of layers with a window.
    Local,
    /// Not at all.
    Still,
}

/// What stands behind attention in a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedForward {
    /// `down(silu(gate(x)) * up(x))`.
    Gated {
        /// Outputs of gate and up.
        intermediate: usize,
    },
    /// Several of such, of which a router chooses some for each row.
    Experts(Experts),
}

/// A mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// How many there are.
    pub count: usize,
    /// How many compute a row.
    pub used: usize,
    /// Outputs of gate and up of each.
    pub intermediate: usize,
    /// Shares of those that compute a row add up to 1; else they are the router's probabilities.
    pub shares_add_up: bool,
    /// All of a layer are one tensor of each kind, with biases, inputs first, each gate beside its up; the router has biases, too.
    pub joint: bool,
}

impl FeedForward {
    /// Width of what its last product is given; of experts, of each.
    pub fn intermediate(self) -> usize {
        match self {
            Self::Gated { intermediate } | Self::Experts(Experts { intermediate, .. }) => intermediate,
        }
    }

    /// The same of all products that a row goes through.
    pub fn active(self) -> usize {
        match self {
            Self::Gated { intermediate } => intermediate,
            Self::Experts(Experts { used, intermediate, .. }) => used * intermediate,
        }
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
    /// Query, key and value projections, or one that is all three.
    pub(crate) qkv: &'static [&'static str],
    /// Norms of queries and of keys.
    pub(crate) head_norms: [&'static str; 2],
    pub(crate) output: &'static str,
    pub(crate) feed_forward_norm: &'static str,
    /// Gate and up, or one that is both.
    pub(crate) gate_up: &'static [&'static str],
    pub(crate) down: &'static str,
    /// Norms behind attention and behind what follows it.
    pub(crate) norms_behind: [&'static str; 2],
    /// The router of experts, and what stands before the number of one; its gate, up and down are named within it.
    pub(crate) router: &'static str,
    pub(crate) experts: &'static str,
    pub(crate) expert: [&'static str; 3],
    /// Sinks of the query heads.
    pub(crate) sinks: &'static str,
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
    qkv: &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    head_norms: ["self_attn.q_norm", "self_attn.k_norm"],
    output: "self_attn.o_proj",
    feed_forward_norm: "post_attention_layernorm",
    gate_up: &["mlp.gate_proj", "mlp.up_proj"],
    down: "mlp.down_proj",
    norms_behind: ["post_attention_layernorm", "post_feedforward_layernorm"],
    router: "mlp.gate",
    experts: "mlp.experts",
    expert: ["gate_proj", "up_proj", "down_proj"],
    sinks: "self_attn.sinks",
    norm: "model.norm",
    head: "lm_head",
};

/// A linear layer: what it joins with the outputs of each, its inputs, and whether it has biases.
pub(crate) struct LinearSpec {
    pub parts: Vec<(Cow<'static, str>, usize)>,
    /// Outputs of each of the layers that are joined, be they stored apart or as one.
    pub widths: Vec<usize>,
    pub inputs: usize,
    pub biased: bool,
}

/// A norm and its width.
pub(crate) type NormSpec = (&'static str, usize);

impl LayerSpec {
    /// Norms before attention and before what stands behind it, if it has them.
    pub(crate) fn norms_before(&self, hidden: usize) -> Option<[NormSpec; 2]> {
        self.norms_before.then(|| [self.names.attention_norm, self.names.feed_forward_norm].map(|name| (name, hidden)))
    }

    /// Norms behind both, if it has them.
    pub(crate) fn norms_behind(&self, hidden: usize) -> Option<[NormSpec; 2]> {
        self.norms_behind.then(|| self.names.norms_behind.map(|name| (name, hidden)))
    }

    /// Norms of queries and of keys, if it has them.
    pub(crate) fn norms_of_heads(&self, heads: Heads) -> Option<[NormSpec; 2]> {
        let [query, key] = self.names.head_norms;
        match self.head_norms {
            HeadNorms::None => None,
            HeadNorms::Each => Some([(query, heads.dim), (key, heads.dim)]),
            HeadNorms::Joint => Some([(query, heads.query * heads.dim), (key, heads.kv * heads.dim)]),
        }
    }

    /// All of its norms.
    pub(crate) fn norms(&self, hidden: usize, heads: Heads) -> impl Iterator<Item = NormSpec> {
        let all = [self.norms_before(hidden), self.norms_behind(hidden), self.norms_of_heads(heads)];
        all.into_iter().flatten().flatten()
    }

    /// Queries, keys and values, side by side.
    pub(crate) fn qkv(&self, hidden: usize, heads: Heads) -> LinearSpec {
        let (query, kv) = (heads.query * heads.dim, heads.kv * heads.dim);
        LinearSpec::of(self.names.qkv, vec![query, kv, kv], (hidden, self.biases.qkv))
    }

    /// The output projection.
    pub(crate) fn output(&self, hidden: usize, heads: Heads) -> LinearSpec {
        LinearSpec::of([self.names.output], vec![hidden], (heads.query * heads.dim, self.biases.output))
    }

    /// Gate and up, and down.
    pub(crate) fn mlp(&self, hidden: usize) -> [LinearSpec; 2] {
        let (intermediate, biased) = (self.feed_forward.intermediate(), self.biases.mlp);
        [
            LinearSpec::of(self.names.gate_up, vec![intermediate; 2], (hidden, biased)),
            LinearSpec::of([self.names.down], vec![hidden], (intermediate, biased)),
        ]
    }

    /// What chooses experts.
    pub(crate) fn router(&self, hidden: usize, experts: Experts) -> LinearSpec {
        LinearSpec::of([self.names.router], vec![experts.count], (hidden, experts.joint))
    }

    /// Gate and up, and down, of an expert.
    pub(crate) fn expert(&self, hidden: usize, expert: usize) -> [LinearSpec; 2] {
        let intermediate = self.feed_forward.intermediate();
        let biased = matches!(self.feed_forward, FeedForward::Experts(Experts { joint: true, .. }));
        let [gate, up, down] = self.names.expert.map(|name| format!("{}.{expert}.{name}", self.names.experts));
        [
            LinearSpec::of([gate, up], vec![intermediate; 2], (hidden, biased)),
            LinearSpec::of([down], vec![hidden], (intermediate, biased)),
        ]
    }

    /// All of its linear layers.
    pub(crate) fn linears(&self, hidden: usize, heads: Heads) -> Vec<LinearSpec> {
        let mut all = vec![self.qkv(hidden, heads), self.output(hidden, heads)];
        match self.feed_forward {
            FeedForward::Gated { .. } => all.extend(self.mlp(hidden)),
            FeedForward::Experts(experts) => {
                all.push(self.router(hidden, experts));
                all.extend((0..experts.count).flat_map(|expert| self.expert(hidden, expert)));
            }
        }
        all
    }

    /// Names within a layer and shapes of its tensors, as they are stored.
    pub(crate) fn tensors(&self, hidden: usize, heads: Heads) -> Vec<(String, Vec<usize>)> {
        let norms = self.norms(hidden, heads).map(|(name, width)| (format!("{name}.weight"), vec![width]));
        let mut all: Vec<(String, Vec<usize>)> = norms.collect();
        if self.sinks {
            all.push((self.names.sinks.to_owned(), vec![heads.query]));
        }
        let mut linears = self.linears(hidden, heads);
        if let FeedForward::Experts(Experts { count, intermediate, joint: true, .. }) = self.feed_forward {
            // Queries, keys and values, the output projection and the router; experts are stored together.
            linears.truncate(3);
            for (part, shape) in [
                ("gate_up_proj", vec![count, hidden, 2 * intermediate]),
                ("gate_up_proj_bias", vec![count, 2 * intermediate]),
                ("down_proj", vec![count, intermediate, hidden]),
                ("down_proj_bias", vec![count, hidden]),
            ] {
                all.push((format!("{}.{part}", self.names.experts), shape));
            }
        }
        for LinearSpec { parts, inputs, biased, .. } in linears {
            for (name, outputs) in parts {
                all.push((format!("{name}.weight"), vec![outputs, inputs]));
                if biased {
                    all.push((format!("{name}.bias"), vec![outputs]));
                }
            }
        }
        all
    }

    /// Whether it is a norm, a gated product by silu and a sum, as most are: what devices compute in one go, and share.
    pub(crate) fn ends_plainly(&self) -> bool {
        let gated = matches!(self.feed_forward, FeedForward::Gated { .. });
        gated && self.norms_before && !self.norms_behind && self.activation == Activation::Silu
    }

    /// The name of a tensor of one of the layers, without `.weight` and `.bias`.
    pub(crate) fn name(&self, layer: usize, name: &str) -> String {
        format!("{}.{layer}.{name}", self.names.layers)
    }
}

impl LinearSpec {
    /// Layers of so many outputs under these names, or one that is all of them, with so many inputs, and whether they have biases.
    fn of<N: Clone + Into<Cow<'static, str>>>(
        names: impl AsRef<[N]>,
        widths: Vec<usize>,
        (inputs, biased): (usize, bool),
    ) -> Self {
        let named = |(name, outputs): (&N, usize)| (name.clone().into(), outputs);
        let parts = match names.as_ref() {
            [one] => vec![named((one, widths.iter().sum()))],
            each => each.iter().zip(widths.iter().copied()).map(named).collect(),
        };
        Self { parts, widths, inputs, biased }
    }
}
