//! Slices in and out of candle tensors, and checks of their shapes. Knows no operation.

use std::marker::PhantomData;
use std::ops::{Deref, Range};

use candle_core::{CpuStorage, Device, Storage, StorageRef, Tensor};
use half::{bf16, f16};

use super::super::lanes::Element;
use crate::{DType, HostTensor, KernelError};

/// A tensor's elements, borrowed.
pub(in super::super) struct Elements<'a, E> {
    storage: StorageRef<'a>,
    range: Range<usize>,
    element: PhantomData<E>,
}

impl<E: Element> Deref for Elements<'_, E> {
    type Target = [E];

    fn deref(&self) -> &[E] {
        &slice::<E>(&self.storage).expect("the type was checked when it was borrowed")[self.range.clone()]
    }
}

/// The elements of a tensor that must be of type `E`.
pub(in super::super) fn elements<'a, E: Element>(
    operation: &'static str,
    tensor: &'a Tensor,
) -> Result<Elements<'a, E>, KernelError> {
    let (storage, layout) = tensor.storage_and_layout();
    let (start, end) = layout.contiguous_offsets().expect("this backend makes contiguous tensors only");
    if slice::<E>(&storage).is_none() {
        return Err(KernelError::DType { operation, got: dtype(tensor) });
    }
    Ok(Elements { storage, range: start..end, element: PhantomData })
}

/// The element type of a tensor of this backend.
pub(in super::super) fn dtype(tensor: &Tensor) -> DType {
    match tensor.dtype() {
        candle_core::DType::BF16 => DType::Bf16,
        _ => DType::F32,
    }
}

pub(in super::super) fn tensor<E: Element>(shape: &[usize], values: Vec<E>) -> Result<Tensor, KernelError> {
    Ok(Tensor::from_vec(values, shape, &Device::Cpu)?)
}

pub(in super::super) fn matrix(operation: &'static str, tensor: &Tensor) -> Result<(usize, usize), KernelError> {
    tensor.dims2().map_err(|_| KernelError::shape(operation, "(rows, columns)", &[tensor.dims()]))
}

pub(in super::super) fn cube(operation: &'static str, tensor: &Tensor) -> Result<(usize, usize, usize), KernelError> {
    tensor.dims3().map_err(|_| KernelError::shape(operation, "(heads, tokens, head dim)", &[tensor.dims()]))
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

fn slice<E: Element>(storage: &Storage) -> Option<&[E]> {
    match storage {
        Storage::Cpu(storage) => CpuStorage::as_slice::<E>(storage).ok(),
        _ => None,
    }
}
