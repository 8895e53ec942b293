//! Copies of parts of tensors. Computes nothing.

use std::ops::Range;

use super::super::lanes::Element;
use super::values::{CpuTensor, cube, elements, tensor};
use crate::{KernelError, backend::check_lists};

/// A copy of `range` along `axis`.
pub(in super::super) fn narrow<E: Element>(
    x: &CpuTensor,
    axis: usize,
    range: Range<usize>,
) -> Result<CpuTensor, KernelError> {
    let size = x.dims().get(axis).copied();
    let Some(size) = size.filter(|size| range.start <= range.end && range.end <= *size) else {
        let expected = format!("a range within axis {axis} of {:?}", x.dims());
        return Err(KernelError::shape("narrow", expected, &[&[range.start, range.end]]));
    };
    let from = elements::<E>("narrow", x)?;
    let mut dims = x.dims().to_vec();
    dims[axis] = range.len();
    let inner: usize = dims[axis + 1..].iter().product();
    let mut to = Vec::with_capacity(dims.iter().product());
    for outer in 0..dims[..axis].iter().product() {
        to.extend_from_slice(&from[(outer * size + range.start) * inner..][..range.len() * inner]);
    }
    tensor(&dims, to)
}

/// `parts` one after the other along `axis`.
pub(in super::super) fn concat<E: Element>(parts: &[CpuTensor], axis: usize) -> Result<CpuTensor, KernelError> {
    let shapes = || parts.iter().map(CpuTensor::dims).collect::<Vec<_>>();
    let beside = |part: &CpuTensor| {
        let mut dims = part.dims().to_vec();
        (axis < dims.len()).then(|| dims.remove(axis)).map(|_| dims)
    };
    let first = parts.first().and_then(|first| beside(first).map(|dims| (dims, first.dtype())));
    let Some((mut dims, dtype)) = first else {
        return Err(KernelError::shape("concat", format!("parts that have an axis {axis}"), &shapes()));
    };
    if parts.iter().any(|part| part.dtype() != dtype || beside(part).as_ref() != Some(&dims)) {
        let expected = format!("parts of one type that differ in axis {axis} only");
        return Err(KernelError::shape("concat", expected, &shapes()));
    }
    let (outer, inner) = (dims[..axis].iter().product::<usize>(), dims[axis..].iter().product::<usize>());
    let mut from = Vec::with_capacity(parts.len());
    for part in parts {
        from.push((elements::<E>("concat", part)?, part.dims()[axis] * inner));
    }
    dims.insert(axis, parts.iter().map(|part| part.dims()[axis]).sum());
    let mut to = Vec::with_capacity(dims.iter().product());
    for at in 0..outer {
        from.iter().for_each(|(part, rows)| to.extend_from_slice(&part[at * rows..][..*rows]));
    }
    tensor(&dims, to)
}

/// Rows `rows[head]` of each head of `x (heads, t, dim)`.
pub(in super::super) fn gather<E: Element>(x: &CpuTensor, rows: &[Vec<u32>]) -> Result<CpuTensor, KernelError> {
    let (heads, t, dim) = cube("gather", x)?;
    let count = check_lists(rows, heads, t)?;
    let from = elements::<E>("gather", x)?;
    let mut to = Vec::with_capacity(heads * count * dim);
    for (head, rows) in rows.iter().enumerate() {
        for row in rows {
            to.extend_from_slice(&from[(head * t + *row as usize) * dim..][..dim]);
        }
    }
    tensor(&[heads, count, dim], to)
}

/// `x (heads, t, dim)` as `(t, heads dim)`.
pub(in super::super) fn row_major<E: Element>(x: &CpuTensor) -> Result<CpuTensor, KernelError> {
    let (heads, t, dim) = cube("row_major", x)?;
    let from = elements::<E>("row_major", x)?;
    let mut to = Vec::with_capacity(from.len());
    for row in 0..t {
        (0..heads).for_each(|head| to.extend_from_slice(&from[(head * t + row) * dim..][..dim]));
    }
    tensor(&[t, heads * dim], to)
}
