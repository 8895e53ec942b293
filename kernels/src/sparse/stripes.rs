//! AnchorAttention's rule: an anchor region that all see, and stripes between. Computes no score.

use std::ops::Range;

use crate::{KernelError, KeySets};

/// AnchorAttention. A group is `step` blocks of `block_q` query rows; its anchor region is the first `block_kv` keys and those
/// from the group's first token on. A key between the two is a stripe of the group iff for any of its query blocks the
/// mean of the rows' highest anchor score, less the mean query's score of the key, is at most `theta`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StripeRule {
    /// Largest difference of scaled scores, natural logarithm; may be infinite.
    pub theta: f32,
    /// Query blocks of a group.
    pub step: usize,
    /// Query rows of a block.
    pub block_q: usize,
    /// Keys that every row sees.
    pub block_kv: usize,
}

impl StripeRule {
    /// Pairs of a row and a key of its anchor region in one head of a causal sequence of `queries`.
    pub fn anchor_pairs(&self, queries: usize) -> u64 {
        let anchor = self.check().and_then(|()| self.anchor(1, queries));
        anchor.map_or(0, |anchor| anchor.pairs(queries))
    }

    /// Query rows of a group.
    pub(crate) fn span(&self) -> usize {
        self.step.saturating_mul(self.block_q)
    }

    /// Keys among which the stripes of a group are: those between the initial ones and the group's own.
    pub(crate) fn candidates(&self, group: usize) -> Range<usize> {
        self.block_kv..(group * self.span()).max(self.block_kv)
    }

    /// The anchor region of every group; rows cut it where their keys end.
    pub(crate) fn anchor(&self, heads: usize, queries: usize) -> Result<KeySets, KernelError> {
        let key = |key: usize| key.min(queries) as u32;
        let of_group = |group: usize| {
            let end = key((group + 1).saturating_mul(self.span()));
            vec![0..key(self.block_kv).min(end), key(self.candidates(group).end).min(end)..end]
        };
        let groups = queries.div_ceil(self.span());
        let lists: Vec<_> = (0..heads * groups).map(|list| of_group(list % groups)).collect();
        KeySets::new(heads, self.span(), &lists)
    }

    pub(crate) fn check(&self) -> Result<(), KernelError> {
        if self.step > 0 && self.block_q > 0 && !self.theta.is_nan() {
            return Ok(());
        }
        let expected = "a step and a block_q of at least 1, and a theta that is a number".into();
        Err(KernelError::Shape { operation: "stripe_attention", expected, got: format!("{self:?}") })
    }
}
