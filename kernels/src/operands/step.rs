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

/// The likeliest token of some logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Likeliest {
    /// The one with the largest logit, the lowest of equal ones.
    pub token: u32,
    /// Its logit.
    pub logit: f32,
    /// The natural logarithm of the sum of all logits' powers of e: the token's logarithm of probability is `logit - log_sum`.
    pub log_sum: f32,
    /// Whether all logits are finite numbers.
    pub is_finite: bool,
}

impl Likeliest {
    /// Of logits.
    pub fn of(logits: &[f32]) -> Self {
        let (token, logit) = (0u32..)
            .zip(logits)
            .fold((0, f32::NEG_INFINITY), |most, (token, &logit)| if logit > most.1 { (token, logit) } else { most });
        let sum: f64 = logits.iter().map(|other| f64::from(other - logit).exp()).sum();
        let is_finite = logits.iter().all(|logit| logit.is_finite());
        Self { token, logit, log_sum: (f64::from(logit) + sum.ln()) as f32, is_finite }
    }
}
