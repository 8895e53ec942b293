//! What a device answers with.

use super::Backend;
use crate::{KernelError, Selection};

/// Attention over one shard of the keys: normalised output and natural log-sum-exp of the scaled scores, both f32.
/// A row that saw no key has output 0 and `lse` minus infinity, and changes nothing in a merge.
#[derive(Clone, Debug)]
pub struct Partial<T> {
    /// `(query heads, tokens, head dim)`.
    pub output: T,
    /// `(query heads, tokens)`.
    pub lse: T,
}

/// Tensors that a backend lent: what another of its kind, of this process, gets of them is its own. They are kept as long as this.
pub type Lent<B> = Box<dyn Fn(&B) -> Result<Vec<<B as Backend>::Tensor>, KernelError> + Send + Sync>;

/// Attention over keys that were selected, and these.
pub type Sparse<'a, B> = Result<(Partial<<B as Backend>::Tensor>, Selection<'a>), KernelError>;

/// What waits until a device has done what it was asked before.
pub type Mark = Box<dyn FnOnce() -> Result<(), KernelError>>;
