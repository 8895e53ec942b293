//! How sparse prefill methods select keys: the rule of each as a value, and what of its choice is pure. A new method is a file here, a
//! variant of [`Selector`], its slow form in `reference::sparse`, and a file for each device. Computes no score.

pub(crate) mod flex;
mod stripes;
pub(crate) mod vertical_slash;

pub use flex::FlexRule;
pub use stripes::StripeRule;
pub use vertical_slash::VerticalSlashRule;

/// A method's choice among the keys of a causal sequence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Selector {
    /// AnchorAttention (algorithms 1 to 3): its anchor region, and stripes, one group for `step` query blocks.
    Stripes(StripeRule),
    /// MInference's vertical-slash estimate.
    VerticalSlash(VerticalSlashRule),
    /// FlexPrefill.
    Flex(FlexRule),
}
