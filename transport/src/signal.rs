//! A value whose changes are waited for, by one or by many. Those who wait are woken in the order in which they came, which
//! `tokio::sync::watch` leaves to chance: what follows from a change in a simulation would differ from run to run.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

#[derive(Default)]
pub(crate) struct Signal<T> {
    value: Mutex<T>,
    changed: Notify,
}

impl<T: Clone> Signal<T> {
    pub fn get(&self) -> T {
        lock(&self.value).clone()
    }

    pub fn set(&self, value: T) {
        *lock(&self.value) = value;
        self.changed.notify_waiters();
    }

    /// The value once it is as wanted.
    pub async fn wait_for(&self, wanted: impl Fn(&T) -> bool) -> T {
        loop {
            let changed = self.changed.notified();
            let value = self.get();
            if wanted(&value) {
                return value;
            }
            changed.await;
        }
    }
}

impl<T: Clone> Signal<Option<T>> {
    /// The first value stands.
    pub fn set_once(&self, value: T) {
        let first = {
            let mut known = lock(&self.value);
            let first = known.is_none();
            known.get_or_insert(value);
            first
        };
        if first {
            self.changed.notify_waiters();
        }
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while holding these locks in a way that leaves their maps and lists inconsistent.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
