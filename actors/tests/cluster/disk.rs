//! Journals on disks that fail as a test says.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

use asterism_actors::store::{Change, Entry, MemoryStore, StateStore, StoreError};

/// A journal whose disk takes its time: as long as somebody holds `gate`.
pub struct SlowDisk {
    pub store: MemoryStore,
    pub gate: Arc<Mutex<()>>,
}

impl StateStore for SlowDisk {
    fn load(&mut self) -> Result<Vec<Entry>, StoreError> {
        self.store.load()
    }

    fn apply(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        let _open = self.gate.lock().expect("no holder panics");
        self.store.apply(changes)
    }
}

/// A journal whose disk is full while `full` says so.
pub struct FullDisk {
    pub store: MemoryStore,
    pub full: Arc<AtomicBool>,
}

impl StateStore for FullDisk {
    fn load(&mut self) -> Result<Vec<Entry>, StoreError> {
        self.store.load()
    }

    fn apply(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        match self.full.load(Ordering::SeqCst) {
            true => Err(StoreError::DiskFull { path: "journal.redb".into(), cause: "no space left".into() }),
            false => self.store.apply(changes),
        }
    }
}
