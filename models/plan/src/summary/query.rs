//! Scores that know the query: what stands near tokens that the query asks for, directly or through tokens found there,
//! plus rarity in the whole context. Not published: an answer to what the published scores lose when a fact is made of
//! common tokens or its parts stand in different blocks. Ids only: it knows neither sentences nor words.
//!
//! The constants were chosen by fact recall: the share of the statements an answer depends on, among those in all blocks
//! but the last, that lie whole inside the summaries. Mean over 14 retrieval, tracing and question-answering tasks (20 to
//! 30 questions each, none of them used to choose), 4 blocks, an eighth of each block:
//!
//! | rule | 4k | 8k | 16k |
//! |---|---|---|---|
//! | max-idf, chunks of 32 tokens | 22 | 53 | 77 |
//! | weighted overlap of chunks of 16 with the query, chunks as neighbours | 78 | 84 | 85 |
//! | this, chunks of 8 | 96 | 99 | 100 |
//! | this, chunks of 8, shared budget | 98 | 100 | 100 |
//! | this without a query, chunks of 8 | 39 | 61 | 84 |
//!
//! Without pairs the shared budget keeps 89 at 4k, without rarity beside relevance 94.
//!
//! Answers, not recall, then chose chunks of 16 and a least budget for short contexts: `methods/pulsar.rs`.

use std::collections::BTreeMap;
use std::ops::Range;

use super::chunks::{Chunks, dense_ids};

/// Tokens of the cells over which document frequencies are counted, whatever the size of chunks. 16 costs 1 point of
/// recall at 4k with a shared budget, 64 costs 2.
const CELL: usize = 32;
/// Share of a token's relevance that reaches the next token on either side. 0.8 costs 5 points, 0.95 costs 2.
const REACH: f64 = 0.9;
/// A feature found again within so many tokens counts once.
const REPEAT: usize = 16;
/// Share of a token's score that the next token has at least: values follow their keys and may be 40 tokens long. 0.96
/// costs 3 points (long values are cut), 0.985 costs 4 (trails crowd out other facts).
const TRAIL: f64 = 0.975;
/// Rounds in which tokens near relevant ones join the query. None costs 5 points, one costs 1, three change nothing.
const HOPS: usize = 2;
/// Tokens found in more than one of so many cells do not join. 32 costs 2 points.
const COMMON: u32 = 16;

/// Scores of all chunks.
pub(super) fn scores(context: &[u32], query: &[u32], chunks: &Chunks) -> Vec<f64> {
    let (ids, distinct) = dense_ids(context.iter().chain(query).copied());
    let (context, query) = ids.split_at(context.len());
    let mut found = Matches::of(context, query, distinct);
    let mut relevance = found.relevance();
    for _ in 0..HOPS {
        found.join(&relevance);
        relevance = found.relevance();
    }
    for index in 1..relevance.len() {
        relevance[index] = relevance[index].max(TRAIL * relevance[index - 1]);
    }
    let score = |span: &Range<usize>| {
        let rarest = highest(context[span.clone()].iter().map(|&id| found.idf[id as usize]));
        rarest + highest(relevance[span.clone()].iter().copied())
    };
    chunks.spans.iter().map(score).collect()
}

/// Where the context holds tokens and adjacent pairs of the query, and what they weigh.
struct Matches<'a> {
    context: &'a [u32],
    cells: usize,
    /// Cells that hold each token.
    df: Vec<u32>,
    /// ln(cells / df) of each token.
    idf: Vec<f64>,
    /// What each token weighs in the query, 0 for those it does not ask for.
    token_weights: Vec<f64>,
    /// Context index and number of each of the query's pairs, ascending.
    pairs: Vec<(usize, u32)>,
    pair_weights: Vec<f64>,
}

impl<'a> Matches<'a> {
    fn of(context: &'a [u32], query: &[u32], distinct: usize) -> Self {
        let cells = context.len().div_ceil(CELL);
        let idf = |df: &u32| if *df == 0 { 0.0 } else { (cells as f64 / f64::from(*df)).ln() };
        let df = cell_df(context.iter().copied().enumerate(), distinct);
        let token_idf: Vec<f64> = df.iter().map(idf).collect();
        let mut token_weights = vec![0.0; distinct];
        let mut asked = vec![false; distinct];
        for &id in query {
            token_weights[id as usize] = token_idf[id as usize];
            asked[id as usize] = true;
        }
        let mut names = BTreeMap::new();
        for pair in query.windows(2) {
            let name = names.len() as u32;
            names.entry((pair[0], pair[1])).or_insert(name);
        }
        let candidates =
            context.windows(2).enumerate().filter(|(_, pair)| asked[pair[0] as usize] && asked[pair[1] as usize]);
        let pairs: Vec<(usize, u32)> =
            candidates.filter_map(|(index, pair)| Some((index, *names.get(&(pair[0], pair[1]))?))).collect();
        let pair_weights = cell_df(pairs.iter().copied(), names.len()).iter().map(idf).collect();
        Self { context, cells, df, idf: token_idf, token_weights, pairs, pair_weights }
    }

