//! How summaries are chosen, and what one is. Scores nothing.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::PlanError;

/// How chunks are scored. df is the number of blocks that hold a token, n the number of blocks, the last included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Heuristic {
    /// The largest ln(n / df) of a token of the chunk.
    #[default]
    MaxIdf,
    /// The mean of ln(n / df) over the chunk's tokens.
    TfIdf,
    /// Okapi BM25 of the chunk's own tokens, k1 = 1.2, b = 0.75.
    Bm25,
    /// Distinct tokens per token.
    Entropy,
    /// No chunks: single tokens at even distances.
    EvenSpaced,
    /// What the chunk shares with the query, directly or through other chunks; rarity in the whole context if nothing.
    QueryAware,
}

/// The order of chunks with equal scores. On prose nearly all chunks of a block tie under [`Heuristic::MaxIdf`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TieBreak {
    /// The earliest chunk first.
    #[default]
    LowIndex,
    /// The latest chunk first.
    HighIndex,
    /// Chunks at even distances among the tied.
    Strided,
    /// Most distinct tokens of the chunk's lowest df first, then the earliest.
    Count,
    /// Those tokens weighted by the inverse of their count in the block, then the earliest.
    Rarity,
}

/// Tokens of a block's summary. Whole chunks are taken while they fit, a short last chunk counting as a full one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SummaryBudget {
    /// So many tokens of every block.
    Tokens(usize),
    /// This share of the block's tokens, rounded down.
    Fraction(f64),
    /// So many tokens of all blocks but the last together: a share of them, within bounds.
    InAll {
        /// The share.
        share: f64,
        /// Least tokens, however short the context.
        least: usize,
        /// Most tokens, however long.
        most: usize,
    },
    /// What a query needs of all blocks but the last together: an eighth of them up to [`AMPLE_TOKENS`], and of long contexts a
    /// thirty-second, up to [`MOST_TOKENS`].
    Ample {
        /// Least tokens, however short the context.
        least: usize,
    },
}

/// Summaries that a query chose are an eighth of what they stand for up to so many tokens. A model of 1.5 billion parameters answered
/// 36.9% of 160 questions at 30k with so many, as with dense attention, and 34.4% with 1,152.
const AMPLE_TOKENS: usize = 4096;
/// What keeps the work of a token the same however long the context.
pub(crate) const MOST_TOKENS: usize = 8192;

/// Who competes for the budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum BudgetSpread {
    /// The chunks of one block for the budget of that block.
    #[default]
    PerBlock,
    /// The chunks of all blocks but the last for the sum of their budgets. Nobody reads the last block's summary: it
    /// keeps its own budget. Even spacing has no scores to compare, so it stays per block.
    Shared,
}

/// How summaries are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SummaryRule {
    /// Scores of chunks.
    pub heuristic: Heuristic,
    /// Order of equal scores.
    pub ties: TieBreak,
    /// Tokens of a chunk, at least 1. Chunks start at the block's first token; the last of a block may be shorter.
    pub chunk_tokens: usize,
    /// Tokens of a summary.
    pub budget: SummaryBudget,
    /// Who shares a budget.
    pub spread: BudgetSpread,
}

/// The part of a block that later blocks see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Chosen chunks, counted within the block, ascending. Empty for [`Heuristic::EvenSpaced`].
    pub chunks: Vec<usize>,
    /// Context indices of the chosen tokens, ascending.
    pub indices: Vec<u32>,
}

/// Published defaults: max-idf over chunks of 32 tokens, an eighth of each block, ties to the earliest chunk.
impl Default for SummaryRule {
    fn default() -> Self {
        Self {
            heuristic: Heuristic::default(),
            ties: TieBreak::default(),
            chunk_tokens: 32,
            budget: SummaryBudget::Fraction(0.125),
            spread: BudgetSpread::default(),
        }
    }
}

impl SummaryRule {
    /// What keeps most of what answers depend on (figures in `summary/query.rs`): the same share of the context as the
    /// published rule, in small chunks wherever the query leads.
    pub fn query_aware() -> Self {
        Self { heuristic: Heuristic::QueryAware, chunk_tokens: 16, spread: BudgetSpread::Shared, ..Self::default() }
    }

    /// Whether the sizes make sense.
    ///
    /// # Errors
    /// [`PlanError`] for chunks of no token, or a share of a block that is none.
    pub fn check(&self) -> Result<(), PlanError> {
        if self.chunk_tokens == 0 {
            return Err(PlanError::Size { name: "chunk_tokens", expected: "at least 1".into(), got: "0".into() });
        }
        match self.budget {
            SummaryBudget::Fraction(share) | SummaryBudget::InAll { share, .. } if !(0.0..=1.0).contains(&share) => {
                let (name, expected) = ("summary_fraction", "a share from 0 to 1".into());
                Err(PlanError::Size { name, expected, got: share.to_string() })
            }
            _ => Ok(()),
        }
    }
}

impl SummaryBudget {
    /// Tokens of the summary of a block of `block` tokens, one of `read` blocks whose summaries are read.
    pub fn tokens(self, block: usize, read: usize) -> usize {
        match self {
            Self::Tokens(tokens) => tokens,
            Self::Fraction(share) => (share * block as f64).floor() as usize,
            Self::InAll { .. } | Self::Ample { .. } => self.in_all(block, read).div_ceil(read.max(1)),
        }
    }

    /// Tokens of the summaries of `read` blocks of `block` tokens together.
    pub fn in_all(self, block: usize, read: usize) -> usize {
        match self {
            Self::InAll { share, least, most } => {
                let share = Self::Fraction(share).tokens(block.saturating_mul(read.max(1)), read);
                share.max(least).min(most.max(least))
            }
            Self::Ample { least } => {
                let all = block.saturating_mul(read.max(1));
                (all / 8).min(AMPLE_TOKENS).max(least).max((all / 32).min(MOST_TOKENS))
            }
            each => each.tokens(block, read).saturating_mul(read),
        }
    }
}
