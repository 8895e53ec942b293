//! What is asked of the driver before a GPU is opened: whether it is new enough, and its words where it refuses.

use std::ffi::c_int;

use cudarc::driver::{result, sys};

/// The CUDA that a driver has to know, as drivers tell it: that which compiled the machine code.
const NEEDED: c_int = 13_000;

/// What the driver says is wrong, and what it was told to show where it shows nothing.
pub fn words_of(error: result::DriverError) -> String {
    let words = error.error_string().ok().and_then(|words| words.to_str().ok());
    let words = words.map_or_else(|| error.to_string(), str::to_owned);
    match std::env::var("CUDA_VISIBLE_DEVICES") {
        Ok(shown) if error.0 == sys::CUresult::CUDA_ERROR_NO_DEVICE => {
            format!("{words} (CUDA_VISIBLE_DEVICES is \"{shown}\")")
        }
        _ => words,
    }
}

/// What kernels were compiled for.
const COMPILED_FOR: &str = env!("ASTERISM_CUDA_TARGETS");

/// The code that a GPU runs: each has all that those before it have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GpuCode {
    /// That of the A100.
    Plain,
    /// Kernels begin before those that they wait for have ended.
    Chained,
    /// Warpgroups and copies of whole tiles, which Hopper alone has.
    Warpgroups,
}

/// What the driver takes of what was compiled for `targets`, on a GPU of a compute capability.
fn code_of(targets: &str, capability: (i32, i32)) -> Option<GpuCode> {
    let has = |target: &str| targets.split(',').any(|of| of == target);
    match capability {
        (9, 0) if has("90a") => Some(GpuCode::Warpgroups),
        (8, _) if has("80") => Some(GpuCode::Plain),
        (9.., _) if has("90-ptx") => Some(GpuCode::Chained),
        (8.., _) if has("80-ptx") => Some(GpuCode::Plain),
        _ => None,
    }
}

/// The code that a GPU of this compute capability runs.
///
/// # Errors
/// What is needed, in words.
pub fn code(capability: (i32, i32)) -> Result<GpuCode, String> {
    let (major, minor) = capability;
    code_of(COMPILED_FOR, capability)
        .ok_or_else(|| format!("it is of compute capability {major}.{minor}; 8.0 (the A100) or later is needed, and this program has kernels for {COMPILED_FOR}"))
}

/// The latest CUDA that the driver knows, which must be there; `None` where it does not tell.
pub fn driver_version() -> Option<c_int> {
    let mut version: c_int = 0;
    // SAFETY: the library is there; the pointer is to a live number.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result().is_ok().then_some(version)
}

/// Why a program with kernels, or without, can open no GPU of the driver that is here, if it cannot. One with kernels would take the zeros
/// of a driver that computes nothing for answers; one without has nothing that another driver could run.
pub fn unfit(without_kernels: bool) -> Option<&'static str> {
    // SAFETY: this only tries to load the library.
    let here = unsafe { sys::is_culib_present() };
    match (without_kernels, here && computes_nothing()) {
        (true, false) => {
            Some("this program was built without kernels for GPUs, to be checked and tested only (ASTERISM_CUDA_STUB)")
        }
        (false, true) => {
            Some("the driver (libcuda) that was found computes nothing: it is for tests of programs without kernels")
        }
        _ => (!here).then_some("no CUDA driver (libcuda) is installed"),
    }
}

/// Whether the driver, which must be there, is the one that tests put in its place (`tests/null-driver`).
fn computes_nothing() -> bool {
    // SAFETY: the function is looked up and never called.
    unsafe { sys::culib().get::<unsafe extern "C" fn()>(b"asterism_null_driver").is_ok() }
}

/// Why a driver that knows so much cannot be used, if it cannot.
pub fn too_old(version: c_int) -> Option<String> {
    let [knows, needed] = [version, NEEDED].map(|version| dotted(version as usize, 1000, 10));
    (version < NEEDED)
        .then(|| format!("its driver knows CUDA up to {knows}, and {needed} is needed: driver 580 or later"))
}

/// A version that is written as one number.
pub fn dotted(version: usize, major: usize, minor: usize) -> String {
    format!("{}.{}", version / major, version % major / minor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_runs_the_best_code_that_there_is_for_it() {
        let all = "80,90a,80-ptx,90-ptx";
        let code = |targets, gpus: [(i32, i32); 4]| gpus.map(|gpu| code_of(targets, gpu));
        let gpus = [(8, 0), (8, 9), (9, 0), (10, 0)];
        let (plain, chained) = (Some(GpuCode::Plain), Some(GpuCode::Chained));
        assert_eq!(code(all, gpus), [plain, plain, Some(GpuCode::Warpgroups), chained]);
        assert_eq!(code("80-ptx", gpus), [plain; 4], "the A100's, wherever it runs");
        assert_eq!(code("80,90a", gpus), [plain, plain, Some(GpuCode::Warpgroups), None]);
        assert_eq!([code_of(all, (7, 5)), code_of("90a", (8, 0))], [None, None]);
    }

    #[test]
    fn a_driver_that_is_too_old_is_told_what_is_needed() {
        let reported = too_old(12_040).unwrap();
        assert!(reported.contains("12.4") && reported.contains("13.0") && reported.contains("580"), "{reported}");
        assert_eq!([too_old(13_000), too_old(13_020)], [None, None]);
    }
}
