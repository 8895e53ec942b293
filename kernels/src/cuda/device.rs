//! One GPU: its context, the stream all work is queued on, memory in stream order, and the compiled kernels. Nothing here waits
//! for the device but downloads and `synchronize`.

mod buffer;
mod carried;
pub(super) mod driver;
pub(super) mod layout;
pub(super) mod memory;
mod modules;
mod queue;
mod shelf;
mod spread;
mod staging;
mod throttle;
mod waiting;

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream, result, sys};

use crate::{DType, KernelError};
use buffer::BufferPool;
pub(super) use buffer::{DeviceBuffer, MemoryPool};
use carried::ARGUMENT_BYTES;
pub(super) use carried::Carried;
use layout::Maps;
use modules::{EARLY, FOLLOWERS, LARGE, MODULES};
pub(super) use queue::WriteMark;
use queue::{Overlap, Queue};
pub(super) use shelf::{KeptMaps, MAP_PAIR, MapShelf, MappedKeys};
pub(super) use spread::{LaunchShape, Occupancy};
pub(super) use staging::Pinned;
use staging::Staging;
pub(super) use throttle::QUANTUM_OPERATIONS;
pub use throttle::SPLIT_KEY_ROWS;
use throttle::Throttle;

/// What a resting process keeps of freed memory, as a share of the GPU's: allocating within it costs no call to the system.
const KEPT_SHARE: usize = 16;

/// A GPU with one stream, in whose order everything happens.
pub struct Device {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    pool: Arc<BufferPool>,
    /// Where memory comes from that stays longer than what is computed with.
    lasting: Arc<BufferPool>,
    functions: HashMap<String, (sys::CUfunction, Overlap)>,
    staging: Staging,
    room: Occupancy,
    /// What it runs of what was compiled.
    code: driver::GpuCode,
    maps: Maps,
    shelf: Arc<MapShelf>,
    queue: Queue,
    throttle: Throttle,
}

// SAFETY: function handles are process-wide names of loaded code; the driver's calls on them are thread-safe.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// Queues a kernel with the given arguments, which must be of the types that it declares.
macro_rules! launch {
    ($device:expr, $name:expr, $spread:expr, $($argument:expr),+ $(,)?) => {
        // SAFETY: callers pass what the kernel of that name declares, and pointers to memory that lives in stream order.
        unsafe {
            $device.launch($name, $spread, &mut [$(std::ptr::from_ref(&$argument).cast_mut().cast()),+])
        }
    };
}
pub(super) use launch;

impl Device {
    /// Opens GPU `index`.
    ///
    /// # Errors
    /// [`KernelError::NoDevice`] where there is no driver or an older one, no such GPU, or one that no kernels are compiled for.
    /// A build without kernels opens what computes nothing, alone, and no other build does.
    pub fn open(index: usize) -> Result<Self, KernelError> {
        let without_kernels = MODULES.iter().any(|(image, _)| image.is_empty());
        if let Some(cause) = driver::unfit(without_kernels) {
            return Err(KernelError::NoDevice { index, cause: cause.into() });
        }
        if let Some(cause) = driver::driver_version().and_then(driver::too_old) {
            return Err(KernelError::NoDevice { index, cause });
        }
        let missing = |error: result::DriverError| KernelError::NoDevice { index, cause: driver::words_of(error) };
        let count = CudaContext::device_count().map_err(missing)? as usize;
        if index >= count {
            let cause = format!("the driver knows {count} GPU(s), counted from 0");
            return Err(KernelError::NoDevice { index, cause });
        }
        let context = CudaContext::new(index).map_err(missing)?;
        let code = driver::code(context.compute_capability().map_err(missing)?);
        let code = code.map_err(|cause| KernelError::NoDevice { index, cause })?;
        // SAFETY: all work of this context is queued on the one stream below, so nothing has to be tracked between streams.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream().map_err(missing)?;
        let room = Occupancy::of(&context).map_err(missing)?;
        let staging = Staging::new(Arc::clone(&stream)).map_err(missing)?;
        let (functions, maps, shelf, queue) = Default::default();
        let throttle = Throttle::of(index);
        let pool = |of| Arc::new(BufferPool::new(Arc::clone(&stream), of));
        let (pool, lasting) = (pool(None), pool(MemoryPool::lasting(&context)));
        let mut device =
            Self { context, stream, pool, lasting, functions, staging, room, code, maps, shelf, queue, throttle };
        device.keep_freed_memory();
        device.load().map_err(missing)?;
        Ok(device)
    }

    /// Freed memory stays with the process, so that allocating in a loop costs no call to the system.
    fn keep_freed_memory(&self) {
        let threshold = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        self.memory_pools().for_each(|pool| pool.set(threshold, u64::MAX));
    }

