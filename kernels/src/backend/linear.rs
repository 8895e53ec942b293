//! Weights as checkpoints store them, and the linear layers that a device makes of them.

use std::ops::Range;

use super::elementwise::ElementwiseOps;
use crate::{DType, KernelError};

/// A tensor as a checkpoint stores it: borrowed bytes, row-major, little-endian.
#[derive(Clone, Copy, Debug)]
pub struct HostTensor<'a> {
    /// Element type of `bytes`.
    pub dtype: DType,
    /// Row-major shape.
    pub shape: &'a [usize],
    /// `shape` elements of `dtype`; no alignment is promised.
    pub bytes: &'a [u8],
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
    /// The same of the output head `(vocab, e)`, whose small differences choose tokens: never in fewer bits than compute type.
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
