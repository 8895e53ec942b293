//! Attention of a layer with a sliding window: a row sees the latest tokens, by their positions, of those that its pass has before it.
//! Where the method cuts blocks, a block's first rows therefore miss tokens of the block before it; exact methods miss none. Keys are
//! chosen by the window alone, whatever the method chooses elsewhere.

use std::ops::Range;

use asterism_kernels::{Backend, Mask};
use asterism_plan::{Exchange, LocalAttention, Span, attention::Streaming};

use super::{Layer, Pass, Peers, Watch};
use crate::{ModelError, decoder::Projected};

/// Rows of a pass one after the other, at positions one after the other.
#[derive(Clone)]
struct Run {
    rows: Range<usize>,
    position: usize,
}

impl Run {
    /// Those of some spans.
    fn of(spans: impl Iterator<Item = Span>) -> Vec<Self> {
        let mut runs: Vec<Self> = Vec::new();
        for span in spans {
            let (start, tokens) = (runs.last().map_or(0, |run| run.rows.end), span.tokens as usize);
            match runs.last_mut() {
                Some(last) if last.past() == span.position as usize => last.rows.end += tokens,
                _ => runs.push(Self { rows: start..start + tokens, position: span.position as usize }),
            }
        }
        runs
    }

    /// The position behind its last.
    fn past(&self) -> usize {
        self.position + self.rows.len()
    }

    /// Which of the keys of `keys` its rows see.
    fn mask(&self, keys: &Self, window: usize) -> Mask {
        Mask::Streaming { sink: 0, window, first_row: self.position, first_key: keys.position }
    }

    /// Whether one of its rows sees a key of `keys`.
    fn sees(&self, keys: &Self, window: usize) -> bool {
        keys.position < self.past() && self.position < keys.past() + window - 1
    }

    /// Pairs of a row and a key that it sees.
    fn pairs(&self, keys: &Self, window: usize) -> u64 {
        let of_row = |at: usize| {
            let start = keys.position.max((at + 1).saturating_sub(window));
            keys.past().min(at + 1).saturating_sub(start) as u64
        };
        (self.position..self.past()).map(of_row).sum()
    }
}

/// Pairs of a sequence of so many tokens of which each row sees the latest.
pub(super) fn windowed_pairs(tokens: usize, window: usize) -> u64 {
    LocalAttention::Streaming(Streaming { sink_tokens: 0, window_tokens: window }).pairs(tokens)
}

impl<B: Backend> Layer<'_, B> {
    pub(super) fn attend_within(
        &self,
        window: usize,
        peers: &mut dyn Peers<B>,
        watch: &mut dyn Watch,
    ) -> Result<Vec<Vec<B::Tensor>>, ModelError> {
        match self.phase.exchange {
            Exchange::AllToAll => {
                let mask = Mask::Streaming { sink: 0, window, first_row: 0, first_key: 0 };
                let whole = self.attend_by_heads(mask, peers, watch)?;
                Ok(whole.into_iter().map(|output| vec![output]).collect())
            }
            Exchange::Broadcast => self.attend_within_earlier(window, peers, watch),
            Exchange::None | Exchange::PassCompressed(_) | Exchange::SharedPrefix { .. } => {
                self.passes.iter().map(|pass| self.within(pass, window, watch)).collect()
            }
        }
    }

    /// Attention output of a pass over its own rows.
    fn within(&self, pass: &Pass<'_, B>, window: usize, watch: &mut dyn Watch) -> Result<Vec<B::Tensor>, ModelError> {
        let (backend, runs) = (self.backend(), Run::of(pass.shard.spans()));
        let mut outputs = Vec::with_capacity(runs.len());
        for (at, run) in runs.iter().enumerate() {
            let q = match runs.len() {
                1 => pass.qkv.q.clone(),
                _ => backend.narrow(&pass.qkv.q, 1, run.rows.start, run.rows.end)?,
            };
            let mut partials = Vec::new();
            for keys in runs[..=at].iter().filter(|keys| run.sees(keys, window)) {
                let kv = match runs.len() {
                    1 => pass.kv.clone(),
                    _ => backend.kv_rows(&pass.kv, keys.rows.start, keys.rows.end)?,
                };
                watch.pairs(pass.shard.block, self.query_heads() * run.pairs(keys, window));
                partials.push(backend.attention(&q, &kv, run.mask(keys, window))?);
            }
            outputs.push(match partials.len() {
                1 => self.settled(partials.swap_remove(0))?,
                _ => self.settled(backend.merge(&partials)?)?,
            });
        }
        Ok(outputs)
    }

    /// Attention outputs where shards send all later ones their keys: as much of them as reaches into the window.
    fn attend_within_earlier(
        &self,
        window: usize,
        peers: &mut dyn Peers<B>,
        watch: &mut dyn Watch,
    ) -> Result<Vec<Vec<B::Tensor>>, ModelError> {
        let (backend, decoder) = (self.backend(), self.phase.decoder);
        for pass in self.passes.iter().filter(|pass| self.has_later(pass)) {
            peers.send(self.keys_of(pass.shard.block), vec![pass.qkv.k.clone(), pass.qkv.v.clone()])?;
        }
        let mut outputs = Vec::with_capacity(self.passes.len());
        for pass in self.passes {
            let Projected { q, .. } = &pass.qkv;
            let own = Run { rows: 0..pass.shard.rows(), position: pass.shard.own.position as usize };
            watch.pairs(pass.shard.block, self.query_heads() * own.pairs(&own, window));
            let mut partials = vec![backend.attention(q, &pass.kv, own.mask(&own, window))?];
            // Blocks lie one behind the other: the nearest ends where this begins.
            let mut past = own.position;
            for [k, v] in self.earlier_keys(pass, peers)?.into_iter().rev() {
                let tokens = backend.shape(&k)[1];
                let keys = Run { rows: 0..tokens, position: past - tokens };
                past = keys.position;
                if own.sees(&keys, window) {
                    watch.pairs(pass.shard.block, self.query_heads() * own.pairs(&keys, window));
                    partials.push(backend.attention(q, &decoder.kv(&k, &v)?, own.mask(&keys, window))?);
                }
            }
            outputs.push(vec![self.settled(backend.merge(&partials)?)?]);
        }
        Ok(outputs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_go_on_are_one() {
        let span = |position, tokens| Span { start: position, tokens, position };
        let runs = Run::of([span(0, 4), span(4, 2), span(10, 3)].into_iter());
        let found: Vec<_> = runs.iter().map(|run| (run.rows.clone(), run.position)).collect();
        assert_eq!(found, [(0..6, 0), (6..9, 10)]);
    }

    #[test]
    fn pairs_and_sight_are_those_of_the_mask() {
        for (row, key, window) in [(10, 0, 5), (10, 6, 5), (10, 7, 5), (3, 3, 1), (0, 8, 4), (20, 2, 40)] {
            let run = |position: usize, rows: usize| Run { rows: 0..rows, position };
            let (rows, keys) = (run(row, 7), run(key, 4));
            let slow = (row..row + 7)
                .flat_map(|row| (key..key + 4).map(move |key| key <= row && row - key < window))
                .filter(|sees| *sees)
                .count() as u64;
            assert_eq!(rows.pairs(&keys, window), slow, "{row} {key} {window}");
            assert_eq!(rows.sees(&keys, window), slow > 0, "{row} {key} {window}");
        }
        let whole = Run { rows: 0..50, position: 0 };
        assert_eq!(whole.pairs(&whole, 7), windowed_pairs(50, 7));
    }
}
