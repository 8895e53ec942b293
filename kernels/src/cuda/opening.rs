//! Opening a GPU, and what it is made of.

use super::attention::Attender;
use super::device::Device;
use super::linear::Products;
use super::tensor::Tensor;
use super::{Cuda, CudaOptions};
use crate::{DType, KernelError};

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
        let (products, attender) = (Products::new(&device)?, Attender::new(&device)?);
        let CudaOptions { dtype, device: index, eight_bits } = options;
        if eight_bits && (dtype != DType::Bf16 || !products.has_library() || !device.multiplies_eight_bits()?) {
            return Err(KernelError::EightBits { index });
        }
        let positions = Default::default();
        Ok(Self { products, attender, positions, dtype, eight_bits, index, device })
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
}
