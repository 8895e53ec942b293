//! Slices in and out of candle tensors. Knows no operation.

use std::ops::Range;

use candle_core::{Device, Storage, StorageRef, Tensor};
use half::bf16;

use crate::{DType, KernelError};

/// A tensor's elements, borrowed. Hold it while the slice of [`Elements::view`] is in use.
pub(super) struct Elements<'a> {
    storage: StorageRef<'a>,
    range: Range<usize>,
}

/// Row-major elements of one type.
#[derive(Clone, Copy)]
pub(super) enum View<'a> {
    F32(&'a [f32]),
    Bf16(&'a [bf16]),
}

impl<'a> Elements<'a> {
    pub(super) fn of(tensor: &'a Tensor) -> Self {
        let (storage, layout) = tensor.storage_and_layout();
        let (start, end) = layout.contiguous_offsets().expect("this backend makes contiguous tensors only");
        Self { storage, range: start..end }
    }

    pub(super) fn view(&self) -> View<'_> {
        match &*self.storage {
            Storage::Cpu(candle_core::CpuStorage::F32(v)) => View::F32(&v[self.range.clone()]),
            Storage::Cpu(candle_core::CpuStorage::BF16(v)) => View::Bf16(&v[self.range.clone()]),
            _ => unreachable!("this backend makes f32 and bf16 tensors in main memory only"),
        }
    }
}

impl View<'_> {
    pub(super) fn to_f32(self) -> Vec<f32> {
        match self {
            View::F32(v) => v.to_vec(),
            View::Bf16(v) => v.iter().map(|x| x.to_f32()).collect(),
        }
    }
}

pub(super) fn f32_tensor(shape: &[usize], values: Vec<f32>) -> Result<Tensor, KernelError> {
    Ok(Tensor::from_vec(values, shape, &Device::Cpu)?)
}

pub(super) fn tensor(dtype: DType, shape: &[usize], values: Vec<f32>) -> Result<Tensor, KernelError> {
    match dtype {
        DType::Bf16 => {
            let values: Vec<bf16> = values.into_iter().map(bf16::from_f32).collect();
            Ok(Tensor::from_vec(values, shape, &Device::Cpu)?)
        }
        _ => f32_tensor(shape, values),
    }
}
