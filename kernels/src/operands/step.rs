//! What the sequences of a step bring to attention, where all of their keys are on the step's device. Attends to nothing.

use std::ops::Range;

use super::mask::Mask;

/// A sequence of a step: its rows, and its keys in every layer.
pub struct StepSequence<'a, K> {
    /// Its rows of the step's tensors; those of all sequences follow each other.
    pub rows: Range<usize>,
    /// Shards that others made: of each the keys and values, a layer after the other, and which keys its rows see.
    pub shards: Vec<(Vec<&'a K>, Mask)>,
    /// Its own keys and values, a cache a layer, behind which those of its rows are written.
    pub own: Vec<&'a mut K>,
    /// How many of its own keys there are before the step, whatever an earlier try left behind them.
    pub own_keys: usize,
    /// Which of its own keys its rows see, with those of the step.
    pub own_mask: Mask,
}
