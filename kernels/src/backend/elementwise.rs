//! What is computed row by row between the products of a decoder. Multiplies by no weights of two sizes.

use super::tensors::TensorOps;
use crate::{KernelError, Likeliest};

/// Embedding, norm and activations.
pub trait ElementwiseOps: TensorOps {
    /// Rows of `table (vocab, e)`: `(t, e)`.
    fn embed(&self, table: &Self::Tensor, ids: &[u32]) -> Result<Self::Tensor, KernelError>;
    /// Root-mean-square norm of each row of `x (.., e)`, times `weight (e)`, accumulated in f32.
    fn rms_norm(&self, x: &Self::Tensor, weight: &Self::Tensor, eps: f32) -> Result<Self::Tensor, KernelError>;
    /// `silu(gate) * up` of `gate_up (t, 2 f)`, gate first: `(t, f)`.
    fn gated_silu(&self, gate_up: &Self::Tensor) -> Result<Self::Tensor, KernelError>;
    /// `silu(x)` of each element: the activation of a retaining head.
    fn silu(&self, x: &Self::Tensor) -> Result<Self::Tensor, KernelError>;
    /// The likeliest token of each row of `logits (t, vocab)`, and nothing else of them on the host.
    fn likeliest(&self, logits: &Self::Tensor) -> Result<Vec<Likeliest>, KernelError> {
        let vocab = self.shape(logits).last().copied().unwrap_or(0).max(1);
        Ok(self.download(logits)?.chunks_exact(vocab).map(Likeliest::of).collect())
    }
}
