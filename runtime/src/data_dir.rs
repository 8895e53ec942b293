//! What a running cluster keeps in its data_dir: the lock, the record of who serves it, logs. Certificates are apart.

use std::{
    fs::{self, File, TryLockError},
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use serde::{Deserialize, Serialize};

use crate::error::{CliError, Exit};

/// Who serves a cluster: what other commands need to find it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The supervisor's process.
    pub pid: u32,
    /// Its admin API.
    pub admin: SocketAddr,
}

/// Held while a supervisor serves the cluster; the operating system frees it with the process, however that ends.
#[derive(Debug)]
pub struct Lock {
    _file: File,
    record: PathBuf,
}

/// The log of a host, or of a detached supervisor.
pub fn log_file(data_dir: &Path, name: &str) -> PathBuf {
    data_dir.join("logs").join(format!("{name}.log"))
}

/// The record of the supervisor that serves the cluster now, if one does.
pub fn running(data_dir: &Path) -> Option<Record> {
    let file = File::open(lock_path(data_dir)).ok()?;
    match file.try_lock_shared() {
        // Whoever wrote the record is gone.
        Ok(()) => None,
        Err(_) => read_record(data_dir),
    }
}

/// Takes the lock, or says who holds it.
pub fn lock(data_dir: &Path, cluster: &str) -> Result<Lock, CliError> {
    let path = lock_path(data_dir);
    let failed = |error: io::Error| {
        CliError::usage(format!("cannot use data_dir {}: {error}", data_dir.display()))
            .hint("set [cluster] data_dir to a folder this user may write")
    };
    fs::create_dir_all(data_dir.join("logs")).map_err(failed)?;
    let file = File::options().create(true).write(true).truncate(false).open(&path).map_err(failed)?;
    // `running` of another command holds the lock for a moment.
    for attempt in (0..5).rev() {
        match file.try_lock() {
            Ok(()) => return Ok(Lock { _file: file, record: record_path(data_dir) }),
            Err(TryLockError::WouldBlock) if attempt > 0 => thread::sleep(Duration::from_millis(40)),
            Err(TryLockError::WouldBlock) => break,
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
    }
    Err(taken(data_dir, cluster))
}

fn taken(data_dir: &Path, cluster: &str) -> CliError {
    let who = read_record(data_dir).map_or("another process".into(), |record| {
        format!("process {} (admin API http://{})", record.pid, record.admin)
    });
    CliError::new(Exit::NotFound, format!("{who} already serves a cluster from data_dir {}", data_dir.display())).hint(
        format!("`asterism down` stops it; to run '{cluster}' beside it, give one of them another name or data_dir"),
    )
}

impl Lock {
    /// Writes the record: from now on other commands find this process.
    pub fn publish(&self, record: &Record) -> io::Result<()> {
        let partial = self.record.with_extension("partial");
        fs::write(&partial, serde_json::to_vec(record)?)?;
        fs::rename(partial, &self.record)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // A record left behind is recognised by the lock that nobody holds.
        let _ = fs::remove_file(&self.record);
    }
}

/// Why the process that wrote a log ended, if it said so: its last error, or what it panicked with.
pub fn last_error(path: &Path) -> Option<String> {
    let text = tail(path)?;
    let error = text.lines().rev().find_map(|line| line.strip_prefix("error: ")).map(str::to_owned);
    let panicked = || {
        let mut lines =
            text.lines().skip_while(|line| !(line.starts_with("thread '") && line.contains(" panicked at ")));
        Some(format!("{} {}", lines.next()?, lines.next().unwrap_or_default()).trim().to_owned())
    };
    error.or_else(panicked)
}

/// The last line of a log with something on it.
pub fn last_line(path: &Path) -> Option<String> {
    tail(path)?.lines().rev().find(|line| !line.trim().is_empty()).map(|line| line.trim().to_owned())
}

fn tail(path: &Path) -> Option<String> {
    let bytes = fs::read(path).ok()?;
    Some(String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(16 << 10)..]).into_owned())
}

fn read_record(data_dir: &Path) -> Option<Record> {
    serde_json::from_slice(&fs::read(record_path(data_dir)).ok()?).ok()
}

fn lock_path(data_dir: &Path) -> PathBuf {
    data_dir.join("lock")
}

fn record_path(data_dir: &Path) -> PathBuf {
    data_dir.join("supervisor.json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_supervisor_a_data_dir() {
        let folder = tempfile::tempdir().unwrap();
        let data_dir = folder.path().join("data");
        assert_eq!(running(&data_dir), None);
        let record = Record { pid: 7, admin: "127.0.0.1:7401".parse().unwrap() };
        let held = lock(&data_dir, "north").unwrap();
        held.publish(&record).unwrap();
        assert_eq!(running(&data_dir), Some(record));
        let refused = lock(&data_dir, "north").unwrap_err();
        assert_eq!(refused.exit, Exit::NotFound);
        assert!(refused.message.contains("process 7"), "{}", refused.message);
        drop(held);
        assert_eq!(running(&data_dir), None);
        lock(&data_dir, "north").unwrap();
    }

    #[test]
    fn the_last_error_of_a_log_is_its_cause() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.log");
        assert_eq!(last_error(&path), None);
        fs::write(&path, "INFO joined\nerror: no such tensor\nnext: look\n\n").unwrap();
        assert_eq!(last_error(&path).as_deref(), Some("no such tensor"));
        assert_eq!(last_line(&path).as_deref(), Some("next: look"));
        fs::write(&path, "INFO joined\nthread 'main' (7) panicked at a.rs:1:\nno room\nnote: more\n").unwrap();
        assert_eq!(last_error(&path).as_deref(), Some("thread 'main' (7) panicked at a.rs:1: no room"));
        fs::write(&path, "INFO joined\n").unwrap();
        assert_eq!(last_error(&path), None);
    }
}
