//! Device memory: runs of bytes, freed in stream order, and runs that grow in place while nobody else uses what lies behind them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cudarc::driver::{CudaStream, result};

/// Device memory.
pub struct DeviceBuffer {
    pub pointer: u64,
    pub bytes: usize,
    stream: Arc<CudaStream>,
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
    /// Memory of the stream's pool, which nobody else frees.
    pub fn new(pointer: u64, bytes: usize, stream: Arc<CudaStream>) -> Self {
        Self { pointer, bytes, stream, claim: None, within: None }
    }

    /// The first bytes of `self`, which others may share from now on.
    pub fn shared(self, bytes: usize) -> Self {
        let (pointer, stream) = (self.pointer, Arc::clone(&self.stream));
        let of = Arc::new(SharedMemory { memory: self, claimed: AtomicUsize::new(bytes) });
        Self { pointer, bytes, stream, claim: Some(Claim { of, from: 0, to: bytes }), within: None }
    }

    /// The same memory and `more` bytes behind it, where they are there and nobody uses them.
    pub fn extended(&self, more: usize) -> Option<Self> {
        let Claim { of, to: from, .. } = self.claim.as_ref()?;
        let to = from.checked_add(more).filter(|to| *to <= of.memory.bytes)?;
        of.claimed.compare_exchange(*from, to, Ordering::AcqRel, Ordering::Acquire).ok()?;
        let claim = Some(Claim { of: Arc::clone(of), from: *from, to });
        Some(Self { pointer: self.pointer, bytes: to, stream: Arc::clone(&self.stream), claim, within: None })
    }

    /// Some bytes of `memory`, which is kept as long as they are.
    ///
    /// # Panics
    /// When it has no such bytes.
    pub fn part(memory: &Arc<Self>, from: usize, bytes: usize) -> Self {
        assert!(from + bytes <= memory.bytes, "{bytes} bytes from {from} on, of {}", memory.bytes);
        let (pointer, stream) = (memory.pointer + from as u64, Arc::clone(&memory.stream));
        Self { pointer, bytes, stream, claim: None, within: Some(Arc::clone(memory)) }
    }

    /// Whether others may have the same bytes.
    pub fn is_shared(&self) -> bool {
        self.claim.is_some()
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if self.claim.is_some() || self.within.is_some() {
            return;
        }
        let _ = self.stream.context().bind_to_thread();
        // SAFETY: the memory came from this stream and nobody else frees it; work queued before still finds it.
        let _ = unsafe { result::free_async(self.pointer, self.stream.cu_stream()) };
    }
}
