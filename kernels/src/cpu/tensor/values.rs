//! Tensors in main memory, and slices in and out of them. Knows no operation.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::super::lanes::Element;
use crate::{DType, HostTensor, KernelError, Stored};

/// A tensor in main memory, row-major; clones and rows share its elements.
#[derive(Clone)]
pub struct CpuTensor {
    dims: Vec<usize>,
    dtype: DType,
    /// A `Vec` of elements of the type, or [`StoredRows`] that stand for them.
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

/// Rows of a table as a checkpoint stores them, widened when they are asked for.
pub(in super::super) struct StoredRows {
    stored: Stored,
    bytes: Vec<u8>,
}

impl StoredRows {
    /// A copy of a table `(rows, columns)` in blocks, which computes as one of type `dtype` does.
    pub(in super::super) fn table(host: &HostTensor<'_>, dtype: DType) -> CpuTensor {
        let values = Arc::new(Self { stored: host.stored, bytes: host.bytes.to_vec() });
        CpuTensor { dims: host.shape.to_vec(), dtype, values, range: 0..host.shape.iter().product() }
    }

    /// The rows of a table, if it is stored so.
    pub(in super::super) fn of(table: &CpuTensor) -> Option<&Self> {
        table.values.downcast_ref()
    }

    /// Writes row `row` of a table with as many columns as `to` has.
    pub(in super::super) fn widen<E: Element>(&self, row: usize, to: &mut [E]) {
        let shape = [to.len()];
        let bytes = &self.bytes[self.stored.byte_range(row * to.len()..(row + 1) * to.len())];
        convert_host(&HostTensor { stored: self.stored, shape: &shape, bytes }, 0, to);
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

/// Converts elements `start..` of a checkpoint's tensor, as many as `to` takes.
pub(in super::super) fn convert_host<E: Element>(tensor: &HostTensor<'_>, start: usize, to: &mut [E]) {
    // Whole blocks of every format, which stay in the first-level cache.
    const CONVERTED: usize = 1024;
    let mut wide = [0.0; CONVERTED];
    for (piece, to) in to.chunks_mut(CONVERTED).enumerate() {
        let wide = &mut wide[..to.len()];
        tensor.widen(start + piece * CONVERTED, wide);
        to.iter_mut().zip(wide).for_each(|(to, value)| *to = E::narrow(*value));
    }
}
