//! The compute threads: numbered tasks, taken in order, the caller working with them. Knows no kernel.
//!
//! The caller never waits for a thread that has not begun: on a busy machine it does all the work itself instead.

mod slice;

use std::mem::transmute;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::Thread;

pub use slice::keep_cores_for;

use crate::KernelError;

/// The caller and as many workers as there may ever be, of whom the limit lets some work.
pub(crate) struct ThreadPool {
    workers: Option<rayon::ThreadPool>,
    limit: ThreadLimit,
}

/// How many threads compute now; clones are the same. It holds from the next call of a kernel on, and changes no result.
#[derive(Clone, Debug)]
pub struct ThreadLimit {
    most: usize,
    now: Arc<AtomicUsize>,
}

impl ThreadLimit {
    /// All of `most`, at least 1, until it is set.
    pub fn new(most: usize) -> Self {
        let most = most.max(1);
        Self { most, now: Arc::new(AtomicUsize::new(most)) }
    }

    /// From now on so many, at least 1, and not more than there are.
    pub fn set(&self, threads: usize) {
        self.now.store(threads.clamp(1, self.most), Ordering::Relaxed);
    }

    /// How many, the calling one included.
    pub fn now(&self) -> usize {
        self.now.load(Ordering::Relaxed)
    }
}

/// Work to share out.
#[derive(Clone, Copy)]
pub(crate) struct Tasks {
    pub count: usize,
    /// Multiply-adds of the whole, or what takes as long.
    pub cost: usize,
}

/// The cost that is worth waking a thread for: some ten microseconds.
const WAKE: usize = 1 << 17;

impl ThreadPool {
    pub(crate) fn new(threads: Option<usize>) -> Result<Self, KernelError> {
        let available = || std::thread::available_parallelism().map_or(1, |n| n.get());
        let threads = threads.unwrap_or_else(available).max(1);
        let start = || {
            let workers = rayon::ThreadPoolBuilder::new().num_threads(threads - 1);
            workers.thread_name(|i| format!("compute-{i}")).build()
        };
        let workers = (threads > 1).then(start).transpose();
        let workers = workers.map_err(|cause| KernelError::Threads { threads, cause: cause.to_string() })?;
        Ok(Self { workers, limit: ThreadLimit::new(threads) })
    }

    pub(crate) fn threads(&self) -> usize {
        self.limit.now()
    }

    pub(crate) fn limit(&self) -> &ThreadLimit {
        &self.limit
    }

    /// Runs `work(0..tasks)`, each once, on any thread.
    pub(crate) fn each(&self, tasks: Tasks, work: impl Fn(usize) + Sync) {
        self.each_with(tasks, || (), |(), task| work(task));
    }

    /// The same with a scratch value for each thread that takes part.
    pub(crate) fn each_with<S>(
        &self,
        tasks: Tasks,
        scratch: impl Fn() -> S + Sync,
        work: impl Fn(&mut S, usize) + Sync,
    ) {
        let threads = self.threads().min(tasks.count).min(1 + tasks.cost / WAKE);
        let Some(workers) = self.workers.as_ref().filter(|_| threads > 1) else {
            let mut scratch = scratch();
            return (0..tasks.count).for_each(|task| work(&mut scratch, task));
        };
        let drain = |job: &Job, first: usize| {
            let (mut scratch, mut task) = (scratch(), Some(first));
            while let Some(at) = task {
                work(&mut scratch, at);
                task = job.claim();
            }
        };
        // SAFETY: only the lifetime changes. A worker follows the pointer between a claim and the end it reports, and
        // `Waiting` does not let this frame go while a claimed task has no end.
        let erased = unsafe { transmute::<*const Drain<'_>, *const Drain<'static>>(&drain) };
        let job = Arc::new(Job {
            count: tasks.count,
            next: AtomicUsize::new(0),
            helping: AtomicUsize::new(0),
            drain: erased,
            caller: std::thread::current(),
        });
        for _ in 1..threads {
            let job = job.clone();
            workers.spawn(move || job.help());
        }
        let _waiting = Waiting(&job);
        if let Some(first) = job.claim() {
            drain(&job, first);
        }
    }
}

/// Runs a claimed task, then others while there are any.
type Drain<'a> = dyn Fn(&Job, usize) + Sync + 'a;

struct Job {
    count: usize,
    next: AtomicUsize,
    /// Workers that may hold a task.
    helping: AtomicUsize,
    drain: *const Drain<'static>,
    caller: Thread,
}

