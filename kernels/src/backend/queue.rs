//! The work that was asked of a device and is not done yet. A device that computes as it is asked has none.

use std::time::Duration;

use super::device::ComputeDevice;
use crate::{KernelError, PriorityGuard, Rank};

/// What waits until a device has done what it was asked before.
pub type Mark = Box<dyn FnOnce() -> Result<(), KernelError>>;

/// A queue of work.
pub trait WorkQueue: ComputeDevice {
    /// Whether values on the host have to be waited for, so that nobody asks for them who can do without.
    fn queues(&self) -> bool {
        false
    }

    /// Waits until all that was asked of the device is done, and gives back memory that it held for it.
    fn finish(&self) -> Result<(), KernelError> {
        Ok(())
    }

    /// What waits until all is done that was asked of the device before.
    fn mark(&self) -> Result<Mark, KernelError> {
        Ok(Box::new(|| Ok(())))
    }

    /// A step, which somebody waits for, begins on this thread: what others of this process queue on the device waits between its
    /// parts until it ends, if it is of a later rank.
    fn priority(&self, rank: Rank) -> PriorityGuard {
        let _ = rank;
        PriorityGuard::default()
    }

    /// A token's step is to begin: waits until what the last one held up has had its turn, while steps follow each other within `interval`.
    fn await_turn(&self, interval: Duration) {
        let _ = interval;
    }
}
