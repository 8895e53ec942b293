//! A device as such: what it computes in, and whether it still does. Says nothing of what it computes.

use crate::{DType, KernelError};

/// One device. A result never depends on the number of threads, and a row never on the other rows of its call.
pub trait ComputeDevice: Sized + Send + Sync + 'static {
    /// Type of activations: `F32` or `Bf16`.
    fn dtype(&self) -> DType;

    /// What decides the bits of its results, in a few words: device, kernels and libraries, compute type, build. Two of equal
    /// words compute the same from the same.
    fn numerics(&self) -> String;

    /// Whether it still computes. One that failed for good says so here, at once, and can only be opened anew, by another process.
    fn health(&self) -> Result<(), KernelError> {
        Ok(())
    }

    /// Whether both compute in the same memory.
    fn is_beside(&self, other: &Self) -> bool {
        let _ = other;
        true
    }

    /// A backend of this device that computes alike and has a queue of its own; none where work does not stand in queues.
    fn another(&self) -> Result<Option<Self>, KernelError> {
        Ok(None)
    }
}
