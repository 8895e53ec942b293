//! Tensors of a device: to it and from it, parts of them and what is made of parts. Computes nothing.

use super::device::ComputeDevice;
use crate::KernelError;

/// Tensors and their moves. Shapes are row-major and written heads-first; `t` is tokens, `e` the hidden size.
pub trait TensorOps: ComputeDevice {
    /// A tensor on the device; clones share storage.
    type Tensor: Clone + Send + Sync + 'static;

    /// Uploads f32 values as an f32 tensor (a query off the wire, a partial off the wire, a test's input).
    fn upload(&self, shape: &[usize], values: &[f32]) -> Result<Self::Tensor, KernelError>;
    /// Downloads any tensor as f32, row-major.
    fn download(&self, tensor: &Self::Tensor) -> Result<Vec<f32>, KernelError>;
    /// Shape of a tensor.
    fn shape(&self, tensor: &Self::Tensor) -> Vec<usize>;
    /// Converts to compute type (a no-op when it is that already).
    fn cast(&self, tensor: &Self::Tensor) -> Result<Self::Tensor, KernelError>;
    /// Rows `start..end` of `x (t, e)`.
    fn rows(&self, x: &Self::Tensor, start: usize, end: usize) -> Result<Self::Tensor, KernelError>;
    /// A copy of `start..end` along `axis`.
    fn narrow(&self, x: &Self::Tensor, axis: usize, start: usize, end: usize) -> Result<Self::Tensor, KernelError>;
    /// A copy of `parts` one after the other along `axis`; their other sizes and their types are equal.
    fn concat(&self, parts: &[Self::Tensor], axis: usize) -> Result<Self::Tensor, KernelError>;
    /// Of both pairs `x (heads, t, dim)`, then `more (heads, n, dim)`: as `concat`, but a device may write `more` behind `x` where it
    /// lies.
    fn extended(&self, [one, other]: [[&Self::Tensor; 2]; 2]) -> Result<[Self::Tensor; 2], KernelError> {
        Ok([self.concat(&one.map(Clone::clone), 1)?, self.concat(&other.map(Clone::clone), 1)?])
    }
    /// Rows `rows[head]` of each head of `x (heads, t, dim)`, in the order given, as many for one head as for another:
    /// `(heads, n, dim)`.
    fn gather(&self, x: &Self::Tensor, rows: &[Vec<u32>]) -> Result<Self::Tensor, KernelError>;
}

/// Whether there is a list of rows for each of `heads` heads, all equally long, of rows below `t`: how long.
pub(crate) fn check_lists(rows: &[Vec<u32>], heads: usize, t: usize) -> Result<usize, KernelError> {
    let count = rows.first().map_or(0, Vec::len);
    if rows.len() != heads || rows.iter().any(|rows| rows.len() != count) {
        let got: Vec<usize> = rows.iter().map(Vec::len).collect();
        return Err(KernelError::shape("gather", format!("{heads} lists, equally long"), &[&got]));
    }
    match rows.iter().flatten().find(|row| **row as usize >= t) {
        Some(row) => {
            let (expected, got) = (format!("rows below {t}"), row.to_string());
            Err(KernelError::Shape { operation: "gather", expected, got })
        }
        None => Ok(count),
    }
}
