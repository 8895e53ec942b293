//! What a machine has for GPUs: driver, devices, libraries, and memory that is free. Opens nothing but to look at it.

use std::ffi::c_int;
use std::sync::Arc;

use cudarc::driver::{CudaContext, result, sys};
use cudarc::{cublaslt, cudnn};

use super::device::{Device, device_error};
use crate::KernelError;

/// The CUDA that a driver has to know, as drivers tell it: that which compiled the machine code.
const NEEDED: c_int = 13_000;

/// What was found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Survey {
    /// Latest CUDA that the driver knows, such as `13.0`; `None`: no driver.
    pub driver: Option<String>,
    /// The driver's answer where it is there and does not work.
    pub trouble: Option<String>,
    /// The GPUs, in the driver's order.
    pub gpus: Vec<Gpu>,
    /// Libraries that are used where they are there.
    pub libraries: Vec<Library>,
}

/// A GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct Gpu {
    /// Its name.
    pub name: String,
    /// Compute capability.
    pub capability: (i32, i32),
    /// Bytes of its memory that are free, and all of them.
    pub memory: (usize, usize),
}

impl Gpu {
    /// Whether kernels are compiled for it.
    pub fn usable(&self) -> bool {
        has_kernels(self.capability)
    }
}

/// What the driver says is wrong, and what it was told to show where it shows nothing.
pub(super) fn words_of(error: result::DriverError) -> String {
    let words = error.error_string().ok().and_then(|words| words.to_str().ok());
    let words = words.map_or_else(|| error.to_string(), str::to_owned);
    match std::env::var("CUDA_VISIBLE_DEVICES") {
        Ok(shown) if error.0 == sys::CUresult::CUDA_ERROR_NO_DEVICE => {
            format!("{words} (CUDA_VISIBLE_DEVICES is \"{shown}\")")
        }
        _ => words,
    }
}

/// Compute capabilities that kernels are compiled for, in words.
pub const COMPILED: &str = "8.x (such as the A100) or 9.0 (Hopper)";

/// Whether kernels are compiled for a compute capability.
pub(super) fn has_kernels(capability: (i32, i32)) -> bool {
    capability.0 == 8 || capability == (9, 0)
}

/// A library that is loaded when the program runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Library {
    /// Its name.
    pub name: &'static str,
    /// Its version; `None`: not found.
    pub version: Option<String>,
    /// What happens without it.
    pub without: &'static str,
}

/// Looks.
pub fn survey() -> Survey {
    // SAFETY: this only tries to load the library.
    let driver = unsafe { sys::is_culib_present() };
    let mut found = Survey { libraries: libraries(), ..Survey::default() };
    if driver {
        let version = driver_version();
        found.driver = version.map(|version| dotted(version as usize, 1000, 10));
        // One that is older lacks calls that the others are made of.
        found.trouble = version.and_then(too_old);
        if found.trouble.is_none() {
            match gpus() {
                Ok(gpus) => found.gpus = gpus,
                Err(error) => found.trouble = Some(words_of(error)),
            }
        }
    }
    found
}

/// The latest CUDA that the driver knows, which must be there; `None` where it does not tell.
pub(super) fn driver_version() -> Option<c_int> {
    let mut version: c_int = 0;
    // SAFETY: the library is there; the pointer is to a live number.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result().is_ok().then_some(version)
}

/// Why a driver that knows so much cannot be used, if it cannot.
pub(super) fn too_old(version: c_int) -> Option<String> {
    let [knows, needed] = [version, NEEDED].map(|version| dotted(version as usize, 1000, 10));
    (version < NEEDED)
        .then(|| format!("its driver knows CUDA up to {knows}, and {needed} is needed: driver 580 or later"))
}

/// The libraries that this process would use.
pub(super) fn libraries() -> Vec<Library> {
    // SAFETY: these only try to load the libraries.
    let [lt, dnn] = unsafe { [cublaslt::sys::is_culib_present(), cudnn::sys::is_culib_present()] };
    // SAFETY: the library is there; the call takes nothing and tells its version.
    let lt = lt.then(|| unsafe { cublaslt::sys::cublasLtGetVersion() }).map(|version| dotted(version, 10_000, 100));
    // SAFETY: as above.
    let dnn = dnn.then(|| unsafe { cudnn::sys::cudnnGetVersion() }).map(|version| dotted(version, 10_000, 100));
    vec![
        Library { name: "cublasLt", version: lt, without: "linear layers by own kernels, many times slower" },
        Library { name: "cuDNN", version: dnn, without: "attention by own kernels, at half the speed in prefill" },
    ]
}

fn gpus() -> Result<Vec<Gpu>, result::DriverError> {
    let gpu = |index| {
        let context = CudaContext::new(index)?;
        Ok(Gpu { name: context.name()?, capability: context.compute_capability()?, memory: context.mem_get_info()? })
    };
    (0..CudaContext::device_count()? as usize).map(gpu).collect()
}

/// A version that is written as one number.
fn dotted(version: usize, major: usize, minor: usize) -> String {
    format!("{}.{}", version / major, version % major / minor)
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_that_is_too_old_is_told_what_is_needed() {
        let told = too_old(12_040).unwrap();
        assert!(told.contains("12.4") && told.contains("13.0") && told.contains("580"), "{told}");
        assert_eq!([too_old(13_000), too_old(13_020)], [None, None]);
    }
}
