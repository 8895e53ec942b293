//! cublasLt: one algorithm for every product, which multiplies nothing and is counted as the kernel `cublasLt`.

use std::ffi::{c_int, c_void};

use cudarc::cublaslt::sys::{cublasLtMatmulAlgo_t, cublasLtMatmulHeuristicResult_t, cublasStatus_t as Status};
use cudarc::driver::sys::CUresult;

use crate::driver::{Handle, Out, give, locked};

const VERSION: usize = 130_000;
const KERNEL: &str = "cublasLt";

fn status(result: CUresult) -> Status {
    match result {
        CUresult::CUDA_SUCCESS => Status::CUBLAS_STATUS_SUCCESS,
        _ => Status::CUBLAS_STATUS_INVALID_VALUE,
    }
}

fn create(handle: Out<'_, u64>, kind: &'static str) -> Status {
    status(give(handle, locked().new_handle(Handle::Product(kind))))
}

fn destroy(handle: u64, kind: &str) -> Status {
    status(locked().end_handle(handle, kind))
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtGetVersion() -> usize {
    VERSION
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtCreate(handle: Out<'_, u64>) -> Status {
    create(handle, "products")
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtDestroy(handle: u64) -> Status {
    destroy(handle, "products")
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtMatmulDescCreate(handle: Out<'_, u64>, _compute: c_int, _scale: c_int) -> Status {
    create(handle, "product")
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtMatmulDescDestroy(handle: u64) -> Status {
    destroy(handle, "product")
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtMatmulDescSetAttribute(_handle: u64, _of: c_int, _value: *const c_void, _bytes: usize) -> Status {
    Status::CUBLAS_STATUS_SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtMatrixLayoutCreate(handle: Out<'_, u64>, _kind: c_int, _: u64, _: u64, _: i64) -> Status {
    create(handle, "layout")
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtMatrixLayoutDestroy(handle: u64) -> Status {
    destroy(handle, "layout")
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtMatmulPreferenceCreate(handle: Out<'_, u64>) -> Status {
    create(handle, "preference")
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtMatmulPreferenceDestroy(handle: u64) -> Status {
    destroy(handle, "preference")
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtMatmulPreferenceSetAttribute(
    _handle: u64,
    _of: c_int,
    _value: *const c_void,
    _bytes: usize,
) -> Status {
    Status::CUBLAS_STATUS_SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtMatmulAlgoGetHeuristic(
    _handle: u64,
    _product: u64,
    _a: u64,
    _b: u64,
    _c: u64,
    _d: u64,
    _preference: u64,
    asked: c_int,
    found: Out<'_, cublasLtMatmulHeuristicResult_t>,
    count: Out<'_, c_int>,
) -> Status {
    if asked < 1 {
        return Status::CUBLAS_STATUS_INVALID_VALUE;
    }
    let one = cublasLtMatmulHeuristicResult_t {
        algo: cublasLtMatmulAlgo_t { data: [0; 8] },
        workspaceSize: 0,
        state: Status::CUBLAS_STATUS_SUCCESS,
        wavesCount: 1.0,
        reserved: [0; 4],
    };
    give(found, one);
    status(give(count, 1))
}

/// Each sum in one piece.
#[unsafe(no_mangle)]
extern "C" fn cublasLtMatmulAlgoConfigGetAttribute(
    _algorithm: *const c_void,
    _of: c_int,
    value: Out<'_, c_int>,
    _bytes: usize,
    written: Out<'_, usize>,
) -> Status {
    give(written, size_of::<c_int>());
    status(give(value, 1))
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtMatmul(
    _handle: u64,
    _product: u64,
    _alpha: *const c_void,
    _a: u64,
    _a_layout: u64,
    _b: u64,
    _b_layout: u64,
    _beta: *const c_void,
    _c: u64,
    _c_layout: u64,
    _d: u64,
    _d_layout: u64,
    _algorithm: *const c_void,
    _workspace: u64,
    _workspace_bytes: usize,
    stream: u64,
) -> Status {
    status(locked().launched(KERNEL, stream))
}
