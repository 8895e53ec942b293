//! Locks on the files that the hub's tools lock: a blob's by whoever fetches it, a repository's by the pulls of it, and all of both by who
//! removes it. Touches nothing else of the cache.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io,
    path::{Path, PathBuf},
};

use super::{error::HubError, meter::PullMeter};

/// A lock that nobody else holds meanwhile; who does is waited for, which `note` says.
pub(super) fn alone(path: &Path, meter: &PullMeter, note: &str) -> Result<File, HubError> {
    held(path, (File::try_lock, File::lock), (meter, note))
}

/// A lock that others may share, but nobody holds alone; who does is waited for, which `note` says.
pub(super) fn shared(path: &Path, meter: &PullMeter, note: &str) -> Result<File, HubError> {
    held(path, (File::try_lock_shared, File::lock_shared), (meter, note))
}

fn held(
    path: &Path,
    (tries, waits): (impl Fn(&File) -> Result<(), TryLockError>, impl Fn(&File) -> io::Result<()>),
    (meter, note): (&PullMeter, &str),
) -> Result<File, HubError> {
    let lock = opened(path)?;
    let got = match tries(&lock) {
        Err(TryLockError::WouldBlock) => {
            meter.note(note);
            waits(&lock)
        }
        tried => tried.map_err(io::Error::from),
    };
    got.map_err(HubError::disk(path))?;
    Ok(lock)
}

/// All locks of a folder, with the one of a repository, which need not be there yet; else the first that somebody holds.
pub(super) fn all(folder: &Path, repository: &Path) -> Result<Result<Vec<File>, PathBuf>, HubError> {
    drop(opened(repository)?);
    let mut locks = Vec::new();
    for entry in fs::read_dir(folder).map_err(HubError::disk(folder))? {
        let path = entry.map_err(HubError::disk(folder))?.path();
        if path.extension().is_none_or(|end| end != "lock") {
            continue;
        }
        let lock = File::open(&path).map_err(HubError::disk(&path))?;
        match lock.try_lock() {
            Ok(()) => locks.push(lock),
            Err(TryLockError::WouldBlock) => return Ok(Err(path)),
            // Where nobody can lock, nobody waits for it.
            Err(TryLockError::Error(cause)) if cause.kind() == io::ErrorKind::Unsupported => {}
            Err(TryLockError::Error(cause)) => return Err(HubError::disk(&path)(cause)),
        }
    }
    Ok(Ok(locks))
}

fn opened(path: &Path) -> Result<File, HubError> {
    let folder = path.parent().unwrap_or(Path::new(""));
    fs::create_dir_all(folder).map_err(HubError::disk(folder))?;
    let lock = OpenOptions::new().create(true).truncate(false).write(true).open(path);
    lock.map_err(HubError::disk(path))
}
