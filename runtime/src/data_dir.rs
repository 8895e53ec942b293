//! What a running cluster keeps in its data_dir: locks, the record of who serves it, logs. Certificates are apart.

pub(crate) mod archive;
pub mod links;
pub(crate) mod logs;
pub(crate) mod place;
pub mod private;
pub(crate) mod start_file;

use std::{
    fs::{self, File, TryLockError},
    io::{self, Read, Seek, SeekFrom},
    net::SocketAddr,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use serde::{Deserialize, Serialize};

use crate::{
    cluster::Cluster,
    error::{CliError, Exit},
};

/// Most of a log that is read to find out why a process ended.
const TAIL_BYTES: u64 = 16 << 10;

/// Who serves a cluster: what other commands need to find it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerRecord {
    /// The supervisor's process.
    pub pid: u32,
    /// Its admin API.
    pub admin: SocketAddr,
    /// Whether that one speaks TLS.
    #[serde(default)]
    pub admin_tls: bool,
    /// OpenAI's API, if there is one.
    pub api: Option<SocketAddr>,
    /// Whether that one speaks TLS.
    #[serde(default)]
    pub api_tls: bool,
    /// Where hosts reach it.
    pub listen: SocketAddr,
}

impl ServerRecord {
    /// Where its admin API is.
    pub fn url(&self) -> String {
        admin_url(self.admin, self.admin_tls)
    }
}

/// Where an admin API is.
pub fn admin_url(address: SocketAddr, tls: bool) -> String {
    format!("{}://{address}", if tls { "https" } else { "http" })
}

/// What one process at a time may be for a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockRole<'a> {
    /// Its supervisor.
    Supervisor,
    /// `up`, which starts the supervisor and this machine's hosts.
    Up,
    /// The agent of a node.
    Node(&'a str),
}

/// Held while a process has a role in a data_dir; the operating system frees it with the process, however that ends.
#[derive(Debug)]
pub struct Lock {
    _file: File,
    record: PathBuf,
}

/// What the supervisor keeps over its restarts.
pub fn journal(data_dir: &Path) -> PathBuf {
    data_dir.join("journal.redb")
}

/// Where that lies which every supervisor of a cluster needs: the folder that they share, where this machine sees it, else data_dir.
pub fn shared(cluster: &Cluster) -> &Path {
    let shared = cluster.standby.as_ref().map(|standby| standby.shared_dir.as_path());
    shared.filter(|folder| folder.is_dir()).unwrap_or(&cluster.data_dir)
}

/// Where who has the role keeps the cluster file that it starts processes from.
pub fn start_file(data_dir: &Path, role: LockRole) -> PathBuf {
    path(data_dir, role, "toml")
}

/// The log of a process of hosts, of a supervisor, or of a detached `up`.
pub fn log_file(data_dir: &Path, name: &str) -> PathBuf {
    log_folder(data_dir).join(format!("{name}.log"))
}

/// Where logs are.
pub fn log_folder(data_dir: &Path) -> PathBuf {
    data_dir.join("logs")
}

/// The log that a host of the cluster writes to.
pub fn log_of(cluster: &Cluster, host: &str) -> PathBuf {
    log_file(&cluster.data_dir, cluster.host(host).map_or(host, |host| &host.process))
}

/// Refuses to say that nobody serves a cluster whose data_dir this user may not look into.
pub fn look(data_dir: &Path) -> Result<(), CliError> {
    match fs::read_dir(data_dir) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Err(CliError::usage(format!("cannot look into data_dir {}: {error}", data_dir.display()))
                .hint("run this as the user that runs the cluster, or name it with --server URL"))
        }
        _ => Ok(()),
    }
}

/// The record of the supervisor that serves the cluster now, if one does.
pub fn running(data_dir: &Path) -> Option<ServerRecord> {
    occupied(data_dir, LockRole::Supervisor).then(|| read_record(data_dir))?
}