    /// How near each token stands to what the query asks for: weights of features, fading with distance.
    fn relevance(&self) -> Vec<f64> {
        let mut relevance = vec![0.0; self.context.len()];
        add_weights(&mut relevance, self.context.iter().copied().enumerate(), &self.token_weights);
        add_weights(&mut relevance, self.pairs.iter().copied(), &self.pair_weights);
        let mut ahead = 0.0;
        let mut both = relevance.clone();
        for (total, own) in both.iter_mut().zip(&relevance).rev() {
            *total += REACH * ahead;
            ahead = own + REACH * ahead;
        }
        let mut behind = 0.0;
        for (total, own) in both.iter_mut().zip(&relevance) {
            *total += REACH * behind;
            behind = own + REACH * behind;
        }
        both
    }

    /// Lets rare tokens that stand where relevance is high join the query, by the cube of their share of the highest.
    fn join(&mut self, relevance: &[f64]) {
        let highest = highest(relevance.iter().copied());
        if highest == 0.0 {
            return;
        }
        let common = self.cells as u32 / COMMON;
        for (&id, &near) in self.context.iter().zip(relevance) {
            let id = id as usize;
            if (2..=common).contains(&self.df[id]) {
                let share = near / highest;
                self.token_weights[id] = self.token_weights[id].max(self.idf[id] * share * share * share);
            }
        }
    }
}

/// Cells that hold each of `names` features, given where they start, ascending.
fn cell_df(features: impl Iterator<Item = (usize, u32)>, names: usize) -> Vec<u32> {
    let (mut df, mut last) = (vec![0; names], vec![u32::MAX; names]);
    for (index, name) in features {
        let cell = (index / CELL) as u32;
        if std::mem::replace(&mut last[name as usize], cell) != cell {
            df[name as usize] += 1;
        }
    }
    df
}

/// Adds the weight of each feature where it starts, unless it was counted less than [`REPEAT`] tokens before.
fn add_weights(relevance: &mut [f64], features: impl Iterator<Item = (usize, u32)>, weights: &[f64]) {
    let mut free_from = vec![0; weights.len()];
    for (index, name) in features {
        let (weight, free_from) = (weights[name as usize], &mut free_from[name as usize]);
        if weight > 0.0 && index >= *free_from {
            relevance[index] += weight;
            *free_from = index + REPEAT;
        }
    }
}

/// The largest of values that are not negative.
fn highest(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tokens 1000.. that never repeat, with `facts` laid over them.
    fn context(facts: &[(usize, &[u32])]) -> Vec<u32> {
        let mut context: Vec<u32> = (1000..1000 + 64 * CELL as u32).collect();
        for &(start, fact) in facts {
            context[start..start + fact.len()].copy_from_slice(fact);
        }
        context
    }

    /// Scores of chunks of 8 tokens.
    fn in_eights(context: &[u32], query: &[u32]) -> Vec<f64> {
        scores(context, query, &Chunks::cut(&[0..context.len(); 1], 8))
    }

    /// The best chunks of 8 tokens, ascending.
    fn best(context: &[u32], query: &[u32], count: usize) -> Vec<usize> {
        let scores = in_eights(context, query);
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
        order.truncate(count);
        order.sort_unstable();
        order
    }

    #[test]
    fn what_the_query_names_comes_first() {
        let context = context(&[(80, &[1, 2, 3]), (800, &[4, 5, 6])]);
        assert_eq!(best(&context, &[9, 5, 7], 1), [100]);
        assert_eq!(best(&context, &[3, 9, 9, 4], 2), [10, 100]);
    }

    #[test]
    fn pairs_tell_orders_of_the_same_tokens_apart() {
        let context = context(&[(80, &[2, 1, 3, 1]), (800, &[1, 2, 1, 3]), (1600, &[3, 1, 2, 2])]);
        assert_eq!(best(&context, &[1, 2, 1, 3], 1), [100]);
    }

    /// 7 is asked for; 5 and 6 lead from it to a statement that shares nothing with the query.
    #[test]
    fn chains_are_followed() {
        let context = context(&[(80, &[5, 6]), (800, &[6, 7]), (1600, &[4, 5])]);
        let scores = in_eights(&context, &[7]);
        assert!(scores[100] > scores[10] && scores[10] > scores[200] && scores[200] > 1.02 * scores[50]);
    }

    #[test]
    fn a_value_is_kept_with_its_key() {
        let context = context(&[(800, &[7])]);
        assert_eq!(best(&context, &[7], 5), [99, 100, 101, 102, 103]);
    }

    #[test]
    fn without_a_query_rarity_decides() {
        let mut context = vec![1; 64 * CELL];
        context[803] = 2;
        assert_eq!(best(&context, &[], 1), [100]);
    }

    #[test]
    fn nothing_is_no_context() {
        assert!(scores(&[], &[1, 2], &Chunks::cut(&[], 8)).is_empty());
        assert_eq!(scores(&[1], &[1], &Chunks::cut(&[0..1; 1], 8)), [0.0]);
    }
}
