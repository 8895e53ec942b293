//! Batches that have not ended: how far each is, and how it is told to end. Does no work.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use asterism_actors::capacity::{CapacityShare, Holder, SharedCapacity};
use tokio::sync::watch;

use crate::api::openai::store::Counts;

/// Batches that are worked on; others wait.
const AT_WORK: usize = 4;

/// Batches that have not ended, by their ids. Copies are the same.
#[derive(Clone)]
pub struct Open {
    batches: Arc<Mutex<HashMap<String, Way>>>,
    turns: SharedCapacity,
}

/// How far a batch is, and how it is told to end.
struct Way {
    cancel: watch::Sender<bool>,
    counts: Counts,
}

impl Default for Open {
    fn default() -> Self {
        Self { batches: Arc::default(), turns: SharedCapacity::new(AT_WORK) }
    }
}

impl Open {
    /// Takes a batch in. Returns what says that it is to end.
    pub fn insert(&self, batch: &str, is_cancelled: bool) -> watch::Receiver<bool> {
        let (cancel, cancelled) = watch::channel(is_cancelled);
        self.lock().insert(batch.to_owned(), Way { cancel, counts: Counts::default() });
        cancelled
    }

    /// Forgets a batch that has ended.
    pub fn remove(&self, batch: &str) {
        self.lock().remove(batch);
    }

    /// A batch's turn to be worked on.
    pub async fn turn(&self, holder: &Holder) -> CapacityShare {
        self.turns.take(holder, 1).await
    }

    /// Has a batch end early.
    pub fn cancel(&self, batch: &str) {
        if let Some(way) = self.lock().get(batch) {
            way.cancel.send_replace(true);
        }
    }

    /// Lines that are done, of a batch that has not ended.
    pub fn counts(&self, batch: &str) -> Option<Counts> {
        self.lock().get(batch).map(|way| way.counts)
    }

    /// Sets how far a batch is that goes on.
    pub fn set(&self, batch: &str, counts: Counts) {
        if let Some(way) = self.lock().get_mut(batch) {
            way.counts = counts;
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Way>> {
        self.batches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
