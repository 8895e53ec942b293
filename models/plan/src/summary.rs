//! Which chunks of each block stand for it in the prefixes of later blocks (Pulsar Attention, section 3 and appendix C).
//! A pure function of token ids: it knows no tensor, position or host, and does not assemble prefixes.

mod chunks;
mod query;
mod rarity;
mod rule;
mod select;

use std::ops::Range;

use chunks::{Chunks, dense_ids};
use rarity::Rarity;
pub(crate) use rule::MOST_TOKENS;
pub use rule::{BudgetSpread, Heuristic, Summary, SummaryBudget, SummaryRule, TieBreak};

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
    if let (BudgetSpread::Shared, budget, [first, _, ..]) = (rule.spread, rule.budget, blocks)
        && matches!(budget, SummaryBudget::InAll { .. } | SummaryBudget::Ample { .. })
    {
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
    let by = |rarity: Rarity| rarity::scores(&ids, distinct, chunks, rarity);
    let scores = match rule.heuristic {
        Heuristic::QueryAware => query::scores(context, query, chunks),
        Heuristic::MaxIdf => by(Rarity::MaxIdf),
        Heuristic::TfIdf => by(Rarity::TfIdf),
        Heuristic::Bm25 => by(Rarity::Bm25),
        Heuristic::Entropy => by(Rarity::Entropy),
        Heuristic::EvenSpaced => Vec::new(),
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
