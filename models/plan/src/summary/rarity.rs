//! The published scores, which know rarity among blocks only, and tie keys of the same kind. Reads no query.

use super::chunks::Chunks;
use super::rule::{Heuristic, TieBreak};

/// Saturation of repeated tokens in BM25.
const BM25_K1: f64 = 1.2;
/// Weight of a chunk's length in BM25.
const BM25_B: f64 = 0.75;

/// Scores of all chunks over `ids`, names below `distinct`.
pub(super) fn scores(ids: &[u32], distinct: usize, chunks: &Chunks, heuristic: Heuristic) -> Vec<f64> {
    let df = block_df(ids, distinct, chunks);
    let n = chunks.blocks() as f64;
    let idf: Vec<f64> = (0..=chunks.blocks() as u32).map(|df| (n / f64::from(df.max(1))).ln()).collect();
    let idf_of = |id: &u32| idf[df[*id as usize] as usize];
    let pieces = chunks.spans.iter().map(|span| &ids[span.clone()]);
    match heuristic {
        Heuristic::MaxIdf => pieces.map(|piece| piece.iter().map(idf_of).fold(0.0, f64::max)).collect(),
        Heuristic::TfIdf => pieces.map(|piece| piece.iter().map(idf_of).sum::<f64>() / piece.len() as f64).collect(),
        Heuristic::Entropy => {
            let mut counts = Counts::new(distinct);
            pieces.map(|piece| counts.of(piece).len() as f64 / piece.len() as f64).collect()
        }
        Heuristic::Bm25 => bm25(ids, distinct, chunks, &df),
        Heuristic::EvenSpaced | Heuristic::QueryAware => unreachable!("scored elsewhere, if at all"),
    }
}

/// Keys that order chunks of equal score: how many, or how rare in their block, its tokens of lowest df are.
pub(super) fn tie_keys(ids: &[u32], distinct: usize, chunks: &Chunks, ties: TieBreak) -> Vec<u64> {
    let df = block_df(ids, distinct, chunks);
    let (mut counts, mut in_block) = (Counts::new(distinct), vec![0_u32; distinct]);
    let mut keys = Vec::with_capacity(chunks.spans.len());
    for block in 0..chunks.blocks() {
        let tokens = &ids[chunks.span_of_block(block)];
        tokens.iter().for_each(|&id| in_block[id as usize] += 1);
        for span in &chunks.spans[chunks.of_block(block)] {
            let held = counts.of(&ids[span.clone()]);
            let lowest = held.iter().map(|&(id, _)| df[id as usize]).min();
            let rarest = held.iter().filter(|&&(id, _)| Some(df[id as usize]) == lowest);
            // Integers, so that the order of the tokens cannot matter.
            let weight =
                |id: u32| if ties == TieBreak::Count { 1 } else { (1 << 32) / u64::from(in_block[id as usize]) };
            keys.push(rarest.map(|&(id, _)| weight(id)).sum());
        }
        tokens.iter().for_each(|&id| in_block[id as usize] = 0);
    }
    keys
}

/// Blocks that hold each name.
fn block_df(ids: &[u32], distinct: usize, chunks: &Chunks) -> Vec<u32> {
    let (mut df, mut last) = (vec![0; distinct], vec![usize::MAX; distinct]);
    for block in 0..chunks.blocks() {
        for &id in &ids[chunks.span_of_block(block)] {
            if std::mem::replace(&mut last[id as usize], block) != block {
                df[id as usize] += 1;
            }
        }
    }
    df
}

fn bm25(ids: &[u32], distinct: usize, chunks: &Chunks, df: &[u32]) -> Vec<f64> {
    let n = chunks.blocks() as f64;
    let idf = |df: u32| ((n - f64::from(df) + 0.5) / (f64::from(df) + 0.5) + 1.0).ln();
    let idf: Vec<f64> = (0..=chunks.blocks() as u32).map(idf).collect();
    let tokens: usize = chunks.spans.iter().map(ExactSizeIterator::len).sum();
    let mean_len = tokens as f64 / chunks.spans.len() as f64;
    let mut counts = Counts::new(distinct);
    let score = |span: &std::ops::Range<usize>| {
        let norm = BM25_K1 * (1.0 - BM25_B + BM25_B * span.len() as f64 / mean_len);
        let term = |&(id, count): &(u32, u32)| {
            let tf = f64::from(count);
            idf[df[id as usize] as usize] * tf * (BM25_K1 + 1.0) / (tf + norm)
        };
        counts.of(&ids[span.clone()]).iter().map(term).sum()
    };
    chunks.spans.iter().map(score).collect()
}

/// Counts names within one chunk after the other.
struct Counts {
    /// Position in `held` of each name, valid if `held` has the name there.
    slot: Vec<u32>,
    held: Vec<(u32, u32)>,
}

impl Counts {
    fn new(distinct: usize) -> Self {
        Self { slot: vec![0; distinct], held: Vec::new() }
    }

    /// The distinct names of `piece` in order of appearance, with their counts.
    fn of(&mut self, piece: &[u32]) -> &[(u32, u32)] {
        self.held.clear();
        for &id in piece {
            let slot = self.slot[id as usize] as usize;
            match self.held.get_mut(slot) {
                Some((held, count)) if *held == id => *count += 1,
                _ => {
                    self.slot[id as usize] = self.held.len() as u32;
                    self.held.push((id, 1));
                }
            }
        }
        &self.held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tie_keys_look_at_tokens_of_the_lowest_df() {
        // Two blocks of two chunks; 0 is in both, the others in one.
        let ids = [1, 0, 0, 2, 3, 3, 0, 0, 0, 4, 4, 4];
        let chunks = Chunks::cut(&[0..6, 6..12], 3);
        assert_eq!(tie_keys(&ids, 5, &chunks, TieBreak::Count), [1, 2, 1, 1]);
        let one = 1_u64 << 32;
        assert_eq!(tie_keys(&ids, 5, &chunks, TieBreak::Rarity), [one, one + one / 2, one / 3, one / 3]);
    }

    #[test]
    fn scores_by_hand() {
        let ids = [1, 0, 0, 2, 3, 3, 0, 0, 0, 4, 4, 4];
        let chunks = Chunks::cut(&[0..6, 6..12], 3);
        let ln2 = 2.0_f64.ln();
        assert_eq!(scores(&ids, 5, &chunks, Heuristic::MaxIdf), [ln2, ln2, 0.0, ln2]);
        assert_eq!(scores(&ids, 5, &chunks, Heuristic::TfIdf), [ln2 / 3.0, ln2, 0.0, ln2]);
        assert_eq!(scores(&ids, 5, &chunks, Heuristic::Entropy), [2.0 / 3.0, 2.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0]);
    }
}
