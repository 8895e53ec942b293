//! Tensors in main memory, and slices in and out of them. Knows no operation.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use half::{bf16, f16};

use super::super::lanes::Element;
use crate::{DType, HostTensor, KernelError};

/// A tensor in main memory, row-major; clones and rows share its elements.
#[derive(Clone)]
pub struct CpuTensor {
    dims: Vec<usize>,
    dtype: DType,
    /// A `Vec` of elements of the type.
    values: Arc<dyn Any + Send + Sync>,
    /// Which of them are the tensor's.
    range: Range<usize>,
}

impl fmt::Debug for CpuTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {:?} in memory", self.dims, self.dtype)
    }
}

impl CpuTensor {
    /// Row-major shape.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Rows `start..end` of the first axis, shared.
    ///
    /// # Panics
    /// When there are no such rows.
    pub fn rows(&self, start: usize, end: usize) -> Self {
        assert!(start <= end && end <= self.dims[0], "rows {start}..{end} of {:?}", self.dims);
        let (row, mut dims) = (self.dims[1..].iter().product::<usize>(), self.dims.clone());
        dims[0] = end - start;
        let range = self.range.start + start * row..self.range.start + end * row;
        Self { dims, range, ..self.clone() }
    }
}

/// The elements of a tensor that must be of type `E`.
pub(in super::super) fn elements<'a, E: Element>(
    operation: &'static str,
    tensor: &'a CpuTensor,
) -> Result<&'a [E], KernelError> {
    match tensor.values.downcast_ref::<Vec<E>>() {
        Some(values) => Ok(&values[tensor.range.clone()]),
        None => Err(KernelError::DType { operation, got: tensor.dtype }),
    }
}

/// A tensor of these values, as many as the shape has.
pub(in super::super) fn tensor<E: Element>(dims: &[usize], values: Vec<E>) -> Result<CpuTensor, KernelError> {
    if dims.iter().product::<usize>() != values.len() {
        return Err(KernelError::shape("tensor", format!("{} values", values.len()), &[dims]));
    }
    Ok(CpuTensor { dims: dims.to_vec(), dtype: E::DTYPE, range: 0..values.len(), values: Arc::new(values) })
}

pub(in super::super) fn matrix(operation: &'static str, tensor: &CpuTensor) -> Result<(usize, usize), KernelError> {
    match tensor.dims[..] {
        [rows, columns] => Ok((rows, columns)),
        _ => Err(KernelError::shape(operation, "(rows, columns)", &[&tensor.dims])),
    }
}

pub(in super::super) fn cube(
    operation: &'static str,
    tensor: &CpuTensor,
) -> Result<(usize, usize, usize), KernelError> {
    match tensor.dims[..] {
        [heads, tokens, dim] => Ok((heads, tokens, dim)),
        _ => Err(KernelError::shape(operation, "(heads, tokens, head dim)", &[&tensor.dims])),
    }
}

/// Checks that a checkpoint's tensor has the bytes that its shape wants.
pub(in super::super) fn check_host(operation: &'static str, tensor: &HostTensor<'_>) -> Result<(), KernelError> {
    let expected = tensor.shape.iter().product::<usize>() * tensor.dtype.size();
    if tensor.bytes.len() == expected {
        return Ok(());
    }
    let expected = format!("{expected} bytes for {:?} of {:?}", tensor.shape, tensor.dtype);
    Err(KernelError::Shape { operation, expected, got: format!("{} bytes", tensor.bytes.len()) })
}

/// Converts elements `start..` of a checkpoint's tensor, as many as `to` takes.
pub(in super::super) fn convert_host<E: Element>(tensor: &HostTensor<'_>, start: usize, to: &mut [E]) {
    let width = tensor.dtype.size();
    let from = tensor.bytes[start * width..][..to.len() * width].chunks_exact(width);
    for (to, b) in to.iter_mut().zip(from) {
        *to = E::narrow(match tensor.dtype {
            DType::F32 => f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
            DType::Bf16 => bf16::from_le_bytes([b[0], b[1]]).widen(),
            DType::F16 => f16::from_le_bytes([b[0], b[1]]).to_f32(),
        });
    }
}
