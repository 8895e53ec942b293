//! What a machine has for GPUs: driver, devices, libraries, and memory that is free. Opens nothing but to look at it.

use cudarc::driver::{CudaContext, result, sys};
use cudarc::{cublaslt, cudnn};

use super::device::driver::{GpuCode, code, dotted, driver_version, too_old, words_of};

/// What was found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceSurvey {
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
        code(self.capability).is_ok()
    }

    /// What is worth knowing of how it computes, beside others that are usable.
    pub fn remark(&self) -> Option<&'static str> {
        match code(self.capability) {
            Ok(GpuCode::Warpgroups) => None,
            Ok(_) if self.capability.0 == 8 => Some("on the A100's path: no warpgroups, no tile copies"),
            Ok(_) => Some("by PTX that the driver compiles at the first start, on the plain path: never measured"),
            Err(_) => None,
        }
    }
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
pub fn survey() -> DeviceSurvey {
    // SAFETY: this only tries to load the library.
    let driver = unsafe { sys::is_culib_present() };
    let mut found = DeviceSurvey { libraries: libraries(), ..DeviceSurvey::default() };
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
