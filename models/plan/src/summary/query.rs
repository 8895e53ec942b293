//! Scores that know the query: what a chunk shares with it, directly or through other chunks, plus rarity in the whole
//! context. Not published: an answer to what the published scores lose when facts are made of common tokens.

use std::ops::Range;

use super::chunks::{Chunks, dense_ids};

/// Scores of all chunks.
pub(super) fn scores(context: &[u32], query: &[u32], chunks: &Chunks) -> Vec<f64> {
    let features = Features::of(context, query, chunks);
    let idf = features.idf();
    let rarity: Vec<f64> = (0..chunks.spans.len()).map(|chunk| features.mean(chunk, &idf)).collect();
    let mut weights = vec![0.0; idf.len()];
    features.query.iter().for_each(|&feature| weights[feature as usize] = idf[feature as usize]);
    let score = |weights: &[f64]| -> Vec<f64> {
        (0..chunks.spans.len()).map(|chunk| features.sum(chunk, weights) + RARITY * rarity[chunk]).collect()
    };
    let mut scores = score(&weights);
    for _ in 0..HOPS {
        features.expand(&scores, &idf, &mut weights);
        scores = score(&weights);
    }
    spread_to_neighbours(&scores, chunks)
}

/// Weight of a chunk's mean rarity beside what it shares with the query.
const RARITY: f64 = 0.3;
/// Rounds in which the best chunks' features join the query.
const HOPS: usize = 2;
/// Chunks whose features join.
const SEEDS: usize = 8;
/// Weight of a feature that joined.
const JOINED: f64 = 0.5;
/// Features in more than this share of the chunks do not join.
const COMMON: usize = 16;
/// Share of its score that a chunk lends to its neighbours.
const NEIGHBOUR: f64 = 0.9;

/// Distinct tokens and adjacent pairs of each chunk, named by small numbers.
struct Features {
    /// Features of all chunks, one chunk after the other.
    held: Vec<u32>,
    /// Where each chunk's features start, then the number of all.
    first: Vec<usize>,
    /// Chunks that hold each feature.
    df: Vec<u32>,
    /// Distinct features of the query that some chunk holds.
    query: Vec<u32>,
}

impl Features {
    fn of(context: &[u32], query: &[u32], chunks: &Chunks) -> Self {
        let both = || context.iter().chain(query).copied();
        let (tokens, words) = dense_ids(both().map(u64::from));
        let pairs = tokens.windows(2).map(|pair| u64::from(pair[0]) << 32 | u64::from(pair[1]));
        let (pairs, pair_names) = dense_ids(pairs);
        let (mut held, mut first) = (Vec::new(), vec![0]);
        let mut df = vec![0; words + pair_names];
        let mut seen = vec![usize::MAX; df.len()];
        for (chunk, span) in chunks.spans.iter().enumerate() {
            // One token of overlap at each edge, so that no pair is lost.
            let span = span.start.saturating_sub(1)..context.len().min(span.end + 1);
            for feature in within(&tokens, &pairs, words, span) {
                if std::mem::replace(&mut seen[feature as usize], chunk) != chunk {
                    df[feature as usize] += 1;
                    held.push(feature);
                }
            }
            first.push(held.len());
        }
        let mut asked: Vec<u32> = within(&tokens, &pairs, words, context.len()..tokens.len()).collect();
        asked.sort_unstable();
        asked.dedup();
        asked.retain(|&feature| df[feature as usize] > 0);
        Self { held, first, df, query: asked }
    }

    fn chunks(&self) -> usize {
        self.first.len() - 1
    }

    fn of_chunk(&self, chunk: usize) -> &[u32] {
        &self.held[self.first[chunk]..self.first[chunk + 1]]
    }

    fn idf(&self) -> Vec<f64> {
        let chunks = self.chunks() as f64;
        self.df.iter().map(|&df| if df == 0 { 0.0 } else { (chunks / f64::from(df)).ln() }).collect()
    }

    fn sum(&self, chunk: usize, weights: &[f64]) -> f64 {
        self.of_chunk(chunk).iter().map(|&feature| weights[feature as usize]).sum()
    }

    fn mean(&self, chunk: usize, weights: &[f64]) -> f64 {
        self.sum(chunk, weights) / self.of_chunk(chunk).len().max(1) as f64
    }

    /// Lets features of the best chunks join the query.
    fn expand(&self, scores: &[f64], idf: &[f64], weights: &mut [f64]) {
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.sort_unstable_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
        let Some(&best) = order.first() else { return };
        let common = (self.chunks() / COMMON) as u32;
        for &seed in order.iter().take(SEEDS) {
            for &feature in self.of_chunk(seed) {
                let feature = feature as usize;
                if (2..=common).contains(&self.df[feature]) {
                    let joined = JOINED * idf[feature] * scores[seed] / scores[best];
                    weights[feature] = f64::max(weights[feature], joined);
                }
            }
        }
    }
}

/// Features in `span`, repeated ones included: token names, then pair names above them.
fn within<'a>(tokens: &'a [u32], pairs: &'a [u32], words: usize, span: Range<usize>) -> impl Iterator<Item = u32> + 'a {
    let pairs = pairs.iter().take(span.end.saturating_sub(1)).skip(span.start);
    tokens[span].iter().copied().chain(pairs.map(move |pair| pair + words as u32))
}

fn spread_to_neighbours(scores: &[f64], chunks: &Chunks) -> Vec<f64> {
    let mut spread = scores.to_vec();
    for block in 0..chunks.blocks() {
        let range = chunks.of_block(block);
        for chunk in range.start + 1..range.end {
            spread[chunk] = spread[chunk].max(NEIGHBOUR * scores[chunk - 1]);
            spread[chunk - 1] = spread[chunk - 1].max(NEIGHBOUR * scores[chunk]);
        }
    }
    spread
}
