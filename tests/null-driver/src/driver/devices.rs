//! GPUs and their contexts, all like an H100.

use std::ffi::{CStr, c_char, c_int, c_uint};

use cudarc::driver::sys::{CUdevice_attribute as Attribute, CUresult};

use super::{CURRENT, Out, give, locked};
use crate::control;

/// The CUDA that it knows.
const VERSION: c_int = 13_000;
/// What a context's handle is above the number of its GPU.
const CONTEXTS: u64 = 0x100;
const NAME: &CStr = c"no GPU, of a driver that computes nothing";

/// Numbers of an H100, and 1 for what else is asked.
fn attribute(of: Attribute) -> c_int {
    match of {
        Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR => 9,
        Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR => 0,
        Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT => 132,
        Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN => 227 << 10,
        Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR => 228 << 10,
        Attribute::CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK => 1 << 10,
        _ => 1,
    }
}

/// The GPU of this number.
fn gpu(number: c_int) -> Result<usize, CUresult> {
    let gpu = usize::try_from(number).ok().filter(|gpu| *gpu < locked().memory.gpus());
    gpu.ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)
}

#[unsafe(no_mangle)]
extern "C" fn cuInit(_flags: c_uint) -> CUresult {
    control::begin();
    CUresult::CUDA_SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuDriverGetVersion(version: Out<'_, c_int>) -> CUresult {
    give(version, VERSION)
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorString(error: CUresult, words: Out<'_, *const c_char>) -> CUresult {
    let known = match error {
        CUresult::CUDA_SUCCESS => c"no error",
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => c"out of memory",
        CUresult::CUDA_ERROR_INVALID_DEVICE => c"invalid device ordinal",
        CUresult::CUDA_ERROR_INVALID_CONTEXT => c"invalid device context",
        _ => c"invalid argument",
    };
    give(words, known.as_ptr())
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorName(error: CUresult, name: Out<'_, *const c_char>) -> CUresult {
    cuGetErrorString(error, name)
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetCount(count: Out<'_, c_int>) -> CUresult {
    give(count, locked().memory.gpus() as c_int)
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGet(device: Out<'_, c_int>, number: c_int) -> CUresult {
    gpu(number).map_or_else(|error| error, |_| give(device, number))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetName(name: *mut c_char, length: c_int, _device: c_int) -> CUresult {
    let bytes = NAME.to_bytes_with_nul();
    if name.is_null() || (length as usize) < bytes.len() {
        return CUresult::CUDA_ERROR_INVALID_VALUE;
    }
    // SAFETY: callers have room for `length` bytes there, which is no less than the name takes.
    unsafe { name.copy_from_nonoverlapping(bytes.as_ptr().cast(), bytes.len()) };
    CUresult::CUDA_SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetAttribute(value: Out<'_, c_int>, of: Attribute, device: c_int) -> CUresult {
    gpu(device).map_or_else(|error| error, |_| give(value, attribute(of)))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceCanAccessPeer(can: Out<'_, c_int>, device: c_int, peer: c_int) -> CUresult {
    give(can, c_int::from(device != peer))
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRetain(context: Out<'_, u64>, device: c_int) -> CUresult {
    gpu(device).map_or_else(|error| error, |gpu| give(context, CONTEXTS + gpu as u64))
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> CUresult {
    gpu(device).err().unwrap_or(CUresult::CUDA_SUCCESS)
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetCurrent(context: Out<'_, u64>) -> CUresult {
    give(context, CURRENT.get().map_or(0, |gpu| CONTEXTS + gpu as u64))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCurrent(context: u64) -> CUresult {
    let gpus = locked().memory.gpus() as u64;
    let gpu = context.checked_sub(CONTEXTS).filter(|gpu| *gpu < gpus);
    if context != 0 && gpu.is_none() {
        return locked().fault(format!("context {context:#x} is none"));
    }
    CURRENT.set(gpu.map(|gpu| gpu as usize));
    CUresult::CUDA_SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSynchronize() -> CUresult {
    match CURRENT.get() {
        Some(gpu) => {
            locked().memory.wait(gpu);
            CUresult::CUDA_SUCCESS
        }
        None => CUresult::CUDA_ERROR_INVALID_CONTEXT,
    }
}
