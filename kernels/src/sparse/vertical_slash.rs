//! MInference's vertical-slash pattern: its rule, and the keys of chosen columns and offsets. Computes no score.

use std::ops::Range;

/// Rows of a block, and keys of a slash block, of the vertical-slash pattern; rows it is estimated from.
pub(crate) const SLASH: usize = 64;
/// Columns and offsets of the vertical-slash pattern that come before all others.
pub(crate) const FOREMOST: [usize; 2] = [30, 100];

/// MInference's vertical-slash pattern, estimated from the last 64 queries of each head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerticalSlashRule {
    /// Key columns kept, at least 30; the first 30 come first.
    pub vertical: usize,
    /// Offsets of key from row kept, at least 50; the nearest 100 come first.
    pub slash: usize,
}

impl VerticalSlashRule {
    /// Columns and offsets kept, where there are so many.
    pub(crate) fn kept(&self) -> [usize; 2] {
        [self.vertical.max(30), self.slash.max(50)]
    }
}

/// Keys of the [`SLASH`] rows before `end`: blocks where offsets lead, joined while they touch, and columns between them.
pub(crate) fn block_keys(columns: &[usize], offsets: &[usize], end: usize, tokens: usize) -> Vec<Range<u32>> {
    let mut spans: Vec<Range<usize>> = Vec::new();
    for offset in offsets[..offsets.partition_point(|offset| *offset < end)].iter().rev() {
        let last = (end - offset).max(SLASH);
        match spans.last_mut() {
            Some(span) if last <= span.end => {}
            Some(span) if last <= span.end + SLASH => span.end += SLASH,
            _ => spans.push(last - SLASH..last),
        }
    }
    let limit = end.min(tokens);
    let mut columns = columns.iter().copied().take_while(|column| *column < limit).peekable();
    let mut ranges = Vec::new();
    for span in spans {
        while let Some(column) = columns.next_if(|column| *column < span.start) {
            ranges.push(column as u32..column as u32 + 1);
        }
        while columns.next_if(|column| *column < span.end).is_some() {}
        ranges.push(span.start.min(limit) as u32..span.end.min(limit) as u32);
    }
    ranges.extend(columns.map(|column| column as u32..column as u32 + 1));
    ranges
}
