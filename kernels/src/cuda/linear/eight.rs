//! Matrices of 8-bit floats (e4m3) with a scale for each row: weights, made once, and activations, made for each product.

use super::super::device::{Device, DeviceBuffer, LaunchShape, launch};
use super::super::tensor::Tensor;
use crate::{DType, KernelError};

/// Columns that a product of 8-bit floats wants a multiple of.
pub const MULTIPLE: usize = 16;

/// Bytes of a row that a block of threads keeps at hand: what every GPU has without being asked.
const ROW_BYTES: usize = 48 << 10;

fn suits(x: &Tensor, columns: usize) -> bool {
    columns.is_multiple_of(MULTIPLE) && x.pointer().is_multiple_of(16)
}

/// `(rows, columns)`: values, each row divided by its scale.
pub struct Fp8Rows {
    pub values: DeviceBuffer,
    /// `(rows)` f32.
    pub scales: Tensor,
    pub shape: (usize, usize),
}

impl Fp8Rows {
    /// Unset.
    pub fn empty(device: &Device, (rows, columns): (usize, usize)) -> Result<Self, KernelError> {
        let (values, scales) = (device.alloc(rows * columns)?, device.empty(&[rows], DType::F32)?);
        Ok(Self { values, scales, shape: (rows, columns) })
    }
}

impl Device {
    /// Whether the GPU multiplies 8-bit floats with a scale for each row and output, which cublasLt does on Hopper alone.
    pub fn multiplies_eight_bits(&self) -> Result<bool, KernelError> {
        let capability = self.context().compute_capability();
        capability
            .map(|of| of == (9, 0))
            .map_err(|error| super::super::device::device_error("compute capability", error))
    }

    /// A bf16 matrix in 8 bits: each row is scaled so that its largest element is the largest there is.
    pub(super) fn quantize(&self, x: &Tensor) -> Result<Fp8Rows, KernelError> {
        let (rows, columns) = x.matrix("quantize")?;
        if x.dtype() != DType::Bf16 || !suits(x, columns) {
            let expected = format!("bf16 rows of a multiple of {MULTIPLE} elements");
            return Err(KernelError::shape("quantize", expected, &[&x.shape]));
        }
        let out = Fp8Rows::empty(self, (rows, columns))?;
        let (from, to, by, width) = (x.pointer(), out.values.pointer, out.scales.pointer(), columns as i32);
        launch!(self, "quantize", LaunchShape::new(rows, 256), from, to, by, width)?;
        Ok(out)
    }

    /// [`Device::rms_norm`] of `x (t, e)` in 8 bits, without a stop between.
    pub(super) fn quantize_norm(&self, x: &Tensor, weight: &Tensor, eps: f32) -> Result<Fp8Rows, KernelError> {
        let (rows, columns) = x.matrix("quantize_norm")?;
        if weight.shape != [columns] || [x.dtype, weight.dtype] != [DType::Bf16; 2] || !suits(x, columns) {
            let expected = format!("bf16 rows of a multiple of {MULTIPLE} elements, weight ({columns})");
            return Err(KernelError::shape("quantize_norm", expected, &[&x.shape, &weight.shape]));
        }
        let out = Fp8Rows::empty(self, (rows, columns))?;
        let (from, norm, to, by) = (x.pointer(), weight.pointer(), out.values.pointer, out.scales.pointer());
        let width = columns as i32;
        launch!(self, "quantize_norm", LaunchShape::new(rows, 256), from, norm, to, by, width, eps)?;
        Ok(out)
    }

    /// [`Device::gated_silu`] of `gate_up (t, 2 f)` in 8 bits, without a stop between; none where a row is too long for that.
    pub(super) fn quantize_gated(&self, gate_up: &Tensor) -> Result<Option<Fp8Rows>, KernelError> {
        let (rows, both) = gate_up.matrix("quantize_gated")?;
        let columns = both / 2;
        if gate_up.dtype != DType::Bf16 || both % 2 != 0 || !suits(gate_up, columns) || 2 * columns > ROW_BYTES {
            return Ok(None);
        }
        let out = Fp8Rows::empty(self, (rows, columns))?;
        let (from, to, by, width) = (gate_up.pointer(), out.values.pointer, out.scales.pointer(), columns as i32);
        let spread = LaunchShape { blocks: (rows, 1), threads: 256, shared: 2 * columns };
        launch!(self, "quantize_gated", spread, from, to, by, width)?;
        Ok(Some(out))
    }

    /// Adds `residual (rows, n)` and `bias (n)` to `out (rows, n)`, in place.
    pub(super) fn add(
        &self,
        out: &Tensor,
        residual: Option<&Tensor>,
        bias: Option<&Tensor>,
    ) -> Result<(), KernelError> {
        let (to, columns, count) = (out.pointer(), out.shape[1] as i32, out.elements() as i64);
        let (more, by) = (residual.map_or(0, Tensor::pointer), bias.map_or(0, Tensor::pointer));
        launch!(self, "add_bf16", LaunchShape::over(out.elements() / 8), to, more, by, columns, count)
    }
}
