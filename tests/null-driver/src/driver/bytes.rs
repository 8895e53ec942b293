//! Memory and copies: nothing is moved, and each range has to be of memory that is allocated.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::{c_int, c_uchar, c_uint, c_void};

use cudarc::driver::sys::{
    CUDA_MEMCPY2D, CUmemPool_attribute as Attribute, CUmemPoolProps, CUmemorytype, CUresult, CUtensorMap,
};

use super::{CURRENT, Driver, Out, give, locked};

/// What locked memory of the host begins at a multiple of.
const PAGE: usize = 4096;

#[unsafe(no_mangle)]
extern "C" fn cuMemGetInfo_v2(free: Out<'_, usize>, all: Out<'_, usize>) -> CUresult {
    let Some(gpu) = CURRENT.get() else { return CUresult::CUDA_ERROR_INVALID_CONTEXT };
    let (room, limit) = locked().memory.room(gpu);
    give(free, room as usize);
    give(all, limit as usize)
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetDefaultMemPool(pool: Out<'_, u64>, device: c_int) -> CUresult {
    match locked().usual_pools.get(device as usize) {
        Some(usual) => give(pool, *usual),
        None => CUresult::CUDA_ERROR_INVALID_DEVICE,
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuMemPoolCreate(pool: Out<'_, u64>, wanted: Option<&CUmemPoolProps>) -> CUresult {
    let (Some(wanted), mut driver) = (wanted, locked()) else { return CUresult::CUDA_ERROR_INVALID_VALUE };
    let made = driver.new_pool(wanted.location.id as usize);
    give(pool, made)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemPoolSetAttribute(pool: u64, of: Attribute, value: Option<&mut u64>) -> CUresult {
    let (Some(value), mut driver) = (value, locked()) else { return CUresult::CUDA_ERROR_INVALID_VALUE };
    match of {
        Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => driver.memory.set_threshold(pool, *value),
        Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH => driver.memory.forget_high(pool),
        _ => return driver.fault(format!("{of:?} of a pool is set")),
    }
    CUresult::CUDA_SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuMemPoolGetAttribute(pool: u64, of: Attribute, value: Out<'_, u64>) -> CUresult {
    let mut driver = locked();
    match (of, driver.memory.pool(pool)) {
        (Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT, Some((used, _))) => give(value, used),
        (Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH, Some((_, high))) => give(value, high),
        _ => driver.fault(format!("{of:?} of pool {pool:#x} is asked for")),
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuMemPoolTrimTo(pool: u64, spare: usize) -> CUresult {
    locked().memory.trim(pool, spare as u64);
    CUresult::CUDA_SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuMemPoolSetAccess(_pool: u64, _access: *const c_void, _count: usize) -> CUresult {
    CUresult::CUDA_SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAllocAsync(pointer: Out<'_, u64>, bytes: usize, stream: u64) -> CUresult {
    let mut driver = locked();
    let pool = driver.gpu_of(stream).map(|gpu| driver.usual_pools[gpu]);
    pool.map_or_else(|fault| fault, |pool| driver.alloc(pool, bytes, pointer))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAllocFromPoolAsync(pointer: Out<'_, u64>, bytes: usize, pool: u64, stream: u64) -> CUresult {
    let mut driver = locked();
    match (driver.gpu_of(stream), driver.memory.pool(pool)) {
        (Ok(_), Some(_)) => driver.alloc(pool, bytes, pointer),
        _ => driver.fault(format!("pool {pool:#x} is none")),
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeAsync(pointer: u64, stream: u64) -> CUresult {
    let mut driver = locked();
    match (driver.gpu_of(stream), driver.memory.free(pointer)) {
        (Ok(_), true) => CUresult::CUDA_SUCCESS,
        _ => driver.fault(format!("{pointer:#x} is freed, which is not allocated")),
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostAlloc(pointer: Out<'_, *mut c_void>, bytes: usize, _flags: c_uint) -> CUresult {
    let Ok(layout) = Layout::from_size_align(bytes.max(1), PAGE) else {
        return CUresult::CUDA_ERROR_INVALID_VALUE;
    };
    // SAFETY: the layout has bytes.
    let memory = unsafe { alloc_zeroed(layout) };
    if memory.is_null() {
        return CUresult::CUDA_ERROR_OUT_OF_MEMORY;
    }
    locked().locked.insert(memory as usize, bytes);
    give(pointer, memory.cast())
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeHost(pointer: *mut c_void) -> CUresult {
    let mut driver = locked();
    let Some(bytes) = driver.locked.remove(&(pointer as usize)) else {
        return driver.fault(format!("{pointer:?} of the host is freed, which is not locked"));
    };
    let layout = Layout::from_size_align(bytes.max(1), PAGE).expect("it was one before");
    // SAFETY: the memory was allocated with this layout, and is known no more.
    unsafe { dealloc(pointer.cast(), layout) };
    CUresult::CUDA_SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoDAsync_v2(to: u64, _from: *const c_void, bytes: usize, _stream: u64) -> CUresult {
    locked().touch("a copy from the host", &[(to, bytes)])
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoHAsync_v2(to: *mut u8, from: u64, bytes: usize, _stream: u64) -> CUresult {
    // SAFETY: callers have room for so many bytes there.
    unsafe { to.write_bytes(0, bytes) };
    locked().touch("a copy to the host", &[(from, bytes)])
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, _stream: u64) -> CUresult {
    locked().touch("a copy", &[(to, bytes), (from, bytes)])
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyPeerAsync(
    to: u64,
    _context: u64,
    from: u64,
    _from_context: u64,
    bytes: usize,
    _stream: u64,
) -> CUresult {
    locked().touch("a copy from GPU to GPU", &[(to, bytes), (from, bytes)])
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpy2DAsync_v2(copy: Option<&CUDA_MEMCPY2D>, _stream: u64) -> CUresult {
    let (Some(copy), mut driver) = (copy, locked()) else { return CUresult::CUDA_ERROR_INVALID_VALUE };
    let on_gpu = |kind| matches!(kind, CUmemorytype::CU_MEMORYTYPE_DEVICE | CUmemorytype::CU_MEMORYTYPE_UNIFIED);
    if !(on_gpu(copy.srcMemoryType) && on_gpu(copy.dstMemoryType)) {
        return driver.fault("a copy of rows that is not within GPUs".into());
    }
    let bytes = |pitch: usize| copy.Height.saturating_sub(1) * pitch + copy.WidthInBytes;
    driver.touch("a copy of rows", &[(copy.dstDevice, bytes(copy.dstPitch)), (copy.srcDevice, bytes(copy.srcPitch))])
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8Async(to: u64, _value: c_uchar, bytes: usize, _stream: u64) -> CUresult {
    locked().touch("a fill", &[(to, bytes)])
}

#[unsafe(no_mangle)]
extern "C" fn cuTensorMapEncodeTiled(
    map: Out<'_, CUtensorMap>,
    _kind: c_int,
    _rank: c_uint,
    _memory: u64,
    _sizes: *const u64,
    _strides: *const u64,
    _box: *const c_uint,
    _steps: *const c_uint,
    _interleave: c_int,
    _swizzle: c_int,
    _promotion: c_int,
    _beyond: c_int,
) -> CUresult {
    give(map, CUtensorMap { opaque: [0; 16] })
}

impl Driver {
    fn alloc(&mut self, pool: u64, bytes: usize, pointer: Out<'_, u64>) -> CUresult {
        match self.memory.alloc(pool, bytes as u64) {
            Ok(run) => give(pointer, run),
            Err(_) => CUresult::CUDA_ERROR_OUT_OF_MEMORY,
        }
    }

    /// Holds that all these bytes are allocated.
    fn touch(&mut self, what: &str, ranges: &[(u64, usize)]) -> CUresult {
        let lost = ranges.iter().find(|(pointer, bytes)| !self.memory.holds(*pointer, *bytes as u64));
        match lost {
            Some((pointer, bytes)) => {
                self.fault(format!("{what} touches {bytes} bytes at {pointer:#x}, which are not allocated"))
            }
            None => CUresult::CUDA_SUCCESS,
        }
    }
}
