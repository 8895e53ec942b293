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

/// Bytes of tensors as they travel, on their way to the host.
pub trait RawBytes {
    /// How many there are.
    fn size(&self) -> usize;
    /// Those from `start` on, of which there must be as many as `to` takes; waits for them.
    fn read(&self, start: usize, to: &mut [u8]) -> Result<(), KernelError>;
    /// All of them.
    fn whole(&self) -> Result<Vec<u8>, KernelError> {
        let mut all = vec![0; self.size()];
        self.read(0, &mut all)?;
        Ok(all)
    }
}

impl RawBytes for Vec<u8> {
    fn size(&self) -> usize {
        self.len()
    }

    fn read(&self, start: usize, to: &mut [u8]) -> Result<(), KernelError> {
        to.copy_from_slice(&self[start..start + to.len()]);
        Ok(())
    }
}

/// What waits until a device has done what it was asked before.
pub type Mark = Box<dyn FnOnce() -> Result<(), KernelError>>;
