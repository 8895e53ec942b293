//! A third store, to show that one is a file: all of the journal in one JSON file, written anew beside the old one and put in
//! its place. Good for tests; each write costs all that is stored.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

use asterism_actors::store::{Change, Entry, StateStore, StoreError, Table};

pub struct SnapshotStore(PathBuf);

impl SnapshotStore {
    pub fn new(path: &Path) -> Self {
        Self(path.to_owned())
    }

    fn error(&self, cause: io::Error) -> StoreError {
        StoreError::Io { path: self.0.clone(), cause }
    }

    fn read(&self) -> io::Result<Vec<Entry>> {
        let bytes = match fs::read(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            bytes => bytes?,
        };
        let stored: Vec<(usize, String, Vec<u8>)> = serde_json::from_slice(&bytes)?;
        Ok(stored.into_iter().map(|(table, key, value)| Entry { table: Table::ALL[table], key, value }).collect())
    }

    fn write(&self, entries: &[Entry]) -> io::Result<()> {
        let at = |table: Table| Table::ALL.iter().position(|one| *one == table);
        let stored: Vec<_> = entries.iter().map(|entry| (at(entry.table), &entry.key, &entry.value)).collect();
        let beside = self.0.with_extension("new");
        let mut file = File::create(&beside)?;
        file.write_all(&serde_json::to_vec(&stored)?)?;
        file.sync_all()?;
        fs::rename(&beside, &self.0)?;
        File::open(self.0.parent().unwrap_or(Path::new(".")))?.sync_all()
    }
}

impl StateStore for SnapshotStore {
    fn load(&mut self) -> Result<Vec<Entry>, StoreError> {
        let mut entries = self.read().map_err(|cause| self.error(cause))?;
        entries.sort_by(|one, other| (one.table, &one.key).cmp(&(other.table, &other.key)));
        Ok(entries)
    }

    fn apply(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        changes.iter().try_for_each(Change::check)?;
        let mut entries = self.load()?;
        for change in changes {
            entries.retain(|entry| (entry.table, entry.key.as_str()) != (change.table(), change.key()));
            if let Change::Put { table, key, value } = change.clone() {
                entries.push(Entry { table, key, value });
            }
        }
        self.write(&entries).map_err(|cause| self.error(cause))
    }
}
