//! A GPU and what computes on it: how it is opened, and what it is refused for.

use super::attention::{Attender, StepAhead};
use super::device::Device;
use super::elementwise::PositionsShelf;
use super::exchange::SignalsSlot;
use super::linear::Products;
use super::tensor::Tensor;
use crate::backend::Partial;
use crate::{DType, KernelError, KvFormat};

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
    /// Whether attention of more rows than one launch of few takes is computed in 8-bit floats, where heads have 128 elements: queries
    /// with a scale for each row, keys and values with one for each 128. Of bf16 only.
    pub float8_attention: bool,
    /// How keys and values are kept from call to call.
    pub kept: KvFormat,
}

impl CudaOptions {
    /// All of it in `dtype`.
    pub fn plain(device: usize, dtype: DType) -> Self {
        Self { device, dtype, eight_bits: false, float8_attention: false, kept: KvFormat::Computed }
    }
}

/// A GPU as a backend.
pub struct Cuda {
    // Before the device, which their handles need.
    pub(super) products: Products,
    pub(super) attender: Attender,
    pub(super) ahead: StepAhead,
    pub(super) positions: PositionsShelf,
    pub(super) dtype: DType,
    pub(super) eight_bits: bool,
    pub(super) float8_attention: bool,
    pub(super) kept: KvFormat,
    pub(super) index: usize,
    pub(super) signals: SignalsSlot,
    pub(super) device: Device,
}

impl Cuda {
    /// Opens a GPU.
    ///
    /// # Errors
    /// [`KernelError::NoDevice`] where it cannot be used, [`KernelError::DType`] for a type that is not computed in.
    pub fn new(options: CudaOptions) -> Result<Self, KernelError> {
        if options.dtype == DType::F16 {
            return Err(KernelError::DType { operation: "cuda", got: options.dtype });
        }
        let device = Device::open(options.device)?;
        let CudaOptions { dtype, device: index, eight_bits, float8_attention, kept } = options;
        let (products, attender) = (Products::new(&device)?, Attender::new(&device, float8_attention)?);
        let ahead = StepAhead::default();
        let able = dtype == DType::Bf16 && device.multiplies_eight_bits()?;
        if eight_bits && !(able && products.has_library()) {
            return Err(KernelError::EightBits { index, what: "linear layers", library: "cublasLt, " });
        }
        if float8_attention && !(able && device.is_hopper()) {
            return Err(KernelError::EightBits { index, what: "attention", library: "" });
        }
        let (positions, signals) = Default::default();
        Ok(Self {
            products,
            attender,
            ahead,
            positions,
            dtype,
            eight_bits,
            float8_attention,
            kept,
            index,
            signals,
            device,
        })
    }

    /// The GPU.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Its linear layers.
    pub fn products(&self) -> &Products {
        &self.products
    }

    /// Its attention.
    pub fn attender(&self) -> &Attender {
        &self.attender
    }

    /// Refuses what is not in compute type.
    pub(super) fn computed(&self, operation: &'static str, x: &Tensor) -> Result<(), KernelError> {
        if x.dtype() == self.dtype { Ok(()) } else { Err(KernelError::DType { operation, got: x.dtype() }) }
    }

    /// Refuses a GPU that has no room for `bytes` of weights.
    ///
    /// # Errors
    /// [`KernelError::TooSmall`] says how many bytes are missing.
    pub fn require(&self, bytes: u64) -> Result<(), KernelError> {
        let (free, all) = self.device.memory()?;
        match bytes.checked_sub(free as u64) {
            None | Some(0) => Ok(()),
            Some(missing) => {
                Err(KernelError::TooSmall { index: self.index, bytes, free: free as u64, all: all as u64, missing })
            }
        }
    }

    /// An unset partial for `q`.
    pub(super) fn partial(&self, q: &Tensor, dtype: DType) -> Result<Partial<Tensor>, KernelError> {
        let (heads, t, dim) = q.cube("attention")?;
        let lse = self.device.empty(&[heads, t], DType::F32)?;
        Ok(Partial { output: self.device.empty_by_rows([heads, t, dim], dtype)?, lse })
    }
}
