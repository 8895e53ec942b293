//! Values that are too large for etcd, as files of a folder that every supervisor sees. Knows not which of them count.
//!
//! Each write has a file of its own, named by the term of who wrote it, a number of that term and the hash of its content. A file
//! is written once and never again, so that who led before and wakes up can spoil none of a later leader's.

use std::{
    fs::File,
    io::{self, ErrorKind, Read, Write},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use asterism_actors::store::StoreError;

use crate::data_dir::private;

/// Longest that a file which another machine wrote may take to be seen here.
const SEEN_WITHIN: u32 = 20;
const VALUE_LOOK_EVERY: Duration = Duration::from_millis(250);

/// The folder.
#[derive(Debug)]
pub struct Values {
    folder: PathBuf,
}

impl Values {
    /// In a folder of this one, made where it is not there.
    pub fn open(shared: &Path) -> Result<Self, StoreError> {
        let folder = shared.join("values");
        private::make(&folder).map_err(|error| refused(&folder, error))?;
        Ok(Self { folder })
    }

    /// The name of a value that is to be written.
    pub fn name(term: i64, number: u64, content: &[u8]) -> String {
        format!("{term}-{number}-{}", blake3::hash(content).to_hex())
    }

    /// Writes a value; when it returns, that survives a crash.
    pub fn write(&self, name: &str, content: &[u8]) -> Result<(), StoreError> {
        let path = self.folder.join(name);
        let written = || {
            let mut file = private::options().create(true).truncate(true).write(true).open(&path)?;
            file.write_all(content)?;
            file.sync_all()?;
            File::open(&self.folder)?.sync_all()
        };
        written().map_err(|error| refused(&path, error))
    }

    /// A value, whose content is what its name says.
    pub fn read(&self, name: &str) -> Result<Vec<u8>, StoreError> {
        let path = self.folder.join(name);
        let damaged = |cause: &str| StoreError::Damaged { path: path.clone(), cause: cause.to_owned() };
        let mut tries = SEEN_WITHIN;
        let content = loop {
            let mut content = Vec::new();
            match File::open(&path).and_then(|mut file| file.read_to_end(&mut content)) {
                Ok(_) => break content,
                // A network's file system may show a new file late.
                Err(error) if error.kind() == ErrorKind::NotFound && tries > 0 => {
                    tries -= 1;
                    thread::sleep(VALUE_LOOK_EVERY);
                }
                Err(error) if error.kind() == ErrorKind::NotFound => return Err(damaged("the file is not there")),
                Err(error) => return Err(refused(&path, error)),
            }
        };
        match name.rsplit('-').next() == Some(blake3::hash(&content).to_hex().as_str()) {
            true => Ok(content),
            false => Err(damaged("its content is not what was written")),
        }
    }

    /// Forgets a value that nobody names any more; one that stays only takes room.
    pub fn remove(&self, name: &str) {
        if let Err(error) = std::fs::remove_file(self.folder.join(name))
            && error.kind() != ErrorKind::NotFound
        {
            tracing::warn!(%error, name, "a value that counts no more stays");
        }
    }

    /// Forgets what terms before `term` wrote and `counts` does not name: what was written for a transaction that never took place.
    pub fn tidy(&self, term: i64, counts: impl Fn(&str) -> bool) {
        let Ok(entries) = std::fs::read_dir(&self.folder) else { return };
        for entry in entries.flatten() {
            let Ok(name) = entry.file_name().into_string() else { continue };
            let of_term = name.split('-').next().and_then(|term| term.parse::<i64>().ok());
            if of_term.is_some_and(|of| of < term) && !counts(&name) {
                self.remove(&name);
            }
        }
    }
}

fn refused(path: &Path, error: io::Error) -> StoreError {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            StoreError::DiskFull { path: path.to_owned(), cause: error.to_string() }
        }
        _ => StoreError::Io { path: path.to_owned(), cause: error },
    }
}
