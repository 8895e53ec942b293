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

/// Compute capabilities that kernels are compiled for, in words.
pub const COMPILED: &str = "8.x (such as the A100) or 9.0 (Hopper)";

/// Whether kernels are compiled for a compute capability.
pub fn has_kernels(capability: (i32, i32)) -> bool {
    capability.0 == 8 || capability == (9, 0)
}

/// The latest CUDA that the driver knows, which must be there; `None` where it does not tell.
pub fn driver_version() -> Option<c_int> {
    let mut version: c_int = 0;
    // SAFETY: the library is there; the pointer is to a live number.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result().is_ok().then_some(version)
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
    fn a_driver_that_is_too_old_is_told_what_is_needed() {
        let reported = too_old(12_040).unwrap();
        assert!(reported.contains("12.4") && reported.contains("13.0") && reported.contains("580"), "{reported}");
        assert_eq!([too_old(13_000), too_old(13_020)], [None, None]);
    }
}
