//! The compute threads: numbered tasks, taken in order, the caller working with them. Knows no kernel.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::KernelError;

/// The caller and `threads - 1` workers.
pub(super) struct Pool {
    workers: Option<rayon::ThreadPool>,
    threads: usize,
}

/// Work to share out.
#[derive(Clone, Copy)]
pub(super) struct Tasks {
    pub count: usize,
    /// Multiply-adds of the whole, or what takes as long.
    pub cost: usize,
}

/// The cost that is worth waking a thread for: some ten microseconds.
const WAKE: usize = 1 << 17;

impl Pool {
    pub(super) fn new(threads: Option<usize>) -> Result<Self, KernelError> {
        let available = || std::thread::available_parallelism().map_or(1, |n| n.get());
        let threads = threads.unwrap_or_else(available).max(1);
        let start = || {
            let workers = rayon::ThreadPoolBuilder::new().num_threads(threads - 1);
            workers.thread_name(|i| format!("compute-{i}")).build()
        };
        let workers = (threads > 1).then(start).transpose();
        let workers = workers.map_err(|cause| KernelError::Threads { threads, cause: cause.to_string() })?;
        Ok(Self { workers, threads })
    }

    pub(super) fn threads(&self) -> usize {
        self.threads
    }

    /// Runs `work(0..tasks)`, each once, on any thread.
    pub(super) fn each(&self, tasks: Tasks, work: impl Fn(usize) + Sync) {
        self.each_with(tasks, || (), |(), task| work(task));
    }

    /// The same with a scratch value for each thread that takes part.
    pub(super) fn each_with<S>(
        &self,
        tasks: Tasks,
        scratch: impl Fn() -> S + Sync,
        work: impl Fn(&mut S, usize) + Sync,
    ) {
        let Tasks { count, cost } = tasks;
        let next = AtomicUsize::new(0);
        let worker = || {
            let mut task = next.fetch_add(1, Ordering::Relaxed);
            if task < count {
                let mut scratch = scratch();
                while task < count {
                    work(&mut scratch, task);
                    task = next.fetch_add(1, Ordering::Relaxed);
                }
            }
        };
        let threads = self.threads.min(count).min(1 + cost / WAKE);
        match &self.workers {
            Some(workers) if threads > 1 => workers.in_place_scope(|scope| {
                for _ in 1..threads {
                    scope.spawn(|_| worker());
                }
                worker();
            }),
            _ => worker(),
        }
    }
}

/// A buffer that tasks write disjoint parts of.
pub(super) struct Shared<T>(*mut T);

// SAFETY: only `at` reaches the buffer, and its caller promises that no two tasks touch the same elements.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    pub(super) fn new(buffer: &mut [T]) -> Self {
        Self(buffer.as_mut_ptr())
    }

    /// # Safety
    /// `offset` must lie in the buffer, and the elements written from there belong to this task alone.
    pub(super) unsafe fn at(&self, offset: usize) -> *mut T {
        // SAFETY: the caller's promise.
        unsafe { self.0.add(offset) }
    }
}

/// A vector of `len` elements that `fill` writes, all of them.
///
/// # Safety
/// `fill` must have written every element when it returns.
pub(super) unsafe fn filled<T: Copy>(len: usize, fill: impl FnOnce(Shared<T>)) -> Vec<T> {
    let mut buffer = Vec::with_capacity(len);
    fill(Shared(buffer.as_mut_ptr()));
    // SAFETY: the capacity is there, and the caller promises that the elements are written.
    unsafe { buffer.set_len(len) };
    buffer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_whatever_the_threads() {
        for threads in [1, 2, 3, 8] {
            let pool = Pool::new(Some(threads)).unwrap();
            for tasks in [0, 1, 2, 100] {
                let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                pool.each(Tasks { count: tasks, cost: usize::MAX / 2 }, |task| {
                    counts[task].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1), "{threads} threads, {tasks} tasks");
            }
        }
    }
}