/// The record of the supervisor that serves the cluster, or of the one that `up` is about to start again.
pub fn served(data_dir: &Path) -> Option<ServerRecord> {
    running(data_dir).or_else(|| occupied(data_dir, LockRole::Up).then(|| read_record(data_dir))?)
}

/// The process of the `up` that keeps the cluster running, if one does.
pub fn keeper(data_dir: &Path) -> Option<u32> {
    occupied(data_dir, LockRole::Up).then(|| read_pid(data_dir, LockRole::Up))?
}

/// Takes a role, or says who has it.
pub fn lock(data_dir: &Path, cluster: &str, role: LockRole) -> Result<Lock, CliError> {
    private::folder(data_dir)?;
    let logs = log_folder(data_dir);
    private::make(&logs).map_err(|error| private::refused(&logs, "make", &error))?;
    let path = path(data_dir, role, "lock");
    let failed = |error: io::Error| private::refused(&path, "hold", &error);
    let file = private::options().create(true).write(true).truncate(false).open(&path).map_err(failed)?;
    // `occupied` of another command holds the lock for a moment.
    for attempt in (0..5).rev() {
        match file.try_lock() {
            Ok(()) => return Ok(Lock { _file: file, record: self::path(data_dir, role, "json") }),
            Err(TryLockError::WouldBlock) if attempt > 0 => thread::sleep(Duration::from_millis(40)),
            Err(TryLockError::WouldBlock) => break,
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
    }
    Err(taken(data_dir, cluster, role))
}

fn taken(data_dir: &Path, cluster: &str, role: LockRole) -> CliError {
    let who = read_pid(data_dir, role).map_or("another process".into(), |pid| format!("process {pid}"));
    if let LockRole::Node(node) = role {
        let what = format!("{who} already runs the hosts of node '{node}' from data_dir {}", data_dir.display());
        return CliError::new(Exit::NotFound, what).hint("end that process first");
    }
    let admin = read_record(data_dir).map_or(String::new(), |record| format!(" (admin API {})", record.url()));
    CliError::new(Exit::NotFound, format!("{who}{admin} already serves a cluster from data_dir {}", data_dir.display()))
        .hint(format!(
            "`asterism down` stops it; to run '{cluster}' beside it, give one of them another name or data_dir"
        ))
}

/// Whether a process has the role.
fn occupied(data_dir: &Path, role: LockRole) -> bool {
    File::open(path(data_dir, role, "lock")).is_ok_and(|file| file.try_lock_shared().is_err())
}

impl Lock {
    /// Writes the record of who has the role; it names at least a `pid`.
    pub fn publish(&self, record: &impl Serialize) -> Result<(), CliError> {
        let text = serde_json::to_vec(record).expect("plain values are JSON");
        private::replace(&self.record, &text).map_err(|error| private::refused(&self.record, "write", &error))
    }

    /// Writes that this process has the role.
    pub fn publish_pid(&self) -> Result<(), CliError> {
        self.publish(&Holder { pid: std::process::id() })
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // A record left behind is recognised by the lock that nobody holds.
        let _ = fs::remove_file(&self.record);
    }
}

/// Why the process that wrote a log from byte `from` on ended, if it said so: its last error, or what it panicked with.
pub fn last_error(path: &Path, from: u64) -> Option<String> {
    let text = tail(path, from)?;
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
    tail(path, 0)?.lines().rev().find(|line| !line.trim().is_empty()).map(|line| line.trim().to_owned())
}

fn tail(path: &Path, from: u64) -> Option<String> {
    let mut file = File::open(path).ok()?;
    let length = file.metadata().ok()?.len();
    // A log that is shorter by now was emptied, and begins anew.
    let from = if from > length { 0 } else { from };
    file.seek(SeekFrom::Start(from.max(length.saturating_sub(TAIL_BYTES)))).ok()?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// What every record says.
#[derive(Serialize, Deserialize)]
struct Holder {
    pid: u32,
}

fn read_record(data_dir: &Path) -> Option<ServerRecord> {
    serde_json::from_slice(&fs::read(path(data_dir, LockRole::Supervisor, "json")).ok()?).ok()
}

fn read_pid(data_dir: &Path, role: LockRole) -> Option<u32> {
    let holder: Holder = serde_json::from_slice(&fs::read(path(data_dir, role, "json")).ok()?).ok()?;
    Some(holder.pid)
}

fn path(data_dir: &Path, role: LockRole, kind: &str) -> PathBuf {
    data_dir.join(match role {
        LockRole::Supervisor => format!("supervisor.{kind}"),
        LockRole::Up => format!("up.{kind}"),
        LockRole::Node(node) => format!("node-{node}.{kind}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_supervisor_a_data_dir() {
        let folder = tempfile::tempdir().unwrap();
        let data_dir = folder.path().join("data");
        assert_eq!(running(&data_dir), None);
        let record = ServerRecord {
            pid: 7,
            admin: "127.0.0.1:7401".parse().unwrap(),
            api: None,
            admin_tls: false,
            api_tls: false,
            listen: "127.0.0.1:7400".parse().unwrap(),
        };
        let held = lock(&data_dir, "north", LockRole::Supervisor).unwrap();
        held.publish(&record).unwrap();
        assert_eq!(running(&data_dir), Some(record));
        let refused = lock(&data_dir, "north", LockRole::Supervisor).unwrap_err();
        assert_eq!(refused.exit, Exit::NotFound);
        assert!(refused.message.contains("process 7 (admin API http://127.0.0.1:7401)"), "{}", refused.message);
        drop(held);
        assert_eq!(running(&data_dir), None);
        lock(&data_dir, "north", LockRole::Supervisor).unwrap();
    }

    #[test]
    fn a_killed_supervisor_is_still_served_while_up_lives() {
        let folder = tempfile::tempdir().unwrap();
        let data_dir = folder.path();
        let up = lock(data_dir, "north", LockRole::Up).unwrap();
        up.publish_pid().unwrap();
        assert_eq!((keeper(data_dir), served(data_dir)), (Some(std::process::id()), None));
        let record = ServerRecord {
            pid: 7,
            admin: "127.0.0.1:7401".parse().unwrap(),
            api: None,
            admin_tls: false,
            api_tls: false,
            listen: "127.0.0.1:7400".parse().unwrap(),
        };
        // What a killed process leaves: its record, and a lock that nobody holds.
        fs::write(path(data_dir, LockRole::Supervisor, "json"), serde_json::to_vec(&record).unwrap()).unwrap();
        assert_eq!((running(data_dir), served(data_dir)), (None, Some(record)));
        drop(up);
        assert_eq!((keeper(data_dir), served(data_dir)), (None, None));
    }

    #[test]
    fn the_last_error_of_a_log_is_its_cause() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.log");
        assert_eq!(last_error(&path, 0), None);
        let first = "INFO joined\nerror: no such tensor\nnext: look\n\n";
        fs::write(&path, first).unwrap();
        assert_eq!(last_error(&path, 0).as_deref(), Some("no such tensor"));
        assert_eq!(last_error(&path, first.len() as u64), None, "an earlier life");
        assert_eq!(last_error(&path, 1000).as_deref(), Some("no such tensor"), "it was emptied since");
        assert_eq!(last_line(&path).as_deref(), Some("next: look"));
        fs::write(&path, "INFO joined\nthread 'main' (7) panicked at a.rs:1:\nno room\nnote: more\n").unwrap();
        assert_eq!(last_error(&path, 0).as_deref(), Some("thread 'main' (7) panicked at a.rs:1: no room"));
        fs::write(&path, "INFO joined\n").unwrap();
        assert_eq!(last_error(&path, 0), None);
    }
}
