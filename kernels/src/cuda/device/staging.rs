//! Host memory that the device reads and writes without the driver's help, for what is small and often copied: queries, tables,
//! partials. Larger copies go as the driver takes them.

use std::sync::{Arc, Mutex};

use cudarc::driver::{CudaStream, result, sys};

/// Bytes for uploads on their way, and for a download.
const UP: usize = 16 << 20;
const DOWN: usize = 4 << 20;
/// Uploads up to this size are staged.
const STAGED: usize = 2 << 20;

/// Staging of one stream.
pub struct Staging {
    /// Uploads lie one behind the other; at the end the stream is waited for, and it starts anew.
    up: Mutex<(Pinned, usize)>,
    down: Mutex<Pinned>,
    stream: Arc<CudaStream>,
}

/// Page-locked host memory.
pub struct Pinned {
    memory: *mut u8,
    stream: Arc<CudaStream>,
}

// SAFETY: it is plain memory, used by one thread at a time, behind the mutex of the owner.
unsafe impl Send for Pinned {}

impl Pinned {
    pub fn new(bytes: usize, stream: Arc<CudaStream>) -> Result<Self, result::DriverError> {
        stream.context().bind_to_thread()?;
        // SAFETY: the context is current.
        let memory = unsafe { result::malloc_host(bytes, 0) }?;
        Ok(Self { memory: memory.cast(), stream })
    }

    pub fn pointer(&self) -> *mut u8 {
        self.memory
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = self.stream.context().bind_to_thread();
        let _ = self.stream.synchronize();
        // SAFETY: the memory came from `malloc_host`, and no copy uses it any more.
        let _ = unsafe { result::free_host(self.memory.cast()) };
    }
}

impl Staging {
    pub fn new(stream: Arc<CudaStream>) -> Result<Self, result::DriverError> {
        let pinned = |bytes| Pinned::new(bytes, Arc::clone(&stream));
        Ok(Self { up: Mutex::new((pinned(UP)?, 0)), down: Mutex::new(pinned(DOWN)?), stream })
    }

    /// Queues a copy to `pointer`, where there is room for it.
    pub fn upload(&self, pointer: u64, bytes: &[u8]) -> Result<(), result::DriverError> {
        let stream = self.stream.cu_stream();
        if bytes.len() > STAGED {
            // SAFETY: callers pass ranges of live buffers; pageable host memory is staged before the call returns.
            return unsafe { result::memcpy_htod_async(pointer, bytes, stream) };
        }
        let mut up = self.up.lock().expect("no panic holds it");
        let (pinned, end) = &mut *up;
        if *end + bytes.len() > UP {
            self.stream.synchronize()?;
            *end = 0;
        }
        // SAFETY: the range is within the memory, nothing on its way lies there, and it is not written before the stream was
        // waited for; callers pass ranges of live buffers.
        unsafe {
            let at = pinned.memory.add(*end);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len());
            sys::cuMemcpyHtoDAsync_v2(pointer, at.cast(), bytes.len(), stream).result()?;
        }
        *end = (*end + bytes.len()).next_multiple_of(64);
        Ok(())
    }

    /// Copies from `pointer` on once all work queued before is done.
    pub fn download(&self, pointer: u64, to: &mut [u8]) -> Result<(), result::DriverError> {
        let stream = self.stream.cu_stream();
        if to.is_empty() {
            return self.stream.synchronize();
        }
        let down = self.down.lock().expect("no panic holds it");
        for (number, part) in to.chunks_mut(DOWN).enumerate() {
            // SAFETY: callers pass ranges of live buffers; the stream is waited for before the memory is read, which is as large
            // as `part` at least and nobody else's while it is locked.
            unsafe {
                let from = pointer + (number * DOWN) as u64;
                sys::cuMemcpyDtoHAsync_v2(down.memory.cast(), from, part.len(), stream).result()?;
                self.stream.synchronize()?;
                std::ptr::copy_nonoverlapping(down.memory, part.as_mut_ptr(), part.len());
            }
        }
        Ok(())
    }
}
