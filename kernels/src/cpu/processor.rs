//! The processor and what computes on it: kernels that were chosen, and threads.

use std::sync::{Arc, Mutex, PoisonError};

use super::choice::{KernelChoice, KernelSet};
use super::compute::Compute;
use super::elementwise::Angles;
use super::pool::{ThreadLimit, ThreadPool};
use crate::{DType, KernelError, KvFormat, Rotary};

/// How a [`Cpu`] computes.
#[derive(Clone, Copy, Debug)]
pub struct CpuOptions {
    /// Compute type: `F32` or `Bf16`.
    pub dtype: DType,
    /// How keys and values are kept.
    pub kept: KvFormat,
    /// Threads that compute, the calling one included; `None` takes every core.
    pub threads: Option<usize>,
    /// Which instructions to use.
    pub kernels: KernelChoice,
}

impl Default for CpuOptions {
    fn default() -> Self {
        Self { dtype: DType::F32, kept: KvFormat::Computed, threads: None, kernels: KernelChoice::Auto }
    }
}

/// The processor as a backend.
pub struct Cpu {
    pub(super) dtype: DType,
    pub(super) kept: KvFormat,
    pub(super) compute: Compute,
    /// The last call's rotations: every layer of a pass asks for the same.
    angles: Mutex<Option<Arc<Angles>>>,
}

impl Cpu {
    /// Chooses the kernels and starts the compute threads.
    ///
    /// # Errors
    /// [`KernelError::DType`] for a type that is not computed in, [`KernelError::Unsupported`] for kernels this machine
    /// cannot run, [`KernelError::Threads`] when the threads do not start.
    pub fn new(options: CpuOptions) -> Result<Self, KernelError> {
        if options.dtype == DType::F16 {
            return Err(KernelError::DType { operation: "cpu", got: options.dtype });
        }
        let set = KernelSet::resolve(options.kernels, options.dtype)?;
        let compute = Compute { set, pool: ThreadPool::new(options.threads)? };
        Ok(Self { dtype: options.dtype, kept: options.kept, compute, angles: Mutex::new(None) })
    }

    /// The kernels in use: what `Auto` came to.
    pub fn kernels(&self) -> KernelChoice {
        self.compute.set.choice()
    }

    /// Threads that compute, the calling one included.
    pub fn threads(&self) -> usize {
        self.compute.pool.threads()
    }

    /// Where that is changed.
    pub fn thread_limit(&self) -> ThreadLimit {
        self.compute.pool.limit().clone()
    }

    /// Gives freed memory back to the system, which the allocator keeps otherwise.
    pub fn trim_memory(&self) {
        #[cfg(target_env = "gnu")]
        // SAFETY: takes no pointer, and the allocator locks its own state.
        unsafe {
            libc::malloc_trim(0);
        }
    }

    /// Angles of these positions.
    pub(super) fn angles(&self, positions: &[u32], rotary: Rotary<'_>) -> Arc<Angles> {
        let mut last = self.angles.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some(angles) if angles.fit(positions, rotary) => angles.clone(),
            _ => last.insert(Arc::new(Angles::new(positions, rotary, &self.compute))).clone(),
        }
    }
}