// SAFETY: what `drain` points to is `Sync`.
unsafe impl Send for Job {}
// SAFETY: as above.
unsafe impl Sync for Job {}

impl Job {
    fn claim(&self) -> Option<usize> {
        let task = self.next.fetch_add(1, Ordering::SeqCst);
        (task < self.count).then_some(task)
    }

    /// What a worker does: it announces itself before it claims, so that a caller that finds the tasks gone and nobody
    /// announced knows that nobody will come.
    fn help(&self) {
        self.helping.fetch_add(1, Ordering::SeqCst);
        if let Some(first) = self.claim() {
            // SAFETY: the task just claimed keeps the caller, and so the closure, where it is.
            unsafe { (*self.drain)(self, first) };
        }
        self.helping.fetch_sub(1, Ordering::SeqCst);
        self.caller.unpark();
    }
}

/// Waits, when dropped, until no worker holds a task, and lets none begin another: also when the caller's task panics.
struct Waiting<'a>(&'a Job);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        const SPINS: usize = 2000;
        self.0.next.fetch_max(self.0.count, Ordering::SeqCst);
        let mut spins = 0;
        while self.0.helping.load(Ordering::SeqCst) > 0 {
            spins += 1;
            if spins < SPINS { std::hint::spin_loop() } else { std::thread::park() }
        }
    }
}

/// A buffer that tasks write disjoint parts of.
pub(crate) struct DisjointBuffer<T>(*mut T);

// SAFETY: only `at` reaches the buffer, and its caller promises that no two tasks touch the same elements.
unsafe impl<T: Send> Send for DisjointBuffer<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for DisjointBuffer<T> {}

impl<T> DisjointBuffer<T> {
    pub(crate) fn new(buffer: &mut [T]) -> Self {
        Self(buffer.as_mut_ptr())
    }

    /// # Safety
    /// `offset` must lie in the buffer, and the elements written from there belong to this task alone.
    pub(crate) unsafe fn at(&self, offset: usize) -> *mut T {
        // SAFETY: the caller's promise.
        unsafe { self.0.add(offset) }
    }
}

/// A vector of `len` elements that `fill` writes, all of them.
///
/// # Safety
/// `fill` must have written every element when it returns.
pub(crate) unsafe fn filled<T: Copy>(len: usize, fill: impl FnOnce(DisjointBuffer<T>)) -> Vec<T> {
    let mut buffer = Vec::with_capacity(len);
    fill(DisjointBuffer(buffer.as_mut_ptr()));
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
            let pool = ThreadPool::new(Some(threads)).unwrap();
            for count in [0, 1, 2, 100].into_iter().cycle().take(400) {
                let counts: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
                pool.each(Tasks { count, cost: usize::MAX / 2 }, |task| {
                    counts[task].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1), "{threads} threads, {count} tasks");
            }
        }
    }

    #[test]
    fn a_limit_holds_from_the_next_call_on() {
        let pool = ThreadPool::new(Some(4)).unwrap();
        let limit = pool.limit().clone();
        let caller = std::thread::current().id();
        let helped = || {
            let helpers = AtomicUsize::new(0);
            pool.each(Tasks { count: 1000, cost: usize::MAX / 2 }, |_| {
                helpers.fetch_add(usize::from(std::thread::current().id() != caller), Ordering::Relaxed);
                std::thread::yield_now();
            });
            helpers.into_inner() > 0
        };
        limit.set(1);
        assert!(pool.threads() == 1 && !helped());
        for (wanted, got) in [(9, 4), (0, 1), (3, 3)] {
            limit.set(wanted);
            assert_eq!(pool.threads(), got);
        }
    }

    #[test]
    fn a_caller_that_panics_waits_for_the_workers() {
        let pool = ThreadPool::new(Some(3)).unwrap();
        let caller = std::thread::current().id();
        let (begun, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            pool.each(Tasks { count: 1000, cost: usize::MAX / 2 }, |_| {
                if std::thread::current().id() == caller {
                    panic!("a task of the caller's fails");
                }
                begun.fetch_add(1, Ordering::SeqCst);
                std::thread::yield_now();
                ended.fetch_add(1, Ordering::SeqCst);
            });
        }));
        assert_eq!(begun.load(Ordering::SeqCst), ended.load(Ordering::SeqCst));
        assert!(outcome.is_err() || begun.load(Ordering::SeqCst) == 1000);
    }
}
