//! The slow, obvious CPU version of attention and merge, on plain slices. Every fast kernel is tested against it; nothing runs on it.

mod sparse;

pub use sparse::{
    Estimate, ReferenceSequence, flex_prefill, key_scores, selected_attention, stripe_attention, stripe_margins,
    vertical_slash,
};

use std::ops::Range;

use crate::{Heads, Mask};

/// The sizes of one attention call.
#[derive(Clone, Copy, Debug)]
pub struct AttentionShape {
    /// Head counts and size.
    pub heads: Heads,
    /// Query rows of each head.
    pub queries: usize,
    /// Keys of each KV head.
    pub keys: usize,
    /// Which keys a row sees.
    pub mask: Mask,
}

impl AttentionShape {
    /// End of the keys that row `row` sees.
    pub fn visible(&self, row: usize) -> usize {
        self.mask.visible(row, self.queries, self.keys)
    }

    /// Keys before that end which the row does not see.
    pub fn hidden(&self, row: usize) -> Range<usize> {
        self.mask.hidden(row, self.visible(row))
    }

    /// Whether row `row` sees key `key`.
    pub fn sees(&self, row: usize, key: usize) -> bool {
        match self.mask {
            Mask::None => true,
            Mask::Causal => key + self.queries <= row + self.keys,
            Mask::From { row: first } => row >= first,
            Mask::Streaming { sink, window, first_row, first_key } => {
                let (row, key) = (first_row + row, first_key + key);
                key <= row && (key < sink || row - key < window)
            }
        }
    }

    /// Floating-point operations of the two products, masked pairs not counted, a multiply-add as two.
    pub fn flops(&self) -> f64 {
        let pairs: usize = (0..self.queries).map(|row| self.visible(row) - self.hidden(row).len()).sum();
        4.0 * (self.heads.query * self.heads.dim) as f64 * pairs as f64
    }
}

/// Attention of `q (query heads, queries, dim)` over `k, v (kv heads, keys, dim)`, scaled by `1 / sqrt(dim)`:
/// normalised output `(query heads, queries, dim)` and natural log-sum-exp `(query heads, queries)`.
pub fn attention(q: &[f32], k: &[f32], v: &[f32], shape: AttentionShape) -> (Vec<f32>, Vec<f32>) {
    masked_attention([q, k, v], shape, |_, row, key| shape.sees(row, key))
}

/// The same where row `row` of query head `head` sees key `key` iff `sees(head, row, key)`; the shape's mask plays no part.
fn masked_attention(
    [q, k, v]: [&[f32]; 3],
    shape: AttentionShape,
    sees: impl Fn(usize, usize, usize) -> bool,
) -> (Vec<f32>, Vec<f32>) {
    let AttentionShape { heads: Heads { query, kv, dim }, queries, keys, .. } = shape;
    let mut output = vec![0.0; query * queries * dim];
    let mut lse = vec![f32::NEG_INFINITY; query * queries];
    for head in 0..query {
        let kv_head = head / (query / kv);
        for row in 0..queries {
            let at = head * queries + row;
            let q = &q[at * dim..][..dim];
            let key = |j: usize| (kv_head * keys + j) * dim;
            let seen = (0..keys).filter(|j| sees(head, row, *j));
            let scores: Vec<(usize, f32)> =
                seen.map(|j| (j, dot(q, &k[key(j)..][..dim]) / (dim as f32).sqrt())).collect();
            if scores.is_empty() {
                continue;
            }
            let max = scores.iter().map(|(_, s)| *s).fold(f32::NEG_INFINITY, f32::max);
            let sum: f32 = scores.iter().map(|(_, s)| (s - max).exp()).sum();
            lse[at] = max + sum.ln();
            for (j, score) in scores {
                let weight = (score - max).exp() / sum;
                for (o, v) in output[at * dim..][..dim].iter_mut().zip(&v[key(j)..]) {
                    *o += weight * v;
                }
            }
        }
    }
    (output, lse)
}

/// Merges partials `(output (rows, dim), lse (rows))` over disjoint keys: Star Attention, algorithm 2, in its max form.
pub fn merge(partials: &[(&[f32], &[f32])], dim: usize) -> (Vec<f32>, Vec<f32>) {
    let rows = partials.first().map_or(0, |(_, lse)| lse.len());
    let mut output = vec![0.0; rows * dim];
    let mut merged = vec![f32::NEG_INFINITY; rows];
    for row in 0..rows {
        let max = partials.iter().map(|(_, lse)| lse[row]).fold(f32::NEG_INFINITY, f32::max);
        if max == f32::NEG_INFINITY {
            continue;
        }
        let sum: f32 = partials.iter().map(|(_, lse)| (lse[row] - max).exp()).sum();
        merged[row] = max + sum.ln();
        for (partial, lse) in partials {
            let weight = (lse[row] - max).exp() / sum;
            for (o, p) in output[row * dim..][..dim].iter_mut().zip(&partial[row * dim..]) {
                *o += weight * p;
            }
        }
    }
    (output, merged)
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE_HEAD: Heads = Heads { query: 1, kv: 1, dim: 1 };

    #[test]
    fn a_row_without_keys_changes_nothing_in_a_merge() {
        let causal = AttentionShape { heads: ONE_HEAD, queries: 2, keys: 1, mask: Mask::Causal };
        let (output, lse) = attention(&[1.0, 1.0], &[0.5], &[3.0], causal);
        assert_eq!((output.as_slice(), lse.as_slice()), ([0.0, 3.0].as_slice(), [f32::NEG_INFINITY, 0.5].as_slice()));
        let merged = merge(&[(&output[..1], &lse[..1]), (&output[1..], &lse[1..])], 1);
        assert_eq!(merged, (vec![3.0], vec![0.5]));
        assert_eq!(merge(&[(&[0.0], &[f32::NEG_INFINITY])], 1), (vec![0.0], vec![f32::NEG_INFINITY]));
    }

    #[test]
    fn two_equal_keys_share_the_weight() {
        let shape = AttentionShape { heads: ONE_HEAD, queries: 1, keys: 2, mask: Mask::None };
        let (output, lse) = attention(&[2.0], &[1.0, 1.0], &[1.0, 3.0], shape);
        assert_eq!(output, [2.0]);
        assert!((lse[0] - (2.0 + 2f32.ln())).abs() < 1e-6);
    }
}
