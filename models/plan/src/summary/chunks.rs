//! Chunks of blocks, and small consecutive names for what they hold. Scores nothing.

use std::ops::Range;

/// All chunks of all blocks in order, numbered through.
pub(super) struct Chunks {
    /// Context range of each chunk.
    pub(super) spans: Vec<Range<usize>>,
    /// Number of the first chunk of each block, then the number of chunks.
    first: Vec<usize>,
}

impl Chunks {
    /// Cuts each block into chunks of `size` tokens, the last of a block possibly shorter.
    pub(super) fn cut(blocks: &[Range<usize>], size: usize) -> Self {
        assert!(size > 0, "methods refuse an empty chunk before they choose");
        let (mut spans, mut first) = (Vec::new(), vec![0]);
        for block in blocks {
            spans.extend(block.clone().step_by(size).map(|start| start..block.end.min(start.saturating_add(size))));
            first.push(spans.len());
        }
        Self { spans, first }
    }

    pub(super) fn blocks(&self) -> usize {
        self.first.len() - 1
    }

    /// Numbers of the chunks of `block`.
    pub(super) fn of_block(&self, block: usize) -> Range<usize> {
        self.first[block]..self.first[block + 1]
    }

    /// Context range of `block`.
    pub(super) fn span_of_block(&self, block: usize) -> Range<usize> {
        let spans = &self.spans[self.of_block(block)];
        spans.first().map_or(0, |chunk| chunk.start)..spans.last().map_or(0, |chunk| chunk.end)
    }
}

/// Names each distinct token by its rank among them. Returns the name of every token in turn and how many names there are.
pub(super) fn dense_ids(tokens: impl Iterator<Item = u32>) -> (Vec<u32>, usize) {
    let mut ids: Vec<u32> = tokens.collect();
    let highest = ids.iter().copied().max().unwrap_or(0) as usize;
    // A model's ids are far fewer than the tokens of a long context; any others are looked up among those there are.
    if highest < ids.len().saturating_mul(4) {
        let mut names = vec![0; highest + 1];
        ids.iter().for_each(|token| names[*token as usize] = 1);
        let mut distinct = 0;
        for name in &mut names {
            let held = *name;
            *name = distinct;
            distinct += held;
        }
        ids.iter_mut().for_each(|token| *token = names[*token as usize]);
        return (ids, distinct as usize);
    }
    let mut known = ids.clone();
    known.sort_unstable();
    known.dedup();
    ids.iter_mut().for_each(|token| *token = known.partition_point(|other| other < token) as u32);
    (ids, known.len())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn names_are_ranks_however_high_the_ids(tokens in prop::collection::vec(0_u32..60, 0..90), apart in prop::bool::ANY) {
            let tokens: Vec<u32> = tokens.into_iter().map(|token| if apart { token * 70_000_000 } else { token }).collect();
            let mut known = tokens.clone();
            known.sort_unstable();
            known.dedup();
            let rank = |token: &u32| known.iter().position(|other| other == token).unwrap() as u32;
            prop_assert_eq!(dense_ids(tokens.iter().copied()), (tokens.iter().map(rank).collect(), known.len()));
        }
    }
}
