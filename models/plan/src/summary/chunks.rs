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

/// Names each distinct key by its rank among them. Returns the name of every key in turn and how many names there are.
pub(super) fn dense_ids(keys: impl Iterator<Item = u64>) -> (Vec<u32>, usize) {
    let mut sorted: Vec<(u64, u32)> = keys.zip(0..).collect();
    sorted.sort_unstable();
    let mut ids = vec![0; sorted.len()];
    let mut distinct = 0;
    for run in sorted.chunk_by(|a, b| a.0 == b.0) {
        for &(_, index) in run {
            ids[index as usize] = distinct;
        }
        distinct += 1;
    }
    (ids, distinct as usize)
}
