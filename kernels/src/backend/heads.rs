//! From the rows of projections to heads, and back. Attends to nothing.

use super::tensors::TensorOps;
use crate::{Heads, KernelError};

/// How queries and keys are rotated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rotary<'a> {
    /// Angle of each pair of elements at position 1, `(dim / 2)`.
    pub inv_freq: &'a [f32],
    /// What cosines and sines of pairs that turn are multiplied by: the attention factor of YaRN and LongRoPE. Pairs that do not,
    /// whose angle is 0, are kept as they are.
    pub factor: f32,
}

impl<'a> Rotary<'a> {
    /// By these angles, lengths kept.
    pub fn plain(inv_freq: &'a [f32]) -> Self {
        Self { inv_freq, factor: 1.0 }
    }
}

/// Splits rows into heads, and joins heads to rows.
pub trait HeadOps: TensorOps {
    /// Splits `qkv (t, (query + 2 kv) dim)` into heads and rotates queries and keys (half-split convention) by
    /// `positions[i] * rotary.inv_freq[j]`, angles in f32: `q (query, t, dim)`, `k, v (kv, t, dim)`.
    #[allow(clippy::type_complexity)]
    fn split_rotate(
        &self,
        qkv: &Self::Tensor,
        heads: Heads,
        positions: &[u32],
        rotary: Rotary<'_>,
    ) -> Result<(Self::Tensor, Self::Tensor, Self::Tensor), KernelError>;
    /// `(heads, t, dim)`, f32 or in compute type -> `(t, heads dim)` in compute type, ready for the output projection.
    fn join_heads(&self, output: &Self::Tensor) -> Result<Self::Tensor, KernelError>;
    /// `x (heads, t, dim)` as `(t, heads dim)`, in the type it has: a query as it travels.
    fn row_major(&self, x: &Self::Tensor) -> Result<Self::Tensor, KernelError> {
        row_major(self, x)
    }
}

/// As [`HeadOps::row_major`], by way of the host.
pub fn row_major<B: TensorOps>(backend: &B, x: &B::Tensor) -> Result<B::Tensor, KernelError> {
    let shape = backend.shape(x);
    let [heads, t, dim] = shape[..] else {
        return Err(KernelError::shape("row_major", "(heads, tokens, head dim)", &[&shape]));
    };
    let values = backend.download(x)?;
    let mut rows = vec![0.0; values.len()];
    for head in 0..heads {
        for row in 0..t {
            rows[(row * heads + head) * dim..][..dim].copy_from_slice(&values[(head * t + row) * dim..][..dim]);
        }
    }
    backend.cast(&backend.upload(&[t, heads * dim], &rows)?)
}
