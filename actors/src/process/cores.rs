//! The cores of a machine, which go to those of its hosts that compute. Knows no file and no kernel: whoever runs a host tells
//! the others, and its backend.

use std::{fmt::Debug, sync::Arc};

use rkyv::{Archive, Deserialize, Serialize};

/// What a host computes for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComputeKind {
    /// Phase 1: much at a time.
    Encoding,
    /// Phase 2, on a query host: a little at a time, much of which is waiting.
    Generating,
    /// Phase 2, on a context host: much for one question, between two waits of a query host.
    Answering,
}

/// Memory of a GPU, whoever uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct GpuMemory {
    /// Bytes in use.
    pub used: u64,
    /// Bytes that are free.
    pub free: u64,
}

/// What a host computes with. Called between layers, by any thread: it must be quick.
pub trait Cores: Debug + Send + Sync {
    /// This host computes from now on, with what the others leave it. Said again while it goes on, as others begin and end;
    /// answers are said once each.
    fn begin(&self, work: ComputeKind);

    /// It no longer does.
    fn end(&self, work: ComputeKind);

    /// Threads that it computes with now; 0 where that is not known.
    fn threads(&self) -> usize;

    /// Memory of its GPU, whoever uses it; none where it computes on no GPU.
    fn gpu_memory(&self) -> Option<GpuMemory> {
        None
    }
}

/// Computes with what others leave, until it is dropped.
pub struct Computing {
    cores: Arc<dyn Cores>,
    work: ComputeKind,
}

impl Computing {
    /// From now on.
    pub fn begin(cores: &Arc<dyn Cores>, work: ComputeKind) -> Self {
        cores.begin(work);
        Self { cores: cores.clone(), work }
    }
}

impl Drop for Computing {
    fn drop(&mut self) {
        self.cores.end(self.work);
    }
}

/// A host that shares its device with nobody.
#[derive(Clone, Copy, Debug, Default)]
pub struct OwnDevice;

impl Cores for OwnDevice {
    fn begin(&self, _: ComputeKind) {}

    fn end(&self, _: ComputeKind) {}

    fn threads(&self) -> usize {
        0
    }
}

/// Threads of a host on a machine of `cores` where `others` compute too: an even part, and never less than its own `share`.
pub fn threads(cores: usize, share: usize, others: usize) -> usize {
    share.max(cores / (1 + others))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_cores_go_to_who_computes() {
        // Four hosts on two cores, then on 64.
        assert_eq!([0, 1, 2, 3].map(|others| threads(2, 1, others)), [2, 1, 1, 1]);
        assert_eq!([0, 1, 2, 3, 4].map(|others| threads(64, 16, others)), [64, 32, 21, 16, 16]);
    }
}
