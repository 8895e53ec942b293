//! The stripes of AnchorAttention, chosen on the device. Attends to nothing.

use std::ops::Range;

use super::super::device::{Device, Spread, launch, typed, width};
use super::super::tensor::{Tensor, View};
use crate::{KernelError, KeySets, StripeRule};

/// Keys of a block of threads, as the kernel has them.
const KEYS: usize = 128;
/// Keys of a word of what was found.
const WORD: usize = 32;
/// Bytes of what is found that are there at a time.
const FOUND: usize = 64 << 20;

/// As `stripes.cu` declares it.
#[repr(C)]
struct Pool {
    q: u64,
    maxima: u64,
    queries: u64,
    anchors: u64,
    q_head: i64,
    q_row: i64,
    tokens: i32,
    rows: i32,
    blocks: i32,
    dim: i32,
}

/// As `stripes.cu` declares it.
#[repr(C)]
struct Find {
    k: u64,
    queries: u64,
    anchors: u64,
    found: u64,
    kv_head: i64,
    kv_row: i64,
    list: i32,
    groups: i32,
    group: i32,
    tokens: i32,
    words: i32,
    blocks: i32,
    step: i32,
    span: i32,
    first: i32,
    dim: i32,
    scale: f32,
    theta: f32,
}

impl Device {
    /// The stripes of each head and group of a causal sequence, given the rows' highest anchor scores `(query heads, tokens)` f32.
    pub fn stripes(&self, q: View<'_>, k: View<'_>, maxima: &Tensor, rule: StripeRule) -> Result<KeySets, KernelError> {
        let (heads, tokens, dim) = (q.heads, q.rows, q.dim);
        let (groups, words) = (tokens.div_ceil(rule.span()), tokens.div_ceil(WORD));
        let rows = rule.block_q.min(tokens.max(1));
        let blocks = tokens.div_ceil(rows);
        let queries = self.alloc(4 * heads * blocks * dim)?;
        let anchors = self.alloc(4 * heads * blocks)?;
        let pool = Pool {
            q: q.pointer,
            maxima: maxima.pointer(),
            queries: queries.pointer,
            anchors: anchors.pointer,
            q_head: q.at.head,
            q_row: q.at.row,
            tokens: tokens as i32,
            rows: rows as i32,
            blocks: blocks as i32,
            dim: dim as i32,
        };
        let spread = Spread { blocks: (blocks, heads), threads: 128, shared: 0 };
        launch!(self, &typed("pool_queries", q.dtype), spread, pool)?;
        let each = 16 / width(k.dtype);
        let aligned =
            k.pointer.is_multiple_of(16) && [dim as i64, k.at.head, k.at.row].iter().all(|n| n % each as i64 == 0);
        let name = typed(if aligned { "find_stripes_wide" } else { "find_stripes" }, k.dtype);
        let lists = heads * groups;
        let most = (FOUND / (4 * words.max(1))).clamp(1, lists.max(1));
        let found = self.alloc(4 * words * most)?;
        let mut ranges = Vec::with_capacity(lists);
        let mut bytes = vec![0; 4 * words * most];
        for first in (0..lists).step_by(most) {
            let count = most.min(lists - first);
            let find = Find {
                k: k.pointer,
                queries: queries.pointer,
                anchors: anchors.pointer,
                found: found.pointer,
                kv_head: k.at.head,
                kv_row: k.at.row,
                list: first as i32,
                groups: groups as i32,
                group: (heads / k.heads) as i32,
                tokens: tokens as i32,
                words: words as i32,
                blocks: blocks as i32,
                step: rule.step.min(blocks) as i32,
                span: rule.span().min(tokens) as i32,
                first: rule.block_kv.min(tokens) as i32,
                dim: dim as i32,
                scale: 1.0 / (dim as f32).sqrt(),
                theta: rule.theta,
            };
            let spread = Spread { blocks: (count, tokens.div_ceil(KEYS)), threads: KEYS as u32, shared: 0 };
            launch!(self, &name, spread, find)?;
            let bytes = &mut bytes[..4 * words * count];
            self.download_bytes(found.pointer, bytes)?;
            ranges.extend(bytes.chunks_exact(4 * words).map(runs));
        }
        KeySets::new(heads, rule.span(), &ranges)
    }
}

/// The runs of set bits in words of little-endian bytes, the lowest bit first.
fn runs(bytes: &[u8]) -> Vec<Range<u32>> {
    let mut runs: Vec<Range<u32>> = Vec::new();
    for (at, word) in bytes.chunks_exact(4).enumerate() {
        let mut word = u32::from_le_bytes(word.try_into().expect("four bytes"));
        let mut key = (at * WORD) as u32;
        while word != 0 {
            let skipped = word.trailing_zeros();
            let length = (word >> skipped).trailing_ones();
            let start = key + skipped;
            match runs.last_mut() {
                Some(last) if last.end == start => last.end += length,
                _ => runs.push(start..start + length),
            }
            key = start + length;
            word = word.checked_shr(skipped + length).unwrap_or(0);
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::runs;

    #[test]
    fn runs_go_on_from_word_to_word() {
        let of = |words: &[u32]| runs(&words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>());
        assert_eq!(of(&[0, 0]), []);
        assert_eq!(of(&[0b1011]), [0..2, 3..4]);
        assert_eq!(of(&[1 << 31, u32::MAX, 1]).first(), Some(&(31..65)));
        assert_eq!(of(&[u32::MAX, 0, 1 << 31]), [0..32, 95..96]);
    }
}
