//! What a GPU backend is opened with.

use crate::DType;

/// How a [`Cuda`] computes.
#[derive(Clone, Copy, Debug)]
pub struct CudaOptions {
    /// Which GPU, counted from 0.
    pub device: usize,
    /// Compute type: `F32` or `Bf16`.
    pub dtype: DType,
    /// Whether linear layers but the output head are computed in 8-bit floats (e4m3): weights with a scale for each output,
    /// activations with one for each row. Of bf16 only.
    pub eight_bits: bool,
}
