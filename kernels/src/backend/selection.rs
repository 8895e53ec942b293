//! Attention over keys that were selected: by somebody else, or by a rule that the device follows itself.

use super::attention::{AttentionOps, Partial};
use super::tensors::TensorOps;
use crate::{KernelError, KeySets, Selection, Selector};

/// Attention over keys that were selected, and these.
pub type Sparse<'a, B> = Result<(Partial<<B as TensorOps>::Tensor>, Selection<'a>), KernelError>;

/// Sparse attention over causal sequences: as many rows as there are keys.
pub trait SelectionOps: AttentionOps {
    /// `q.k` of each key of `k (kv heads, t, dim)`, averaged over the rows of `q (query heads, m, dim)` and the query heads
    /// that share the KV head, not scaled: `(kv heads, t)`, row-major.
    fn key_scores(&self, q: &Self::Tensor, k: &Self::Tensor) -> Result<Vec<f32>, KernelError>;
    /// Attention of `q (query heads, t, dim)` over the listed keys of `t`: row `i` of head `h` sees the keys of
    /// `(h, i / rows)` that do not come after it.
    fn attention_selected(
        &self,
        q: &Self::Tensor,
        kv: &Self::Kv,
        keys: &KeySets,
    ) -> Result<Partial<Self::Tensor>, KernelError>;
    /// Attention of `q (query heads, t, dim)` over what the selector selects of `t` keys, and these. A selector with an anchor
    /// region attends to that too, and does not list it.
    fn attention_by(&self, q: &Self::Tensor, kv: &Self::Kv, selector: Selector) -> Sparse<'_, Self>;
}
