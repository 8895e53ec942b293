//! Device memory: runs of bytes, freed in stream order, and runs that grow in place while nobody else uses what lies behind them.

use std::collections::HashMap;
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::{CudaContext, CudaStream, DriverError, result, sys};

/// Bytes up to which a buffer that is freed may serve again without a call to the driver, and most bytes of such.
const SMALL: usize = 1 << 20;
const SPARE_BYTES: usize = 64 << 20;
/// What sizes of small buffers are multiples of.
const SIZE_STEP: usize = 512;

/// Memory that the driver keeps for a process. There may be none: older ways then serve.
#[derive(Clone, Copy)]
pub struct MemoryPool(sys::CUmemoryPool);

// SAFETY: a handle, which the driver takes from any thread; the pools live as long as the process.
unsafe impl Send for MemoryPool {}
// SAFETY: as above.
unsafe impl Sync for MemoryPool {}

impl MemoryPool {
    /// All of a GPU.
    pub fn all(context: &CudaContext) -> impl Iterator<Item = Self> {
        [Self::usual(context), Self::lasting(context)].into_iter().flatten()
    }

    /// The pool that memory comes from where nobody says otherwise.
    fn usual(context: &CudaContext) -> Option<Self> {
        let mut pool = std::ptr::null_mut();
        // SAFETY: the device is open; the pointer is to a live value of the type that the call wants.
        unsafe { sys::cuDeviceGetDefaultMemPool(&mut pool, context.cu_device()) }.result().ok()?;
        Some(Self(pool))
    }

    /// The pool of what stays long, one a GPU: in holes between what comes and goes it would leave much that is of no use to anybody.
    pub fn lasting(context: &CudaContext) -> Option<Self> {
        static POOLS: Mutex<Option<HashMap<usize, MemoryPool>>> = Mutex::new(None);
        let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
        let pools = pools.get_or_insert_default();
        if let Some(pool) = pools.get(&context.ordinal()) {
            return Some(*pool);
        }
        let mut pool = std::ptr::null_mut();
        // SAFETY: all of it may be zero, which asks for nothing.
        let mut wanted: sys::CUmemPoolProps = unsafe { std::mem::zeroed() };
        wanted.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        wanted.handleTypes = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE;
        wanted.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        wanted.location.id = context.cu_device();
        // SAFETY: the device is open; both pointers are to live values of the types that the call wants.
        unsafe { sys::cuMemPoolCreate(&mut pool, &wanted) }.result().ok()?;
        pools.insert(context.ordinal(), Self(pool));
        Some(Self(pool))
    }

    /// The driver's.
    pub fn handle(self) -> sys::CUmemoryPool {
        self.0
    }

    /// Gives freed memory back, but for `spare` bytes.
    pub fn trim(self, spare: usize) {
        if let Some(used) = self.figure(sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT) {
            // SAFETY: the pool lives.
            let _ = unsafe { sys::cuMemPoolTrimTo(self.0, used as usize + spare) }.result();
        }
    }

    /// Sets one of its attributes that are a number of bytes.
    pub fn set(self, attribute: sys::CUmemPool_attribute, mut bytes: u64) {
        // SAFETY: the pool lives; the value is of the type that the call wants. A driver that refuses costs speed only.
        let _ = unsafe { sys::cuMemPoolSetAttribute(self.0, attribute, (&raw mut bytes).cast()) }.result();
    }

    /// One of them.
    pub fn figure(self, attribute: sys::CUmemPool_attribute) -> Option<u64> {
        let mut bytes = 0u64;
        // SAFETY: as above.
        unsafe { sys::cuMemPoolGetAttribute(self.0, attribute, (&raw mut bytes).cast()) }.result().ok()?;
        Some(bytes)
    }
}

/// Where the buffers of a stream come from and go to.
pub struct BufferPool {
    stream: Arc<CudaStream>,
    /// The driver's; none: the one that it takes where nobody says.
    of: Option<MemoryPool>,
    spare: Mutex<Spare>,
}

/// Small buffers that nobody has, by their sizes.
#[derive(Default)]
struct Spare {
    by_size: HashMap<usize, Vec<u64>>,
    bytes: usize,
}

impl BufferPool {
    pub fn new(stream: Arc<CudaStream>, of: Option<MemoryPool>) -> Self {
        Self { stream, of, spare: Mutex::default() }
    }

    /// What was freed serves again in the order of the stream: what was queued before still finds it.
    pub fn alloc(self: &Arc<Self>, bytes: usize) -> Result<DeviceBuffer, DriverError> {
        let size = bytes.max(16).next_multiple_of(if bytes > SMALL { 1 } else { SIZE_STEP });
        let found = self.take(size);
        let pointer = match found {
            Some(pointer) => pointer,
            None => self.fresh(size)?,
        };
        Ok(DeviceBuffer { pointer, bytes, size, pool: Arc::clone(self), claim: None, within: None })
    }

    fn fresh(&self, size: usize) -> Result<u64, DriverError> {
        self.stream.context().bind_to_thread()?;
        let (stream, mut pointer) = (self.stream.cu_stream(), 0);
        // SAFETY: the stream lives, and so does the pool; the memory is not read before it is written.
        unsafe {
            match self.of {
                None => result::malloc_async(stream, size),
                Some(pool) => {
                    sys::cuMemAllocFromPoolAsync(&mut pointer, size, pool.handle(), stream).result().map(|()| pointer)
                }
            }
        }
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
