//! Which keys the rows of one phase-1 pass see. Rules only: what depends on scores is chosen where the scores are.

// The archived twins that rkyv derives carry no docs of their own.
#![allow(missing_docs)]

use rkyv::Archive;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::PlanError;

/// Attention inside one phase-1 pass. Causality is by index in the assembled input, never by position id.
#[derive(
    JsonSchema,
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Serialize,
    Deserialize,
    Archive,
    rkyv::Serialize,
    rkyv::Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum LocalAttention {
    /// Every row sees itself and all rows before it.
    #[default]
    Causal,
    /// The first rows and a window, as in StreamingLLM.
    Streaming(Streaming),
    /// The first block, the row's group and the stripes that scores select, as in AnchorAttention.
    Stripes(Stripes),
    /// Columns and diagonals that the last rows select, as in MInference.
    VerticalSlash(VerticalSlash),
    /// Blocks of columns, of diagonals or of pooled scores up to a share of the mass, as in FlexPrefill.
    Flex(Flex),
}

/// Sizes of StreamingLLM's mask.
#[derive(
    Clone, Copy, Debug, PartialEq, Serialize, Deserialize, Archive, rkyv::Serialize, rkyv::Deserialize, JsonSchema,
)]
#[serde(default, deny_unknown_fields)]
pub struct Streaming {
    /// First tokens, seen by every row after them.
    #[serde(deserialize_with = "crate::size::size")]
    #[schemars(range(max = crate::size::MOST))]
    pub sink_tokens: usize,
    /// Latest tokens a row sees, itself included; at least 1.
    #[serde(deserialize_with = "crate::size::size")]
    #[schemars(range(max = crate::size::MOST))]
    pub window_tokens: usize,
}

impl Default for Streaming {
    fn default() -> Self {
        Self { sink_tokens: 1024, window_tokens: 8192 }
    }
}

/// Sizes of AnchorAttention (Zhang et al., 2025).
#[derive(
    Clone, Copy, Debug, PartialEq, Serialize, Deserialize, Archive, rkyv::Serialize, rkyv::Deserialize, JsonSchema,
)]
#[serde(default, deny_unknown_fields)]
pub struct Stripes {
    /// A key is selected when its pooled score is at most this far below the anchor's, in natural-log units.
    pub theta: f32,
    /// Query blocks that share their stripes.
    #[serde(deserialize_with = "crate::size::size")]
    #[schemars(range(max = crate::size::MOST))]
    pub step: usize,
    /// Rows of a query block.
    #[serde(deserialize_with = "crate::size::size")]
    #[schemars(range(max = crate::size::MOST))]
    pub block_q: usize,
    /// First keys, seen by every row after them.
    #[serde(deserialize_with = "crate::size::size")]
    #[schemars(range(max = crate::size::MOST))]
    pub block_kv: usize,
}

impl Default for Stripes {
    fn default() -> Self {
        Self { theta: 12.0, step: 16, block_q: 128, block_kv: 128 }
    }
}

/// Budgets of MInference's vertical-slash pattern (Jiang et al., 2024).
#[derive(
    Clone, Copy, Debug, PartialEq, Serialize, Deserialize, Archive, rkyv::Serialize, rkyv::Deserialize, JsonSchema,
)]
#[serde(default, deny_unknown_fields)]
pub struct VerticalSlash {
    /// Columns.
    #[serde(deserialize_with = "crate::size::size")]
    #[schemars(range(max = crate::size::MOST))]
    pub vertical: usize,
    /// Diagonals.
    #[serde(deserialize_with = "crate::size::size")]
    #[schemars(range(max = crate::size::MOST))]
    pub slash: usize,
}

impl Default for VerticalSlash {
    fn default() -> Self {
        Self { vertical: 1000, slash: 6096 }
    }
}

/// Thresholds of FlexPrefill (Lai et al., 2025).
#[derive(
    Clone, Copy, Debug, PartialEq, Serialize, Deserialize, Archive, rkyv::Serialize, rkyv::Deserialize, JsonSchema,
)]
#[serde(default, deny_unknown_fields)]
pub struct Flex {
    /// Share of the attention mass to keep.
    pub gamma: f32,
    /// Largest distance (root of the Jensen-Shannon divergence) at which a head follows its pooled scores.
    pub tau: f32,
    /// Least tokens of each pattern.
    #[serde(deserialize_with = "crate::size::size")]
    #[schemars(range(max = crate::size::MOST))]
    pub min_budget: usize,
}

