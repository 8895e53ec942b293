//! Threads beside the one that generates: what they are ordered they do while others generate, fairly between keys. Know no work.

use std::{
    any::Any,
    collections::{BTreeMap, VecDeque},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::sync::Notify;

use crate::machine::{self, Thread};

/// What came of an order, or code and message of what failed.
pub type BackgroundResult<T> = Result<T, (String, String)>;

/// Takes orders; its threads end with it.
pub struct BackgroundWorker<O, T>(Arc<SharedOrders<O, T>>);

/// An order that was given: dropped, it is given up.
pub struct PendingOrder<T>(Arc<OrderHandle<T>>);

/// What both sides of an order see.
struct OrderHandle<T> {
    result: Mutex<Option<BackgroundResult<T>>>,
    given_up: AtomicBool,
}

struct QueuedOrder<O, T> {
    order: O,
    handle: Arc<OrderHandle<T>>,
    done: Box<dyn FnOnce() + Send>,
}

/// What both sides of a worker see.
struct SharedOrders<O, T> {
    queue: Mutex<OrderQueue<QueuedOrder<O, T>>>,
    changed: Notify,
    has_ended: AtomicBool,
}

/// Orders of several keys. Each has a thread before another has a second one, and none has all of several threads.
struct OrderQueue<T> {
    waiting: VecDeque<(u64, T)>,
    under_way: BTreeMap<u64, usize>,
    most_of_one: usize,
}

impl<T> OrderQueue<T> {
    fn new(threads: usize) -> Self {
        let most_of_one = threads.saturating_sub(1).max(1);
        Self { waiting: VecDeque::new(), under_way: BTreeMap::new(), most_of_one }
    }

    /// The first order of those who have least under way, and whose it is.
    fn next(&mut self) -> Option<(u64, T)> {
        let under_way = |tenant: &u64| self.under_way.get(tenant).copied().unwrap_or(0);
        let tenants = self.waiting.iter().map(|(tenant, _)| under_way(tenant)).enumerate();
        let (at, _) = tenants.filter(|(_, has)| *has < self.most_of_one).min_by_key(|(_, has)| *has)?;
        let (tenant, order) = self.waiting.remove(at)?;
        *self.under_way.entry(tenant).or_default() += 1;
        Some((tenant, order))
    }

    fn ended(&mut self, tenant: u64) {
        if let Some(left) = self.under_way.get_mut(&tenant) {
            *left -= 1;
            if *left == 0 {
                self.under_way.remove(&tenant);
            }
        }
    }
}

/// What a panic says.
pub fn words(panic: Box<dyn Any + Send>) -> String {
    let words = panic.downcast_ref::<&str>().map(|words| (*words).to_owned());
    words.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}

impl<O, T> SharedOrders<O, T> {
    fn queue(&self) -> MutexGuard<'_, OrderQueue<QueuedOrder<O, T>>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for an order; none where no more come.
    fn take(&self) -> Option<(u64, QueuedOrder<O, T>)> {
        loop {
            let changed = self.changed.notified();
            if self.has_ended.load(Ordering::Acquire) {
                return None;
            }
            let next = self.queue().next();
            if next.is_some() {
                return next;
            }
            machine::block_on(changed);
        }
    }
}

impl<O: Send + 'static, T: Send + 'static> BackgroundWorker<O, T> {
    /// Starts so many threads of this name; `work` is done for each order, and told whether it was given up.
    pub fn start(
        (name, threads): (&'static str, usize),
        work: impl Fn(O, &AtomicBool) -> BackgroundResult<T> + Send + Sync + 'static,
    ) -> Self {
        let (queue, work) = (Mutex::new(OrderQueue::new(threads)), Arc::new(work));
        let shared = Arc::new(SharedOrders { queue, changed: Notify::new(), has_ended: AtomicBool::new(false) });
        for _ in 0..threads {
            let (shared, work) = (shared.clone(), work.clone());
            let run = move || {
                while let Some((tenant, QueuedOrder { order, handle, done })) = shared.take() {
                    let result = catch_unwind(AssertUnwindSafe(|| work(order, &handle.given_up)));
                    let result = result.unwrap_or_else(|panic| {
                        Err(("internal".to_owned(), format!("a thread of {name} panicked: {}", words(panic))))
                    });
                    *handle.result.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
                    done();
                    shared.queue().ended(tenant);
                    // The key's next order may have had to wait for this one.
                    shared.changed.notify_waiters();
                }
            };
            Thread::start(name, run).expect("the system starts a thread");
        }
        Self(shared)
    }

    /// Has something done for a key; `done` is called once its result can be taken.
    pub fn order(&self, (tenant, order): (u64, O), done: impl FnOnce() + Send + 'static) -> PendingOrder<T> {
        let handle = Arc::new(OrderHandle { result: Mutex::new(None), given_up: AtomicBool::new(false) });
        let queued = QueuedOrder { order, handle: handle.clone(), done: Box::new(done) };
        self.0.queue().waiting.push_back((tenant, queued));
        self.0.changed.notify_waiters();
        PendingOrder(handle)
    }
}

impl<O, T> Drop for BackgroundWorker<O, T> {
    fn drop(&mut self) {
        self.0.has_ended.store(true, Ordering::Release);
        self.0.changed.notify_waiters();
    }
}

impl<T> PendingOrder<T> {
    /// What came of it, once it is done.
    pub fn take(&self) -> Option<BackgroundResult<T>> {
        self.0.result.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl<T> Drop for PendingOrder<T> {
    fn drop(&mut self) {
        self.0.given_up.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use super::*;

    #[test]
    fn orders_of_one_key_leave_a_thread_to_others() {
        let mut queue = OrderQueue::new(3);
        for order in 0..5 {
            queue.waiting.push_back((1, order));
        }
        assert_eq!((queue.next(), queue.next(), queue.next()), (Some((1, 0)), Some((1, 1)), None));
        queue.waiting.push_back((2, 10));
        queue.waiting.push_back((3, 20));
        assert_eq!(queue.next(), Some((2, 10)));
        queue.ended(1);
        // Whoever has none comes before whoever asked first.
        assert_eq!(queue.next(), Some((3, 20)));
        queue.ended(2);
        assert_eq!((queue.next(), queue.next()), (Some((1, 2)), None));
        // One thread alone goes by who asked first.
        let mut queue = OrderQueue::new(1);
        (0..4).for_each(|order| queue.waiting.push_back((order % 2, order)));
        for order in 0..4 {
            assert_eq!(queue.next(), Some((order % 2, order)));
            queue.ended(order % 2);
        }
    }

    /// Orders that wait until they may go on do not hold one of another key.
    #[tokio::test(flavor = "multi_thread")]
    async fn slow_orders_of_one_key_do_not_hold_anothers() {
        let (go_on, may_go_on) = mpsc::channel::<()>();
        let may_go_on = Mutex::new(may_go_on);
        let worker = BackgroundWorker::start(("test", 3), move |is_slow: bool, _: &AtomicBool| {
            if is_slow {
                let _ = may_go_on.lock().unwrap().recv();
            }
            Ok(is_slow)
        });
        let (done, ended) = mpsc::channel();
        let order = |tenant, is_slow| {
            let done = done.clone();
            worker.order((tenant, is_slow), move || done.send(tenant).expect("it is waited for"))
        };
        let slow: Vec<_> = (0..8).map(|_| order(1, true)).collect();
        let quick = order(2, false);
        let within = Duration::from_secs(20);
        assert_eq!((ended.recv_timeout(within), quick.take()), (Ok(2), Some(Ok(false))));
        drop(go_on);
        (0..8).for_each(|_| assert_eq!(ended.recv_timeout(within), Ok(1)));
        assert!(slow.iter().all(|order| order.take() == Some(Ok(true))));
    }
}
