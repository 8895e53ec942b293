//! What a stream's kernels may overlap with. A kernel may start once those before it let it: most do when all that was queued before
//! them is done, some as soon as they start.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// How kernels start and let start.
#[derive(Clone, Copy)]
pub struct Overlap {
    /// Starts before what was queued before it is done.
    pub follows: bool,
    /// Lets the next one start before that is done, too.
    pub early: bool,
}

/// Kernels queued, those of libraries aside.
pub struct Queue {
    /// No other queue of this process has it.
    number: u64,
    counts: Mutex<Counts>,
}

/// Up to which launch of a queue memory may have been written. What has come to another queue was done before it came there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteMark {
    queue: u64,
    launches: u64,
}

impl WriteMark {
    /// Nobody knows.
    pub const UNKNOWN: Self = Self { queue: 0, launches: u64::MAX };
}

impl Default for Queue {
    fn default() -> Self {
        static QUEUES: AtomicU64 = AtomicU64::new(1);
        Self { number: QUEUES.fetch_add(1, Ordering::Relaxed), counts: Mutex::default() }
    }
}

#[derive(Default)]
struct Counts {
    launched: u64,
    /// Of the first so many a kernel that is queued now never starts before they are done.
    done: u64,
}

impl Queue {
    /// Queues a kernel, in the order in which they are counted.
    pub fn push<E>(&self, overlap: Overlap, launch: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let mut counts = self.counts.lock().expect("no panic holds it");
        launch()?;
        if !overlap.early {
            counts.done = counts.launched;
        }
        counts.launched += 1;
        Ok(())
    }

    /// What tells it from other queues of this process.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// What was queued so far may have been written.
    pub fn written(&self) -> WriteMark {
        WriteMark { queue: self.number, launches: self.counts.lock().expect("no panic holds it").launched }
    }

    /// Whether a kernel that is queued now, or later, finds there what was written, without waiting.
    pub fn is_done(&self, written: WriteMark) -> bool {
        let elsewhere = written != WriteMark::UNKNOWN && written.queue != self.number;
        elsewhere || written.launches <= self.counts.lock().expect("no panic holds it").done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_before_a_kernel_that_waits_is_done() {
        let (queue, mut written) = (Queue::default(), Vec::new());
        let early = |early| Overlap { follows: true, early };
        for kernel in [false, true, true, false, true] {
            queue.push(early(kernel), || Ok::<_, ()>(())).unwrap();
            written.push(queue.is_done(queue.written()));
        }
        assert_eq!(written, [false; 5], "the last one may be at work");
        let done = |launches| queue.is_done(WriteMark { launches, ..queue.written() });
        assert_eq!([0, 1, 2, 3, 4, 5].map(done), [true, true, true, true, false, false]);
        assert!(queue.push(early(false), || Err(())).is_err());
        assert!(!done(4), "what was not queued changes nothing");
        let other = Queue::default();
        assert!(queue.is_done(other.written()) && other.is_done(queue.written()), "it has come from there");
        assert!(!queue.is_done(WriteMark::UNKNOWN));
    }
}
