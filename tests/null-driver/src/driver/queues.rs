//! Streams, events, modules and launches. All that is queued is done.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use cudarc::driver::sys::{CUfunction_attribute, CUlaunchConfig, CUresult};

use super::{CURRENT, Driver, Handle, Out, give, locked};

/// The kernel that counts its copies in the host's memory, where its lender looks, and where that address and its count are among its
/// arguments.
const COUNTING: &str = "fetch_lent";
const COUNTER: usize = 4;
const COUNT: usize = 5;

#[unsafe(no_mangle)]
extern "C" fn cuStreamCreate(stream: Out<'_, u64>, _flags: c_uint) -> CUresult {
    match CURRENT.get() {
        Some(gpu) => give(stream, locked().new_handle(Handle::Stream(gpu))),
        None => CUresult::CUDA_ERROR_INVALID_CONTEXT,
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamDestroy_v2(stream: u64) -> CUresult {
    locked().end_handle(stream, "stream")
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamSynchronize(stream: u64) -> CUresult {
    let mut driver = locked();
    match driver.gpu_of(stream) {
        Ok(gpu) => {
            driver.memory.wait(gpu);
            CUresult::CUDA_SUCCESS
        }
        Err(fault) => fault,
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamQuery(stream: u64) -> CUresult {
    locked().gpu_of(stream).err().unwrap_or(CUresult::CUDA_SUCCESS)
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitEvent(stream: u64, event: u64, _flags: c_uint) -> CUresult {
    let mut driver = locked();
    driver.gpu_of(stream).err().unwrap_or_else(|| driver.is_event(event))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventCreate(event: Out<'_, u64>, _flags: c_uint) -> CUresult {
    give(event, locked().new_handle(Handle::Event))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventDestroy_v2(event: u64) -> CUresult {
    locked().end_handle(event, "event")
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecord(event: u64, stream: u64) -> CUresult {
    cuStreamWaitEvent(stream, event, 0)
}

#[unsafe(no_mangle)]
extern "C" fn cuEventQuery(event: u64) -> CUresult {
    locked().is_event(event)
}

#[unsafe(no_mangle)]
extern "C" fn cuEventSynchronize(event: u64) -> CUresult {
    locked().is_event(event)
}

#[unsafe(no_mangle)]
extern "C" fn cuEventElapsedTime_v2(milliseconds: Out<'_, f32>, start: u64, end: u64) -> CUresult {
    let mut driver = locked();
    let known = [start, end].map(|event| driver.is_event(event));
    let unknown = known.into_iter().find(|known| *known != CUresult::CUDA_SUCCESS);
    unknown.unwrap_or_else(|| give(milliseconds, 0.0))
}

/// The image may be of a build that has none.
#[unsafe(no_mangle)]
extern "C" fn cuModuleLoadData(module: Out<'_, u64>, _image: *const c_void) -> CUresult {
    give(module, locked().new_handle(Handle::Module))
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleGetFunction(function: Out<'_, u64>, _module: u64, name: *const c_char) -> CUresult {
    // SAFETY: callers pass a string that ends with a zero byte.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
    give(function, locked().new_handle(Handle::Function(name)))
}

/// Bytes of shared memory that a kernel has of its own, above all.
#[unsafe(no_mangle)]
extern "C" fn cuFuncGetAttribute(value: Out<'_, c_int>, _of: CUfunction_attribute, _function: u64) -> CUresult {
    give(value, 0)
}

#[unsafe(no_mangle)]
extern "C" fn cuFuncSetAttribute(_function: u64, _of: CUfunction_attribute, _value: c_int) -> CUresult {
    CUresult::CUDA_SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuLaunchKernelEx(
    config: Option<&CUlaunchConfig>,
    function: u64,
    arguments: *const *const u64,
    _extra: *mut c_void,
) -> CUresult {
    let (Some(config), mut driver) = (config, locked()) else { return CUresult::CUDA_ERROR_INVALID_VALUE };
    let Some(Handle::Function(name)) = driver.handles.get(&function) else {
        return driver.fault(format!("function {function:#x} is launched, which is none"));
    };
    let name = name.clone();
    if name == COUNTING {
        // SAFETY: this kernel takes that many arguments, and these two have eight bytes.
        let (counter, count) = unsafe { (arguments.add(COUNTER).read().read(), arguments.add(COUNT).read().read()) };
        driver.count(counter, count);
    }
    driver.launched(&name, config.hStream as u64)
}

impl Driver {
    fn is_event(&mut self, event: u64) -> CUresult {
        match self.handles.get(&event) {
            Some(Handle::Event) => CUresult::CUDA_SUCCESS,
            _ => self.fault(format!("event {event:#x} is none")),
        }
    }

    /// Writes a count to the host's memory, as a kernel does; nowhere, where there is no counter.
    fn count(&mut self, counter: u64, count: u64) {
        let held = self.locked.get(&(counter as usize)).is_some_and(|bytes| *bytes >= size_of::<u64>());
        if held {
            // SAFETY: the memory was given by this driver, is not freed, begins at a page and has room for the number, which the host
            // reads as an atomic.
            unsafe { std::sync::atomic::AtomicU64::from_ptr(counter as *mut u64) }
                .store(count, std::sync::atomic::Ordering::Release);
        } else if counter != 0 {
            self.fault(format!("counter {counter:#x} is no memory of the host that is locked"));
        }
    }
}
