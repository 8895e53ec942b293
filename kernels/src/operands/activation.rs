//! How a gate and what it gates become one, and the operations that a device may lack. Computes nothing.

/// How a gate and what it gates become one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Activation {
    /// `silu(gate) * up`.
    #[default]
    Silu,
    /// `gelu(gate) * up`, gelu by its approximation with a hyperbolic tangent (Gemma).
    GeluTanh,
    /// With `g = min(gate, limit)` and `u` the up clamped to `-limit..limit`: `g sigmoid(alpha g) (u + 1)` (gpt-oss).
    ClampedSilu {
        /// Most of a gate, and of an up on both sides.
        limit: f32,
        /// What a gate is multiplied by within the sigmoid.
        alpha: f32,
    },
}

/// An operation that only some decoders need, and only some devices have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extra {
    /// [`Activation`]s beside silu.
    Activations,
    /// Sums and multiples of rows.
    Sums,
    /// Scores of attention bent towards a bound.
    ScoreCap,
}

impl Extra {
    /// What errors call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Activations => "activations other than silu",
            Self::Sums => "sums of rows outside a linear layer",
            Self::ScoreCap => "capped attention scores",
        }
    }
}