    fn load(&mut self) -> Result<(), result::DriverError> {
        let large = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let own = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES;
        let carveout = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
        for (image, kernels) in MODULES {
            // SAFETY: the image is a whole fatbin made by the build; modules are never unloaded, so functions stay valid.
            let module = unsafe { result::module::load_data(image.as_ptr().cast()) }?;
            for (versions, names) in *kernels {
                for (name, version) in names.iter().flat_map(|name| versions.iter().map(move |version| (name, version)))
                {
                    let full = format!("{name}{version}");
                    let c_name = CString::new(full.as_str()).expect("names have no zero byte");
                    // SAFETY: the module was just loaded.
                    let function = unsafe { result::module::get_function(module, c_name) }?;
                    // All divide a processor's memory alike, or it would have to be empty between two of them.
                    // SAFETY: the function belongs to a loaded module.
                    unsafe { result::function::set_function_attribute(function, carveout, 100)? };
                    if LARGE.contains(versions) {
                        // SAFETY: as above.
                        let limit = self.room.block as i32
                            - unsafe { result::function::get_function_attribute(function, own)? };
                        // SAFETY: as above.
                        unsafe { result::function::set_function_attribute(function, large, limit)? };
                    }
                    let among = |names: &[&str]| names.iter().any(|beginning| name.starts_with(beginning));
                    let overlap = Overlap {
                        follows: self.code >= driver::GpuCode::Chained && among(FOLLOWERS),
                        early: among(EARLY),
                    };
                    self.functions.insert(full, (function, overlap));
                }
            }
        }
        Ok(())
    }

    /// Queues `name`.
    ///
    /// # Safety
    /// `arguments` point to values of the types that the kernel declares; device memory they name is live in stream order and
    /// large enough for what the kernel touches.
    pub(super) unsafe fn launch(
        &self,
        name: &str,
        spread: LaunchShape,
        arguments: &mut [*mut c_void],
    ) -> Result<(), KernelError> {
        let failed = |error| device_error("launch", error);
        let (function, overlap) = *self.functions.get(name).unwrap_or_else(|| panic!("no kernel is called {name}"));
        let grid = (spread.blocks.0 as u32, spread.blocks.1 as u32);
        if grid.0 == 0 || grid.1 == 0 {
            return Ok(());
        }
        self.context.bind_to_thread().map_err(failed)?;
        let mut follower: sys::CUlaunchAttribute = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let config = sys::CUlaunchConfig {
            gridDimX: grid.0,
            gridDimY: grid.1,
            gridDimZ: 1,
            blockDimX: spread.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: spread.shared as u32,
            hStream: self.stream.cu_stream(),
            attrs: &mut follower,
            numAttrs: u32::from(overlap.follows),
        };
        let launch = || {
            // SAFETY: as the caller promises.
            unsafe { sys::cuLaunchKernelEx(&config, function, arguments.as_mut_ptr(), std::ptr::null_mut()) }.result()
        };
        self.queue.push(overlap, launch).map_err(failed)
    }

    /// What kernels queued now may overlap with.
    pub(super) fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Name of the GPU.
    pub fn name(&self) -> Result<String, KernelError> {
        self.context.name().map_err(|error| device_error("name", error))
    }

    /// The stream that work is queued on.
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    pub(super) fn context(&self) -> &CudaContext {
        &self.context
    }

    pub(super) fn shared_context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    /// Whether code for sm_90a runs.
    pub fn is_hopper(&self) -> bool {
        self.code == driver::GpuCode::Warpgroups
    }

    pub(super) fn known_maps(&self) -> &Maps {
        &self.maps
    }

    /// Where maps are kept from step to step.
    pub(super) fn map_shelf(&self) -> &Arc<MapShelf> {
        &self.shelf
    }

    pub(super) fn shared_limit(&self) -> usize {
        self.room.block
    }

    /// What its processors have room for.
    pub(super) fn room(&self) -> &Occupancy {
        &self.room
    }

    /// Memory, unset.
    pub(super) fn alloc(&self, bytes: usize) -> Result<DeviceBuffer, KernelError> {
        self.alloc_of(&self.pool, bytes)
    }

    /// Memory that stays, unset: what is computed with does not lie between.
    pub(super) fn alloc_lasting(&self, bytes: usize) -> Result<DeviceBuffer, KernelError> {
        self.alloc_of(&self.lasting, bytes)
    }

