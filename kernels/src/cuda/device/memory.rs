//! How much memory a GPU has. Allots none.

use std::sync::Arc;

use cudarc::driver::{CudaContext, sys};

use super::buffer::MemoryPool;
use super::{Device, device_error};
use crate::KernelError;

/// Tells of a GPU's memory.
#[derive(Debug)]
pub struct Gauge(Arc<CudaContext>);

impl Gauge {
    /// Free and all bytes.
    ///
    /// # Errors
    /// [`KernelError::Device`] where the driver does not tell.
    pub fn memory(&self) -> Result<(usize, usize), KernelError> {
        self.0.mem_get_info().map_err(|error| device_error("memory", error))
    }
}

impl Device {
    /// What tells of its memory.
    pub fn gauge(&self) -> Gauge {
        Gauge(Arc::clone(self.shared_context()))
    }

    /// Free and all bytes of the GPU's memory.
    ///
    /// # Errors
    /// [`KernelError::Device`] where the driver does not tell.
    pub fn memory(&self) -> Result<(usize, usize), KernelError> {
        self.gauge().memory()
    }

    /// Has [`Device::peak_memory`] begin anew.
    pub fn forget_peak(&self) {
        self.memory_pools().for_each(|pool| pool.set(sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH, 0));
    }

    /// Most bytes that tensors of this process took since then, each pool at its own moment: no less than at once. None where the driver
    /// does not tell.
    pub fn peak_memory(&self) -> Option<u64> {
        let high = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH;
        let each: Vec<u64> = self.memory_pools().map(|pool| pool.figure(high)).collect::<Option<_>>()?;
        (!each.is_empty()).then(|| each.iter().sum())
    }

    /// The pools of the GPU.
    pub(super) fn memory_pools(&self) -> impl Iterator<Item = MemoryPool> {
        MemoryPool::all(self.context())
    }
}
