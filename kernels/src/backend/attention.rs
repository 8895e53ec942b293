//! Attention over keys that a mask shows, with log-sum-exp, and the exact merge of its partials. Selects no keys.

use super::cache::KvOps;
use crate::{KernelError, Mask};

/// Attention over one shard of the keys: normalised output and natural log-sum-exp of the scaled scores, both f32.
/// A row that saw no key has output 0 and `lse` minus infinity, and changes nothing in a merge.
#[derive(Clone, Debug)]
pub struct Partial<T> {
    /// `(query heads, tokens, head dim)`.
    pub output: T,
    /// `(query heads, tokens)`.
    pub lse: T,
}

/// Attention.
pub trait AttentionOps: KvOps {
    /// Most rows of an attention call whose bits do not depend on how many there are; 0: those of none do.
    fn independent_rows(&self) -> usize {
        0
    }

    /// Attention of `q (query heads, t, dim)` in compute type over one shard of keys, scaled by `1 / sqrt(dim)`. Memory is
    /// linear in `t` and in the keys; KV heads are shared by their query heads, never copied.
    fn attention(&self, q: &Self::Tensor, kv: &Self::Kv, mask: Mask) -> Result<Partial<Self::Tensor>, KernelError>;
    /// The same of rows that are asked together whenever they are asked: what attends to many of such may take them, too, however few
    /// they are.
    fn attention_together(
        &self,
        q: &Self::Tensor,
        kv: &Self::Kv,
        mask: Mask,
    ) -> Result<Partial<Self::Tensor>, KernelError> {
        self.attention(q, kv, mask)
    }
    /// Outputs of [`AttentionOps::attention`] of each call, to the last bit: few rows of many shards.
    fn attention_each(&self, calls: &[(Self::Tensor, Self::Kv, Mask)]) -> Result<Vec<Self::Tensor>, KernelError> {
        calls.iter().map(|(q, kv, mask)| Ok(self.attention(q, kv, *mask)?.output)).collect()
    }
    /// Exact merge of partials over disjoint keys, in the order given (Star Attention, algorithm 2, in its max form).
    fn merge(&self, partials: &[Partial<Self::Tensor>]) -> Result<Partial<Self::Tensor>, KernelError>;
}
