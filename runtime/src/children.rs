//! The host processes of this machine, as children of the supervisor. Starts, watches and ends them; decides nothing.
//!
//! A child holds the reading end of a pipe whose writing end is ours: however we end, it reads the end and ends too.

use std::{
    collections::BTreeMap,
    fs::File,
    net::{SocketAddr, UdpSocket},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use tokio::{
    process::{Child, Command},
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::timeout,
};

use crate::{
    cluster::{Cluster, Host},
    data_dir,
    error::CliError,
};

/// How a child ended.
#[derive(Clone, Debug)]
pub struct Exited {
    /// The host.
    pub host: String,
    /// Exit status and the last line of its log.
    pub cause: String,
}

/// Running host processes.
pub struct Children {
    running: BTreeMap<String, Running>,
}

struct Running {
    pid: Option<u32>,
    end: oneshot::Sender<()>,
    watcher: JoinHandle<()>,
}

/// Where children find their configuration and their supervisor.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The cluster file.
    pub file: PathBuf,
    /// Where the supervisor listens.
    pub supervisor: SocketAddr,
}

impl Children {
    /// Starts every host of this machine. Each end is told to `exits`.
    pub fn start(cluster: &Cluster, launch: &Launch, exits: &mpsc::UnboundedSender<Exited>) -> Result<Self, CliError> {
        let mut running = BTreeMap::new();
        for host in local_hosts(cluster) {
            running.insert(host.name.clone(), start_one(cluster, host, launch, exits.clone())?);
        }
        Ok(Self { running })
    }

    /// Process ids by host.
    pub fn pids(&self) -> BTreeMap<String, u32> {
        self.running.iter().filter_map(|(host, child)| Some((host.clone(), child.pid?))).collect()
    }

    /// Waits `grace` for every child to end by itself, then ends those that have not.
    pub async fn stop(self, grace: Duration) {
        let deadline = tokio::time::Instant::now() + grace;
        for (_, mut child) in self.running {
            if tokio::time::timeout_at(deadline, &mut child.watcher).await.is_err() {
                let _ = child.end.send(());
                let _ = child.watcher.await;
            }
        }
    }
}

/// Hosts whose node is this machine: its address can be listened on here.
pub fn local_hosts(cluster: &Cluster) -> Vec<&Host> {
    let is_local = |host: &&Host| UdpSocket::bind((host.address.ip(), 0)).is_ok();
    cluster.hosts.iter().filter(is_local).collect()
}

fn start_one(
    cluster: &Cluster,
    host: &Host,
    launch: &Launch,
    exits: mpsc::UnboundedSender<Exited>,
) -> Result<Running, CliError> {
    let log = data_dir::log_file(&cluster.data_dir, &host.name);
    let failed = |error: std::io::Error| {
        CliError::unreachable(format!("cannot start host '{}': {error}", host.name))
            .hint(format!("see {}", log.display()))
    };
    let program = std::env::current_exe().map_err(failed)?;
    let mut child = Command::new(program)
        .arg("host")
        .arg("--name")
        .arg(&host.name)
        .arg("--file")
        .arg(&launch.file)
        .arg("--supervisor")
        .arg(launch.supervisor.to_string())
        .arg("--end-with-stdin")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(File::create(&log).map_err(failed)?)
        .kill_on_drop(true)
        // Ctrl-C reaches the supervisor alone, which then ends its hosts in order.
        .process_group(0)
        .spawn()
        .map_err(failed)?;
    let pid = child.id();
    let (end, ended) = oneshot::channel();
    let name = host.name.clone();
    let watcher = tokio::spawn(async move {
        let pipe = child.stdin.take();
        let cause = outcome(&mut child, ended, &log).await;
        drop(pipe);
        // A supervisor that is gone has no use for the news.
        let _ = exits.send(Exited { host: name, cause });
    });
    Ok(Running { pid, end, watcher })
}

async fn outcome(child: &mut Child, ended: oneshot::Receiver<()>, log: &Path) -> String {
    let status = tokio::select! {
        status = child.wait() => status,
        Ok(()) = ended => {
            let _ = child.start_kill();
            match timeout(Duration::from_secs(5), child.wait()).await {
                Ok(status) => status,
                Err(_) => return "its process does not end when killed".into(),
            }
        }
    };
    let status = match status {
        Ok(status) => status.to_string(),
        Err(error) => format!("unknown: {error}"),
    };
    match data_dir::last_error(log) {
        Some(line) => format!("its process ended ({status}): {line}"),
        None => format!("its process ended ({status})"),
    }
}
