//! A journal in memory, for tests and for simulated restarts: clones share what is stored. Survives no process.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{Change, Entry, StateStore, StoreError, Table};

type Content = BTreeMap<(Table, String), Vec<u8>>;

/// A [`StateStore`] whose clones share one content.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    content: Arc<Mutex<Content>>,
}

impl MemoryStore {
    fn content(&self) -> MutexGuard<'_, Content> {
        // Nothing in this file panics while it holds the lock.
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StateStore for MemoryStore {
    fn load(&mut self) -> Result<Vec<Entry>, StoreError> {
        let entry = |((table, key), value): (&(Table, String), &Vec<u8>)| Entry {
            table: *table,
            key: key.clone(),
            value: value.clone(),
        };
        Ok(self.content().iter().map(entry).collect())
    }

    fn apply(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        changes.iter().try_for_each(Change::check)?;
        let mut content = self.content();
        for change in changes.iter().cloned() {
            match change {
                Change::Put { table, key, value } => content.insert((table, key), value),
                Change::Remove { table, key } => content.remove(&(table, key)),
            };
        }
        Ok(())
    }
}