impl Default for Flex {
    fn default() -> Self {
        Self { gamma: 0.95, tau: 0.1, min_budget: 1024 }
    }
}

impl LocalAttention {
    /// Whether the sizes make sense.
    ///
    /// # Errors
    /// [`PlanError::Size`] with the first that does not.
    pub fn check(&self) -> Result<(), PlanError> {
        let least_1 = |name, value: usize| match value {
            0 => Err(PlanError::Size { name, expected: "at least 1".into(), got: "0".into() }),
            _ => Ok(()),
        };
        let number = |name, value: f32, low: f32, high: f32| match value >= low && value <= high {
            true => Ok(()),
            false => Err(PlanError::Size {
                name,
                expected: format!("a number from {low} to {high}"),
                got: value.to_string(),
            }),
        };
        match self {
            Self::Causal => Ok(()),
            Self::Streaming(rule) => least_1("window_tokens", rule.window_tokens),
            Self::Stripes(rule) => {
                number("theta", rule.theta, f32::NEG_INFINITY, f32::INFINITY)?;
                least_1("step", rule.step)?;
                least_1("block_q", rule.block_q)?;
                least_1("block_kv", rule.block_kv)
            }
            Self::VerticalSlash(rule) => {
                least_1("vertical", rule.vertical)?;
                least_1("slash", rule.slash)
            }
            Self::Flex(rule) => {
                number("gamma", rule.gamma, 0.0, 1.0)?;
                number("tau", rule.tau, 0.0, 1.0)?;
                least_1("min_budget", rule.min_budget)
            }
        }
    }

    /// Whether the keys depend on scores, so that a plan can only bound their number.
    pub fn is_chosen_at_run_time(&self) -> bool {
        matches!(self, Self::Stripes(_) | Self::VerticalSlash(_) | Self::Flex(_))
    }

    /// (row, key) pairs of one head over `rows` rows: exact, or the most there can be when scores choose.
    pub fn pairs(&self, rows: usize) -> u64 {
        match self {
            Self::Streaming(Streaming { sink_tokens, window_tokens }) => {
                let seen = |row: usize| {
                    (row + 1).min(*window_tokens) + sink_tokens.min(&(row + 1).saturating_sub(*window_tokens))
                };
                (0..rows).map(|row| seen(row) as u64).sum()
            }
            Self::Causal | Self::Stripes(_) | Self::VerticalSlash(_) | Self::Flex(_) => causal_pairs(rows),
        }
    }
}

/// (row, key) pairs of causal attention over `rows` rows.
pub fn causal_pairs(rows: usize) -> u64 {
    let rows = rows as u64;
    rows * (rows + 1) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streaming_pairs_count_what_the_mask_shows() {
        for (sink, window, rows) in [(0, 1, 9), (3, 2, 20), (4, 32, 200), (50, 7, 30), (5, 100, 60)] {
            let rule = LocalAttention::Streaming(Streaming { sink_tokens: sink, window_tokens: window });
            let shown =
                (0..rows).flat_map(|i| (0..=i).map(move |j| (i, j))).filter(|(i, j)| *j < sink || i - j < window);
            assert_eq!(rule.pairs(rows), shown.count() as u64, "{sink} {window} {rows}");
        }
    }

    #[test]
    fn sizes_that_mean_nothing_are_refused() {
        let refusal = |attention: LocalAttention| attention.check().unwrap_err().to_string();
        let stripes = Stripes { theta: f32::NAN, ..Stripes::default() };
        insta::assert_snapshot!(refusal(LocalAttention::Stripes(stripes)), @"theta is NaN, expected a number from -inf to inf");
        let streaming = Streaming { sink_tokens: 4, window_tokens: 0 };
        insta::assert_snapshot!(refusal(LocalAttention::Streaming(streaming)), @"window_tokens is 0, expected at least 1");
        let flex = Flex { gamma: 1.5, ..Flex::default() };
        insta::assert_snapshot!(refusal(LocalAttention::Flex(flex)), @"gamma is 1.5, expected a number from 0 to 1");
    }
}
