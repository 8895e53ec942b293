//! What a stream's kernels may overlap with. A kernel may start once those before it let it: most do when all that was queued before
//! them is done, some as soon as they start.

use std::sync::Mutex;

/// How kernels start and let start.
#[derive(Clone, Copy)]
pub struct Overlap {
    /// Starts before what was queued before it is done.
    pub follows: bool,
    /// Lets the next one start before that is done, too.
    pub early: bool,
}

/// Kernels queued, those of libraries aside.
#[derive(Default)]
pub struct Queue(Mutex<Counts>);

#[derive(Default)]
struct Counts {
    launched: u64,
    /// Of the first so many a kernel that is queued now never starts before they are done.
    done: u64,
}

impl Queue {
    /// Queues a kernel, in the order in which they are counted.
    pub fn push<E>(&self, overlap: Overlap, launch: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let mut counts = self.0.lock().expect("no panic holds it");
        launch()?;
        if !overlap.early {
            counts.done = counts.launched;
        }
        counts.launched += 1;
        Ok(())
    }

    /// Kernels queued so far.
    pub fn launched(&self) -> u64 {
        self.0.lock().expect("no panic holds it").launched
    }

    /// Whether a kernel that is queued now, or later, finds what the first `launches` wrote, without waiting.
    pub fn is_done(&self, launches: u64) -> bool {
        launches <= self.0.lock().expect("no panic holds it").done
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
            written.push(queue.is_done(queue.launched()));
        }
        assert_eq!(written, [false; 5], "the last one may be at work");
        let done = |launches| queue.is_done(launches);
        assert_eq!([0, 1, 2, 3, 4, 5].map(done), [true, true, true, true, false, false]);
        assert!(queue.push(early(false), || Err(())).is_err());
        assert!(!queue.is_done(4), "what was not queued changes nothing");
    }
}
