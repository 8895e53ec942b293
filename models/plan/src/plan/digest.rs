//! A checksum of what a pass reads, so that what a host read can be held against what it was to read. It finds mistakes and
//! broken memory; nobody who means to deceive.

use std::ops::Range;

use super::shard::Shard;
use crate::{Input, LocalAttention};

/// The multiplier of FxHash.
const FACTOR: u64 = 0x517c_c1b7_2722_0a95;

/// A checksum that is fed what is handed on, in the order in which a pass hands it on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InputDigest(u64);

impl InputDigest {
    /// Token ids of all rows.
    pub fn ids(&mut self, ids: &[u32]) {
        self.list(1, ids.iter().copied().map(u64::from));
    }

    /// Position ids of all rows.
    pub fn positions(&mut self, positions: &[u32]) {
        self.list(2, positions.iter().copied().map(u64::from));
    }

    /// The length of the sequence that positions are rotated for.
    pub fn rope_length(&mut self, length: u32) {
        self.list(6, [u64::from(length)]);
    }

    /// Leading rows that are prefix, and which keys a row sees.
    pub fn mask(&mut self, prefix: usize, attention: &LocalAttention) {
        self.list(3, [prefix as u64]);
        self.list(4, format!("{attention:?}").bytes().map(u64::from));
    }

    /// Token ids that stand behind the rows in a chain.
    pub fn behind(&mut self, ids: &[u32]) {
        if !ids.is_empty() {
            self.list(7, ids.iter().copied().map(u64::from));
        }
    }

    /// Rows whose keys and values are kept.
    pub fn kept(&mut self, rows: Range<usize>) {
        self.list(5, [rows.start as u64, rows.end as u64]);
    }

    /// The checksum so far.
    pub fn value(self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }

    /// A list of a kind; its length and kind count, so that nothing of one is taken for another's.
    fn list(&mut self, kind: u64, words: impl IntoIterator<Item = u64>) {
        let mut count = 0;
        self.word(kind);
        for word in words {
            self.word(word);
            count += 1;
        }
        self.word(count);
    }

    fn word(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(FACTOR);
    }
}

impl Shard {
    /// The checksum of what its pass is to read.
    pub fn digest(&self, input: &Input) -> u64 {
        let mut digest = InputDigest::default();
        digest.ids(&input.ids);
        digest.positions(&input.positions);
        digest.rope_length(self.rope_length);
        digest.mask(self.prefix_rows(), &self.attention);
        digest.kept(self.keep_from()..self.rows());
        digest.behind(&input.behind);
        digest.value()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Span, attention::Stripes};

    #[test]
    fn whatever_a_pass_reads_counts() {
        let span = |start, tokens| Span { start, tokens, position: start };
        let attention = LocalAttention::Causal;
        let shard = Shard {
            block: 1,
            host: 0,
            prefix: vec![span(0, 2)],
            own: span(8, 4),
            keeps_prefix: false,
            apart_rows: 0,
            behind: 0,
            attention,
            rope_length: 0,
        };
        let ids: Vec<u32> = (100..120).collect();
        let of = |shard: &Shard| shard.digest(&shard.input(ids.as_slice()).unwrap());
        let others = [
            Shard { own: span(9, 4), ..shard.clone() },
            Shard { rope_length: 65, ..shard.clone() },
            Shard { own: Span { position: 9, ..span(8, 4) }, ..shard.clone() },
            Shard { own: span(8, 5), ..shard.clone() },
            Shard { prefix: vec![span(0, 1), span(1, 1)], keeps_prefix: true, ..shard.clone() },
            Shard { prefix: vec![span(1, 1), span(0, 1)], ..shard.clone() },
            Shard { attention: LocalAttention::Stripes(Stripes::default()), ..shard.clone() },
        ];
        assert!(others.iter().all(|other| of(other) != of(&shard)));
        let elsewhere = Shard { block: 3, host: 2, ..shard.clone() };
        assert_eq!(of(&elsewhere), of(&shard), "where it lies is no input");
    }
}
