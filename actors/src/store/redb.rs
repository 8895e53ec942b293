//! The journal as one file of the embedded database redb. Decides nothing about its content.
//!
//! Every commit is two-phase: a page that does not match its checksum is then damage, never a commit cut short, so
//! nothing acknowledged is ever taken back silently. Opening reads and verifies the whole file.

use std::{
    fs::{self, File},
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

use redb::{Builder, Database, ReadableDatabase, ReadableTable, TableDefinition, TableHandle};

use super::{Change, Entry, StateStore, StoreError, Table};

/// Version of the tables below and of how they are keyed.
const FORMAT: u32 = 2;

const META: TableDefinition<&str, &[u8]> = TableDefinition::new("meta");
const META_FORMAT: &str = "format";
const META_CLUSTER: &str = "cluster";

/// Pages kept in memory.
const CACHE_BYTES: usize = 16 << 20;

/// A [`StateStore`] in one file, held by one process at a time. Its calls block on the disk.
#[derive(Debug)]
pub struct RedbStore {
    path: PathBuf,
    cluster: String,
    /// None after an error: the next call opens the file again.
    database: Option<Database>,
}

impl RedbStore {
    /// Opens the journal of a cluster, or begins one where there is none. Its folder must exist.
    pub fn open(path: impl Into<PathBuf>, cluster: &str) -> Result<Self, StoreError> {
        let mut store = Self { path: path.into(), cluster: cluster.to_owned(), database: None };
        if !store.path.try_exists().map_err(|cause| store.refused(cause.into()))? {
            store.begin().map_err(|cause| store.refused(cause))?;
        }
        store.opened()?;
        Ok(store)
    }

    fn opened(&mut self) -> Result<&Database, StoreError> {
        let database = match self.database.take() {
            Some(database) => database,
            None => self.reopen()?,
        };
        Ok(self.database.insert(database))
    }

    fn reopen(&self) -> Result<Database, StoreError> {
        let open = || builder().set_check_integrity_on_open(true).open(&self.path);
        // The database asserts what its own files always satisfy; a damaged one may not.
        let database = catch_unwind(AssertUnwindSafe(open))
            .map_err(|_| self.damaged("its pages contradict each other"))?
            .map_err(|cause| self.refused(cause.into()))?;
        let meta = read_meta(&database).map_err(|cause| self.refused(cause))?;
        let format = meta.format.and_then(|bytes| Some(u32::from_le_bytes(bytes.try_into().ok()?)));
        match format {
            None => return Err(self.damaged("it does not say its version")),
            Some(FORMAT) => {}
            Some(got) => {
                return Err(StoreError::OtherVersion { path: self.path.clone(), got, expected: FORMAT });
            }
        }
        let got = String::from_utf8_lossy(&meta.cluster.unwrap_or_default()).into_owned();
        if got != self.cluster {
            let expected = self.cluster.clone();
            return Err(StoreError::OtherCluster { path: self.path.clone(), got, expected });
        }
        Ok(database)
    }

    /// Writes an empty journal beside its place and moves it there, so that no file half begun is ever found.
    fn begin(&self) -> Result<(), redb::Error> {
        let partial = self.path.with_extension("partial");
        match fs::remove_file(&partial) {
            Err(cause) if cause.kind() != io::ErrorKind::NotFound => return Err(cause.into()),
            _ => {}
        }
        let mut options = File::options();
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        drop(options.write(true).create_new(true).open(&partial)?);
        let database = builder().create(&partial)?;
        let mut transaction = database.begin_write()?;
        transaction.set_two_phase_commit(true);
        {
            let mut meta = transaction.open_table(META)?;
            meta.insert(META_FORMAT, FORMAT.to_le_bytes().as_slice())?;
            meta.insert(META_CLUSTER, self.cluster.as_bytes())?;
        }
        transaction.commit()?;
        database.close()?;
        fs::rename(&partial, &self.path)?;
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Ok(File::open(folder)?.sync_all()?)
    }

    fn damaged(&self, cause: &str) -> StoreError {
        StoreError::Damaged { path: self.path.clone(), cause: cause.to_owned() }
    }

    fn refused(&self, cause: redb::Error) -> StoreError {
        use io::ErrorKind::{FileTooLarge, InvalidData, QuotaExceeded, StorageFull, UnexpectedEof};
        use redb::Error;

        let path = self.path.clone();
        match cause {
            Error::DatabaseAlreadyOpen | Error::LockProtocolMismatch => StoreError::InUse { path },
            Error::UpgradeRequired(got) => StoreError::OtherVersion { path, got: got.into(), expected: FORMAT },
            Error::Io(cause) => match cause.kind() {
                StorageFull | QuotaExceeded | FileTooLarge => StoreError::DiskFull { path, cause: cause.to_string() },
                InvalidData | UnexpectedEof => StoreError::Damaged { path, cause: cause.to_string() },
                _ => StoreError::Io { path, cause },
            },
            Error::PreviousIo => StoreError::Io { path, cause: io::Error::other("an earlier write failed") },
            other => StoreError::Damaged { path, cause: other.to_string() },
        }
    }

    /// Runs `work`; after an error the file is closed, since the database refuses all further work then.
    fn using<T>(&mut self, work: impl FnOnce(&Database) -> Result<T, redb::Error>) -> Result<T, StoreError> {
        work(self.opened()?).map_err(|cause| {
            self.database = None;
            self.refused(cause)
        })
    }
}

impl StateStore for RedbStore {
    fn load(&mut self) -> Result<Vec<Entry>, StoreError> {
        self.using(|database| {
            let transaction = database.begin_read()?;
            let stored: Vec<String> = transaction.list_tables()?.map(|table| table.name().to_owned()).collect();
            let mut entries = Vec::new();
            for table in Table::ALL.into_iter().filter(|table| stored.iter().any(|name| name == table.name())) {
                for row in transaction.open_table(definition(table))?.iter()? {
                    let (key, value) = row?;
                    entries.push(Entry { table, key: key.value().to_owned(), value: value.value().to_vec() });
                }
            }
            Ok(entries)
        })
    }

    fn apply(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        changes.iter().try_for_each(Change::check)?;
        if changes.is_empty() {
            return Ok(());
        }
        self.using(|database| {
            let mut transaction = database.begin_write()?;
            transaction.set_two_phase_commit(true);
            for change in changes {
                match change {
                    Change::Put { table, key, value } => {
                        transaction.open_table(definition(*table))?.insert(key.as_str(), value.as_slice())?;
                    }
                    Change::Remove { table, key } => {
                        transaction.open_table(definition(*table))?.remove(key.as_str())?;
                    }
                }
            }
            Ok(transaction.commit()?)
        })
    }
}

fn builder() -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE_BYTES);
    builder
}

