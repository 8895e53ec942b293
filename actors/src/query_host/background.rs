//! A thread beside the one that generates: what it is ordered is done one after the other, while others generate. Knows no work.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::sync::mpsc;

use crate::machine::{self, Thread};

/// What came of an order, or code and message of what failed.
pub type BackgroundResult<T> = Result<T, (String, String)>;

/// Takes orders; its thread ends with it.
pub struct BackgroundWorker<O, T> {
    orders: mpsc::UnboundedSender<QueuedOrder<O, T>>,
}

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

/// What a panic says.
pub fn words(panic: Box<dyn Any + Send>) -> String {
    let words = panic.downcast_ref::<&str>().map(|words| (*words).to_owned());
    words.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}

impl<O: Send + 'static, T: Send + 'static> BackgroundWorker<O, T> {
    /// Starts the thread of this name; `work` is done for each order, and told whether it was given up.
    pub fn start(
        name: &'static str,
        mut work: impl FnMut(O, &AtomicBool) -> BackgroundResult<T> + Send + 'static,
    ) -> Self {
        let (orders, mut taken) = mpsc::unbounded_channel::<QueuedOrder<O, T>>();
        let run = move || {
            while let Some(QueuedOrder { order, handle, done }) = machine::block_on(taken.recv()) {
                let result = catch_unwind(AssertUnwindSafe(|| work(order, &handle.given_up)));
                let result = result.unwrap_or_else(|panic| {
                    Err(("internal".to_owned(), format!("the thread of {name} panicked: {}", words(panic))))
                });
                *handle.result.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
                done();
            }
        };
        Thread::start(name, run).expect("the system starts a thread");
        Self { orders }
    }

    /// Has something done; `done` is called once its result can be taken.
    pub fn order(&self, order: O, done: impl FnOnce() + Send + 'static) -> PendingOrder<T> {
        let handle = Arc::new(OrderHandle { result: Mutex::new(None), given_up: AtomicBool::new(false) });
        // The thread goes when this does.
        let _ = self.orders.send(QueuedOrder { order, handle: handle.clone(), done: Box::new(done) });
        PendingOrder(handle)
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
