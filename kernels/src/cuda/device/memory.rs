//! How much memory a GPU has. Allots none.

use std::sync::Arc;

use cudarc::driver::{CudaContext, sys};

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
        let mut none = 0u64;
        let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH;
        if let Some(pool) = self.memory_pool() {
            // SAFETY: the device is open; the value is of the type that the call wants.
            let _ = unsafe { sys::cuMemPoolSetAttribute(pool, attribute, (&raw mut none).cast()) }.result();
        }
    }

    /// Most bytes that tensors of this process took at once since then; none where the driver does not tell.
    pub fn peak_memory(&self) -> Option<u64> {
        let (pool, mut bytes) = (self.memory_pool()?, 0u64);
        let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH;
        // SAFETY: as above.
        unsafe { sys::cuMemPoolGetAttribute(pool, attribute, (&raw mut bytes).cast()) }.result().ok()?;
        Some(bytes)
    }

    fn memory_pool(&self) -> Option<sys::CUmemoryPool> {
        let mut pool = std::ptr::null_mut();
        // SAFETY: the device is open; the pointer is to a live value of the type that the call wants.
        unsafe { sys::cuDeviceGetDefaultMemPool(&mut pool, self.context().cu_device()) }.result().ok()?;
        Some(pool)
    }
}
