//! Which chunks of each block stand for it in the prefixes of later blocks (Pulsar Attention, section 3 and appendix C).
//! A pure function of token ids: it knows no tensor, position or host, and does not assemble prefixes.

mod chunks;
mod query;
mod rarity;
mod select;

use std::ops::Range;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::PlanError;
use chunks::{Chunks, dense_ids};

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
}

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
            Self::InAll { .. } => self.in_all(block, read).div_ceil(read.max(1)),
        }
    }

    /// Tokens of the summaries of `read` blocks of `block` tokens together.
    pub fn in_all(self, block: usize, read: usize) -> usize {
        match self {
            Self::InAll { share, least, most } => {
                let share = Self::Fraction(share).tokens(block.saturating_mul(read.max(1)), read);
                share.max(least).min(most.max(least))
            }
            each => each.tokens(block, read).saturating_mul(read),
        }
    }
}

/// The summary of each of the `blocks`, which are ascending, disjoint ranges of `context`. Only
/// [`Heuristic::QueryAware`] reads the `query`; without one it goes by rarity. The rule must pass [`SummaryRule::check`].
pub fn summarize(context: &[u32], query: &[u32], blocks: &[Range<usize>], rule: &SummaryRule) -> Vec<Summary> {
    let chunks = Chunks::cut(blocks, rule.chunk_tokens);
    let quotas = quotas(blocks, rule);
    if rule.heuristic == Heuristic::EvenSpaced {
        let sizes = quotas.iter().map(|chunks| chunks.saturating_mul(rule.chunk_tokens));
        return blocks.iter().zip(sizes).map(|(block, tokens)| even_spaced(block, tokens)).collect();
    }
    let (scores, ties) = scores_and_ties(context, query, &chunks, rule);
    select::choose(&chunks, &select::Ranking { scores, ties, rule: rule.ties }, &quotas, rule.spread)
}

/// The same within the rule's budget where `score` says what each chunk, a range of the context, is worth; higher is better. The
/// earliest of equal ones is taken.
pub fn summarize_by(
    blocks: &[Range<usize>],
    rule: &SummaryRule,
    score: impl FnMut(&Range<usize>) -> f64,
) -> Vec<Summary> {
    let chunks = Chunks::cut(blocks, rule.chunk_tokens);
    let scores = chunks.spans.iter().map(score).collect();
    let ranking = select::Ranking { scores, ties: Vec::new(), rule: TieBreak::LowIndex };
    select::choose(&chunks, &ranking, &quotas(blocks, rule), rule.spread)
}

/// How many whole chunks of each block there is room for; where blocks share, of the first for all.
fn quotas(blocks: &[Range<usize>], rule: &SummaryRule) -> Vec<usize> {
    let whole_chunks =
        |block: &Range<usize>| rule.budget.tokens(block.len(), blocks.len().saturating_sub(1)) / rule.chunk_tokens;
    let mut quotas: Vec<_> = blocks.iter().map(whole_chunks).collect();
    if let (BudgetSpread::Shared, SummaryBudget::InAll { .. }, [first, _, ..]) = (rule.spread, rule.budget, blocks) {
        // What is shared is cut into chunks once, not block by block.
        let read = blocks.len() - 1;
        quotas[..read].fill(0);
        quotas[0] = rule.budget.in_all(first.len(), read) / rule.chunk_tokens;
    }
    quotas
}

/// The score of every chunk of every block, chunks without a selection; higher is better. Empty lists for
/// [`Heuristic::EvenSpaced`], which scores nothing.
pub fn chunk_scores(context: &[u32], query: &[u32], blocks: &[Range<usize>], rule: &SummaryRule) -> Vec<Vec<f64>> {
    if rule.heuristic == Heuristic::EvenSpaced {
        return vec![Vec::new(); blocks.len()];
    }
    let chunks = Chunks::cut(blocks, rule.chunk_tokens);
    let (scores, _) = scores_and_ties(context, query, &chunks, rule);
    (0..blocks.len()).map(|block| scores[chunks.of_block(block)].to_vec()).collect()
}

/// Scores of all chunks, and the integer that orders equal scores (larger first), empty where the rule needs none.
fn scores_and_ties(context: &[u32], query: &[u32], chunks: &Chunks, rule: &SummaryRule) -> (Vec<f64>, Vec<u64>) {
    let ties_by_rarity = matches!(rule.ties, TieBreak::Count | TieBreak::Rarity);
    let (ids, distinct) = match rule.heuristic == Heuristic::QueryAware && !ties_by_rarity {
        true => (Vec::new(), 0),
        false => dense_ids(context.iter().copied()),
    };
    let scores = match rule.heuristic {
        Heuristic::QueryAware => query::scores(context, query, chunks),
        heuristic => rarity::scores(&ids, distinct, chunks, heuristic),
    };
    let ties = if ties_by_rarity { rarity::tie_keys(&ids, distinct, chunks, rule.ties) } else { Vec::new() };
    (scores, ties)
}

/// `tokens` indices from the first to the last of `block`, or all of them.
fn even_spaced(block: &Range<usize>, tokens: usize) -> Summary {
    let count = tokens.min(block.len());
    let gaps = count.saturating_sub(1).max(1);
    let offset = |step: usize| (step as u128 * block.len().saturating_sub(1) as u128 / gaps as u128) as usize;
    Summary { chunks: Vec::new(), indices: (0..count).map(|step| (block.start + offset(step)) as u32).collect() }
}
