//! Weights as checkpoints store them, and the linear layers that a device makes of them.

use std::ops::Range;

use super::elementwise::ElementwiseOps;
use crate::{DType, KernelError, Stored};

/// A tensor as a checkpoint stores it: borrowed bytes, row-major, little-endian.
#[derive(Clone, Copy, Debug)]
pub struct HostTensor<'a> {
    /// How `bytes` hold the elements.
    pub stored: Stored,
    /// Row-major shape.
    pub shape: &'a [usize],
    /// `shape` elements so stored; no alignment is promised.
    pub bytes: &'a [u8],
}

impl HostTensor<'_> {
    /// Writes elements `start..`, as many as `to` takes, as f32. Of blocks both ends are whole ones.
    pub(crate) fn widen(&self, start: usize, to: &mut [f32]) {
        let bytes = &self.bytes[self.stored.byte_range(start..start + to.len())];
        match self.stored {
            Stored::Blocks(format) => format.dequantize(bytes, to),
            Stored::Plain(dtype) => {
                for (b, to) in bytes.chunks_exact(dtype.size()).zip(to) {
                    *to = match dtype {
                        DType::F32 => f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
                        DType::Bf16 => half::bf16::from_le_bytes([b[0], b[1]]).to_f32(),
                        DType::F16 => half::f16::from_le_bytes([b[0], b[1]]).to_f32(),
                    };
                }
            }
        }
    }

    /// All elements as f32.
    pub fn values(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.shape.iter().product()];
        self.widen(0, &mut values);
        values
    }

    /// Checks that there are the bytes that the shape wants, and that rows are whole blocks.
    pub(crate) fn check(&self, operation: &'static str) -> Result<(), KernelError> {
        let rows = self.shape.last().is_none_or(|row| row.is_multiple_of(self.stored.block()));
        let expected = self.stored.bytes_of(self.shape.iter().product()).filter(|_| rows);
        if expected == Some(self.bytes.len()) {
            return Ok(());
        }
        let expected = expected.map_or("rows of whole blocks".to_owned(), |bytes| format!("{bytes} bytes"));
        let expected = format!("{expected} for {:?} of {}", self.shape, self.stored);
        Err(KernelError::Shape { operation, expected, got: format!("{} bytes", self.bytes.len()) })
    }
}

/// Linear layers, alone and with what a decoder computes before and behind them.
pub trait LinearOps: ElementwiseOps {
    /// The weights of `y = x W^T + b`, prepared once for this device.
    type Linear: Send + Sync + 'static;

    /// Rows that linear layers like to get at once: shards are stacked up to it, and more rows taken in turns, which bounds what
    /// lies between the layers. 0: as they come.
    fn linear_rows(&self) -> usize {
        0
    }

    /// Uploads one weight (embedding table, norm) in compute type.
    fn weight(&self, tensor: HostTensor<'_>) -> Result<Self::Tensor, KernelError>;
    /// Prepares a linear layer whose output is the outputs of `parts` (each `(n_i, k)`) side by side. `biases` is empty
    /// or has one `(n_i)` for each part.
    fn linear_weight(&self, parts: &[HostTensor<'_>], biases: &[HostTensor<'_>]) -> Result<Self::Linear, KernelError>;
    /// The same of the output head `(vocab, e)`, whose small differences choose tokens: never in fewer bits than compute type, unless
    /// the checkpoint has it so. Logits may be wider than compute type, where sums are.
    fn head_weight(&self, weight: HostTensor<'_>) -> Result<Self::Linear, KernelError> {
        self.linear_weight(&[weight], &[])
    }

    /// `x (t, k) -> (t, n)`.
    fn linear(&self, x: &Self::Tensor, weight: &Self::Linear) -> Result<Self::Tensor, KernelError>;
    /// `residual (t, n) + linear(x)`. Takes the residual by value: the storage may be reused.
    fn linear_add(
        &self,
        x: &Self::Tensor,
        weight: &Self::Linear,
        residual: Self::Tensor,
    ) -> Result<Self::Tensor, KernelError>;
    /// [`LinearOps::linear`] of [`ElementwiseOps::rms_norm`].
    fn norm_linear(
        &self,
        x: &Self::Tensor,
        (norm, eps): (&Self::Tensor, f32),
        weight: &Self::Linear,
    ) -> Result<Self::Tensor, KernelError> {
        self.linear(&self.rms_norm(x, norm, eps)?, weight)
    }
    /// [`ElementwiseOps::gated_silu`] of [`LinearOps::norm_linear`].
    fn norm_gated(
        &self,
        x: &Self::Tensor,
        norm: (&Self::Tensor, f32),
        gate_up: &Self::Linear,
    ) -> Result<Self::Tensor, KernelError> {
        self.gated_silu(&self.norm_linear(x, norm, gate_up)?)
    }
    /// [`LinearOps::linear_add`] of [`ElementwiseOps::gated_silu`] of [`LinearOps::norm_linear`], to `x` itself: what a decoder's
    /// layer ends with.
    fn norm_mlp(
        &self,
        x: &Self::Tensor,
        norm: (&Self::Tensor, f32),
        [gate_up, down]: [&Self::Linear; 2],
    ) -> Result<Self::Tensor, KernelError> {
        self.linear_add(&self.gated_silu(&self.norm_linear(x, norm, gate_up)?)?, down, x.clone())
    }
    /// Columns `outputs` of [`LinearOps::linear_add`], to the last bit: a device's part where several share a linear layer.
    fn linear_add_part(
        &self,
        x: &Self::Tensor,
        (weight, residual): (&Self::Linear, &Self::Tensor),
        outputs: Range<usize>,
    ) -> Result<Self::Tensor, KernelError> {
        self.narrow(&self.linear_add(x, weight, residual.clone())?, 1, outputs.start, outputs.end)
    }
    /// Columns `outputs` of [`ElementwiseOps::gated_silu`] of [`LinearOps::norm_linear`], likewise.
    fn norm_gated_part(
        &self,
        x: &Self::Tensor,
        norm: (&Self::Tensor, f32),
        gate_up: &Self::Linear,
        outputs: Range<usize>,
    ) -> Result<Self::Tensor, KernelError> {
        let gated = self.gated_silu(&self.norm_linear(x, norm, gate_up)?)?;
        self.narrow(&gated, 1, outputs.start, outputs.end)
    }
}
