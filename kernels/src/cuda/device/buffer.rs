//! Device memory: runs of bytes, freed in stream order, and runs that grow in place while nobody else uses what lies behind them.

use std::collections::HashMap;
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::{CudaStream, DriverError, result};

/// Bytes up to which a buffer that is freed may serve again without a call to the driver, and most bytes of such.
const SMALL: usize = 1 << 20;
const SPARE_BYTES: usize = 64 << 20;
/// What sizes of small buffers are multiples of.
const SIZE_STEP: usize = 512;

/// Where the buffers of a stream come from and go to.
pub struct BufferPool {
    stream: Arc<CudaStream>,
    spare: Mutex<Spare>,
}

/// Small buffers that nobody has, by their sizes.
#[derive(Default)]
struct Spare {
    by_size: HashMap<usize, Vec<u64>>,
    bytes: usize,
}

impl BufferPool {
    pub fn new(stream: Arc<CudaStream>) -> Self {
        Self { stream, spare: Mutex::default() }
    }

    /// What was freed serves again in the order of the stream: what was queued before still finds it.
    pub fn alloc(self: &Arc<Self>, bytes: usize) -> Result<DeviceBuffer, DriverError> {
        let size = bytes.max(16).next_multiple_of(if bytes > SMALL { 1 } else { SIZE_STEP });
        let found = self.take(size);
        let pointer = match found {
            Some(pointer) => pointer,
            None => {
                self.stream.context().bind_to_thread()?;
                // SAFETY: the stream lives; the memory is not read before it is written.
                unsafe { result::malloc_async(self.stream.cu_stream(), size)? }
            }
        };
        Ok(DeviceBuffer { pointer, bytes, size, pool: Arc::clone(self), claim: None, within: None })
    }

    fn take(&self, size: usize) -> Option<u64> {
        if size > SMALL {
            return None;
        }
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        let pointer = spare.by_size.get_mut(&size)?.pop()?;
        spare.bytes -= size;
        Some(pointer)
    }

    fn give(&self, pointer: u64, size: usize) {
        if size <= SMALL {
            let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
            if spare.bytes + size <= SPARE_BYTES {
                spare.bytes += size;
                return spare.by_size.entry(size).or_default().push(pointer);
            }
        }
        self.free(pointer);
    }

    fn free(&self, pointer: u64) {
        let _ = self.stream.context().bind_to_thread();
        // SAFETY: the memory came from this stream and nobody has it; work queued before still finds it.
        let _ = unsafe { result::free_async(pointer, self.stream.cu_stream()) };
    }

    /// Gives what is spare back to the driver.
    pub fn give_back(&self) {
        let spare = mem::take(&mut *self.spare.lock().unwrap_or_else(PoisonError::into_inner));
        spare.by_size.into_values().flatten().for_each(|pointer| self.free(pointer));
    }
}

impl Drop for BufferPool {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// Device memory.
pub struct DeviceBuffer {
    pub pointer: u64,
    pub bytes: usize,
    /// Bytes that the pool gave.
    size: usize,
    pool: Arc<BufferPool>,
    /// `None`: the memory is this buffer's own.
    claim: Option<Claim>,
    /// The memory that this is a part of.
    within: Option<Arc<DeviceBuffer>>,
}

/// Memory of which several buffers have the beginning, each as much as it claims.
struct SharedMemory {
    memory: DeviceBuffer,
    /// Bytes from the beginning that somebody uses.
    claimed: AtomicUsize,
}

/// Bytes up to `to` of a shared memory; those before `from` another claimed, too.
struct Claim {
    of: Arc<SharedMemory>,
    from: usize,
    to: usize,
}

impl Drop for Claim {
    fn drop(&mut self) {
        // Where somebody claims more, this stays claimed.
        let _ = self.of.claimed.compare_exchange(self.to, self.from, Ordering::AcqRel, Ordering::Acquire);
    }
}

impl DeviceBuffer {
    /// The first bytes of `self`, which others may share from now on.
    pub fn shared(self, bytes: usize) -> Self {
        let (pointer, size, pool) = (self.pointer, self.size, Arc::clone(&self.pool));
        let of = Arc::new(SharedMemory { memory: self, claimed: AtomicUsize::new(bytes) });
        Self { pointer, bytes, size, pool, claim: Some(Claim { of, from: 0, to: bytes }), within: None }
    }

    /// The same memory and `more` bytes behind it, where they are there and nobody uses them.
    pub fn extended(&self, more: usize) -> Option<Self> {
        let Claim { of, to: from, .. } = self.claim.as_ref()?;
        let to = from.checked_add(more).filter(|to| *to <= of.memory.bytes)?;
        of.claimed.compare_exchange(*from, to, Ordering::AcqRel, Ordering::Acquire).ok()?;
        let claim = Some(Claim { of: Arc::clone(of), from: *from, to });
        Some(Self { bytes: to, pool: Arc::clone(&self.pool), claim, within: None, ..*self })
    }

    /// Some bytes of `memory`, which is kept as long as they are.
    ///
    /// # Panics
    /// When it has no such bytes.
    pub fn part(memory: &Arc<Self>, from: usize, bytes: usize) -> Self {
        assert!(from + bytes <= memory.bytes, "{bytes} bytes from {from} on, of {}", memory.bytes);
        let (pointer, pool) = (memory.pointer + from as u64, Arc::clone(&memory.pool));
        Self { pointer, bytes, size: bytes, pool, claim: None, within: Some(Arc::clone(memory)) }
    }

    /// Whether others may have the same bytes.
    pub fn is_shared(&self) -> bool {
        self.claim.is_some()
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if self.claim.is_none() && self.within.is_none() {
            self.pool.give(self.pointer, self.size);
        }
    }
}
