//! What is computed row by row between the products of a decoder. Multiplies by no weights of two sizes.

use super::tensors::TensorOps;
use crate::{Activation, Extra, KernelError, RowChoice, RowToken};

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
    /// A token of each row of `logits (t, vocab)`, as asked, and nothing else of them on the host.
    fn choose_tokens(&self, logits: &Self::Tensor, choices: &[RowChoice]) -> Result<Vec<RowToken>, KernelError> {
        let shape = self.shape(logits);
        let [rows, vocab] = shape[..] else { return Err(KernelError::shape("choose_tokens", "(t, vocab)", &[&shape])) };
        if choices.len() != rows {
            let expected = format!("{} rows, a choice each", choices.len());
            return Err(KernelError::shape("choose_tokens", expected, &[&shape]));
        }
        let (logits, vocab) = (self.download(logits)?, vocab.max(1));
        Ok(choices.iter().zip(logits.chunks_exact(vocab)).map(|(choice, row)| choice.of(row)).collect())
    }

    /// Whether the device has an operation that only some decoders need.
    fn has(&self, extra: Extra) -> bool {
        let _ = extra;
        false
    }
    /// Why it cannot do without.
    ///
    /// # Errors
    /// [`KernelError::NoKernel`] where it does not have the operation.
    fn needs(&self, extra: Extra) -> Result<(), KernelError> {
        if self.has(extra) { Ok(()) } else { Err(self.lacks(extra)) }
    }
    /// What it says of an operation that it does not have.
    fn lacks(&self, extra: Extra) -> KernelError {
        KernelError::NoKernel { operation: extra.name(), device: self.numerics() }
    }
    /// [`ElementwiseOps::gated_silu`] by an activation.
    fn gated(&self, gate_up: &Self::Tensor, activation: Activation) -> Result<Self::Tensor, KernelError> {
        match activation {
            Activation::Silu => self.gated_silu(gate_up),
            Activation::GeluTanh | Activation::ClampedSilu { .. } => Err(self.lacks(Extra::Activations)),
        }
    }
    /// `x + y`, both `(t, e)` in compute type.
    fn sum(&self, x: &Self::Tensor, y: &Self::Tensor) -> Result<Self::Tensor, KernelError> {
        let _ = (x, y);
        Err(self.lacks(Extra::Sums))
    }
    /// `factor * x` of each element, in compute type.
    fn multiple(&self, x: &Self::Tensor, factor: f32) -> Result<Self::Tensor, KernelError> {
        let _ = (x, factor);
        Err(self.lacks(Extra::Sums))
    }
    /// `x (t, e)`, with `weights[i]` times row `i` of `y (n, e)` added to its row `rows[i]`; no row is named twice.
    fn add_rows(
        &self,
        x: &Self::Tensor,
        (rows, weights): (&[u32], &[f32]),
        y: &Self::Tensor,
    ) -> Result<Self::Tensor, KernelError> {
        let _ = (x, rows, weights, y);
        Err(self.lacks(Extra::Sums))
    }
}