const fn definition(table: Table) -> TableDefinition<'static, &'static str, &'static [u8]> {
    TableDefinition::new(table.name())
}

struct Meta {
    format: Option<Vec<u8>>,
    cluster: Option<Vec<u8>>,
}

fn read_meta(database: &Database) -> Result<Meta, redb::Error> {
    let meta = database.begin_read()?.open_table(META)?;
    let value = |key| Ok::<_, redb::Error>(meta.get(key)?.map(|value| value.value().to_vec()));
    Ok(Meta { format: value(META_FORMAT)?, cluster: value(META_CLUSTER)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_version_is_named_with_both_numbers() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal.redb");
        drop(RedbStore::open(&path, "north").unwrap());
        let database = builder().open(&path).unwrap();
        let transaction = database.begin_write().unwrap();
        transaction.open_table(META).unwrap().insert(META_FORMAT, 7u32.to_le_bytes().as_slice()).unwrap();
        transaction.commit().unwrap();
        drop(database);
        let error = RedbStore::open(&path, "north").unwrap_err();
        assert!(matches!(error, StoreError::OtherVersion { got: 7, expected: FORMAT, .. }), "{error}");
    }

    #[test]
    fn a_file_begun_and_not_finished_is_no_journal() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal.redb");
        fs::write(path.with_extension("partial"), b"cut short").unwrap();
        let mut store = RedbStore::open(&path, "north").unwrap();
        assert_eq!(store.load().unwrap(), []);
        assert!(!path.with_extension("partial").exists());
    }
}
