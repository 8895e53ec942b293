//! The disk of a simulated journal: it takes time, and a write may be the last that a supervisor does.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use asterism_actors::{
    machine,
    store::{Change, Entry, MemoryStore, StateStore, StoreError},
};
use tokio::{sync::Notify, time::sleep};

use crate::scenario::Moment;

/// The disk of the journal: takes time, and may be the last that a supervisor does.
#[derive(Clone, Default)]
pub struct Disk {
    pub content: MemoryStore,
    takes: Duration,
    crash: Arc<Mutex<Option<Moment>>>,
    /// Notified when the supervisor is to end.
    pub crashed: Arc<Notify>,
}

impl Disk {
    /// An empty one that takes so long for a write.
    pub fn new(takes: Duration) -> Self {
        Self { takes, ..Self::default() }
    }

    /// The supervisor ends at the next write.
    pub fn crash(&self, moment: Moment) {
        *self.crash.lock().expect("no holder panics") = Some(moment);
    }

    /// What has not happened by now does not happen any more.
    pub fn calm(&self) {
        *self.crash.lock().expect("no holder panics") = None;
    }

    fn may_end(&self, here: Moment) {
        let mut crash = self.crash.lock().expect("no holder panics");
        if *crash == Some(here) {
            *crash = None;
            drop(crash);
            self.crashed.notify_one();
            machine::block_on(std::future::pending::<()>());
        }
    }
}

impl StateStore for Disk {
    fn load(&mut self) -> Result<Vec<Entry>, StoreError> {
        self.content.load()
    }

    fn apply(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        if !self.takes.is_zero() {
            machine::block_on(sleep(self.takes));
        }
        self.may_end(Moment::BeforeKept);
        self.content.apply(changes)?;
        self.may_end(Moment::AfterKept);
        Ok(())
    }
}
