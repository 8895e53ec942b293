//! An order to stop, seen by threads that look and by tasks that wait. Stops nothing itself.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tokio::sync::Notify;

/// Set once; clones share it.
#[derive(Clone, Default)]
pub struct StopFlag(Arc<StopState>);

#[derive(Default)]
struct StopState {
    given: AtomicBool,
    heard: Notify,
}

impl StopFlag {
    /// Gives the order.
    pub fn set(&self) {
        self.0.given.store(true, Ordering::Relaxed);
        self.0.heard.notify_waiters();
    }

    /// Whether it was given.
    pub fn is_set(&self) -> bool {
        self.0.given.load(Ordering::Relaxed)
    }

    /// Completes once it is given.
    pub async fn wait(&self) {
        loop {
            let heard = self.0.heard.notified();
            if self.is_set() {
                return;
            }
            heard.await;
        }
    }
}