    fn alloc_of(&self, pool: &Arc<BufferPool>, bytes: usize) -> Result<DeviceBuffer, KernelError> {
        let ask = || pool.alloc(bytes);
        let full = |error: &result::DriverError| error.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY;
        let buffer = ask().or_else(|error| {
            if !full(&error) {
                return Err(error);
            }
            // What is freed may lie in pieces, and in the order of the stream not be free yet.
            self.stream.synchronize()?;
            self.trim(0);
            ask()
        });
        buffer.map_err(|error| match error.0 {
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                KernelError::DeviceMemory { bytes, free: self.memory().map_or(0, |(free, _)| free) }
            }
            _ => device_error("alloc", error),
        })
    }

    /// A copy of host bytes.
    pub(super) fn upload_bytes(&self, bytes: &[u8]) -> Result<DeviceBuffer, KernelError> {
        let buffer = self.alloc(bytes.len())?;
        self.write(buffer.pointer, bytes)?;
        Ok(buffer)
    }

    /// Zeros everywhere.
    pub(super) fn clear(&self, buffer: &DeviceBuffer) -> Result<(), KernelError> {
        let failed = |error| device_error("clear", error);
        self.context.bind_to_thread().map_err(failed)?;
        // SAFETY: the buffer is live and so long.
        unsafe { result::memset_d8_async(buffer.pointer, 0, buffer.bytes, self.stream.cu_stream()) }.map_err(failed)
    }

    /// Host bytes to `pointer`, where there is room for them.
    pub(super) fn write(&self, pointer: u64, bytes: &[u8]) -> Result<(), KernelError> {
        if bytes.is_empty() {
            return Ok(());
        }
        if bytes.len() <= ARGUMENT_BYTES && bytes.len().is_multiple_of(4) && pointer.is_multiple_of(4) {
            return self.put(pointer, bytes);
        }
        self.context.bind_to_thread().map_err(|error| device_error("upload", error))?;
        self.staging.upload(pointer, bytes).map_err(|error| device_error("upload", error))
    }

    /// Up to [`ARGUMENT_BYTES`] bytes, whole words, to `pointer`: sooner there than by a copy, which another engine has to make.
    fn put(&self, pointer: u64, bytes: &[u8]) -> Result<(), KernelError> {
        let carried = Carried::of(bytes).expect("callers have no more, and whole words");
        let count = (bytes.len() / 4) as i32;
        launch!(self, "put", LaunchShape::new(1, 256), pointer, carried, count)
    }

    /// Device bytes from `pointer` on, once all work queued before is done.
    pub(super) fn download_bytes(&self, pointer: u64, to: &mut [u8]) -> Result<(), KernelError> {
        let failed = |error| device_error("download", error);
        self.context.bind_to_thread().map_err(failed)?;
        self.staging.download(pointer, to).map_err(failed)
    }

    /// `height` runs of `width` bytes, `pitch` apart on either side.
    pub(super) fn copy_2d(
        &self,
        (from, from_pitch): (u64, usize),
        (to, to_pitch): (u64, usize),
        width: usize,
        height: usize,
    ) -> Result<(), KernelError> {
        if width == 0 || height == 0 {
            return Ok(());
        }
        let failed = |error| device_error("copy", error);
        self.context.bind_to_thread().map_err(failed)?;
        let stream = self.stream.cu_stream();
        if height == 1 || (width == from_pitch && width == to_pitch) {
            // SAFETY: callers pass ranges of live buffers.
            return unsafe { result::memcpy_dtod_async(to, from, width * height, stream) }.map_err(failed);
        }
        let memory = sys::CUmemorytype::CU_MEMORYTYPE_DEVICE;
        let copy = sys::CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: memory,
            srcHost: std::ptr::null(),
            srcDevice: from,
            srcArray: std::ptr::null_mut(),
            srcPitch: from_pitch,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: memory,
            dstHost: std::ptr::null_mut(),
            dstDevice: to,
            dstArray: std::ptr::null_mut(),
            dstPitch: to_pitch,
            WidthInBytes: width,
            Height: height,
        };
        // SAFETY: callers pass ranges of live buffers.
        unsafe { sys::cuMemcpy2DAsync_v2(&copy, stream) }.result().map_err(failed)
    }
}

pub(super) fn device_error(operation: &'static str, error: impl std::fmt::Display) -> KernelError {
    KernelError::Device { operation, cause: error.to_string() }
}

/// The name of a kernel's version for a type.
pub(super) fn typed(name: &str, dtype: DType) -> String {
    format!("{name}_{}", if dtype == DType::F32 { "f32" } else { "bf16" })
}

/// Bytes of shared memory for so many numbers of four bytes, which kernels read up to eight at a time.
pub(super) fn padded(numbers: usize) -> usize {
    4 * numbers.next_multiple_of(8)
}
