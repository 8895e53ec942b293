//! The agent of a node: starts its host processes, starts again those that end, kills one on order. Places no work.

mod process;
mod state;
mod tie;

use std::{
    collections::BTreeMap,
    fs,
    net::{SocketAddr, UdpSocket},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
};

use crate::{
    cluster::{Cluster, Host},
    data_dir,
};
pub use process::{Ended, Process, signal};
pub use state::{Ending, Fate, Restarts};
pub use tie::Tie;

/// A host process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostExit {
    /// The host.
    pub host: String,
    /// Which of its lives.
    pub incarnation: u64,
    /// Exit status and the last error of its log.
    pub cause: String,
    /// What the agent does about it.
    pub fate: Fate,
}

impl HostExit {
    /// Whether it is started again.
    pub fn restarting(&self) -> bool {
        matches!(self.fate, Fate::Restarting { .. })
    }
}

/// Where hosts find their configuration and their supervisor.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The cluster file.
    pub file: PathBuf,
    /// Where the supervisor listens.
    pub supervisor: SocketAddr,
}

/// The running hosts of a node.
pub struct NodeAgent {
    hosts: BTreeMap<String, Kept>,
    given_up: Arc<Mutex<Vec<HostExit>>>,
    running: watch::Sender<usize>,
}

/// A host that is kept running.
struct Kept {
    orders: mpsc::UnboundedSender<Command>,
    pid: watch::Receiver<Option<u32>>,
    task: JoinHandle<()>,
}

enum Command {
    Kill { incarnation: u64 },
    Stop { grace: Duration },
}

/// Where kills of an agent's hosts are ordered.
pub struct Orders(BTreeMap<String, mpsc::UnboundedSender<Command>>);

impl Orders {
    /// Ends a host's process with no warning if it still is of this incarnation; the restart rules then apply.
    pub fn kill(&self, host: &str, incarnation: u64) {
        if let Some(orders) = self.0.get(host) {
            // A host that is kept no more has no process.
            let _ = orders.send(Command::Kill { incarnation });
        }
    }
}

/// Everything a host's keeper works with.
struct Keeper {
    host: String,
    log: PathBuf,
    launch: Launch,
    incarnations: Arc<Incarnations>,
    orders: mpsc::UnboundedReceiver<Command>,
    pid: watch::Sender<Option<u32>>,
    exits: mpsc::UnboundedSender<HostExit>,
    given_up: Arc<Mutex<Vec<HostExit>>>,
}

impl NodeAgent {
    /// Starts `hosts`. Every end of one comes out of the receiver.
    pub fn start(cluster: &Cluster, hosts: &[&Host], launch: &Launch) -> (Self, mpsc::UnboundedReceiver<HostExit>) {
        let (exits, ended) = mpsc::unbounded_channel();
        let incarnations = Arc::new(Incarnations::load(&cluster.data_dir));
        let given_up = Arc::default();
        let (running, _) = watch::channel(hosts.len());
        let mut kept = BTreeMap::new();
        for host in hosts {
            let log = data_dir::log_file(&cluster.data_dir, &host.name);
            // What earlier runs logged would be read as the cause of today's ends.
            let _ = fs::remove_file(&log);
            let (orders, ordered) = mpsc::unbounded_channel();
            let (pid, seen) = watch::channel(None);
            let keeper = Keeper {
                host: host.name.clone(),
                log,
                launch: launch.clone(),
                incarnations: incarnations.clone(),
                orders: ordered,
                pid,
                exits: exits.clone(),
                given_up: Arc::clone(&given_up),
            };
            let (running, max_restarts) = (running.clone(), cluster.max_restarts);
            let task = tokio::spawn(async move {
                keeper.keep(max_restarts).await;
                running.send_modify(|running| *running -= 1);
            });
            kept.insert(host.name.clone(), Kept { orders, pid: seen, task });
        }
        (Self { hosts: kept, given_up, running }, ended)
    }

    /// Where kills are ordered.
    pub fn orders(&self) -> Orders {
        Orders(self.hosts.iter().map(|(host, kept)| (host.clone(), kept.orders.clone())).collect())
    }

    /// Process ids by host.
    pub fn pids(&self) -> BTreeMap<String, u32> {
        self.hosts.iter().filter_map(|(host, kept)| Some((host.clone(), (*kept.pid.borrow())?))).collect()
    }

    /// Hosts that are not started again, with their last end.
    pub fn given_up(&self) -> Vec<HostExit> {
        self.given_up.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Completes when no host runs and none is started again.
    pub async fn done(&self) {
        // The sender is ours, so that waiting cannot fail.
        let _ = self.running.subscribe().wait_for(|running| *running == 0).await;
    }

    /// Asks every host to end, kills those that have not within `grace`, and starts none again.
    pub async fn stop(self, grace: Duration) {
        for kept in self.hosts.values() {
            let _ = kept.orders.send(Command::Stop { grace });
        }
        for kept in self.hosts.into_values() {
            let _ = kept.task.await;
        }
    }
}

/// Hosts whose node is this machine: its address can be listened on here.
pub fn local_hosts(cluster: &Cluster) -> Vec<&Host> {
    let is_local = |host: &&Host| UdpSocket::bind((host.address.ip(), 0)).is_ok();
    cluster.hosts.iter().filter(is_local).collect()
}

impl Keeper {
    /// Starts the host again and again until it is done, given up, or told to stop.
    async fn keep(mut self, max_restarts: u32) {
        let origin = Instant::now();
        let mut restarts = Restarts::new(max_restarts);
        loop {
            let incarnation = self.incarnations.next();
            restarts.started(origin.elapsed());
            let (ended, stopped) = self.live(incarnation).await;
            self.pid.send_replace(None);
            let fate = if stopped { Fate::Finished } else { restarts.ended(origin.elapsed(), ended.ending) };
            let exit = HostExit { host: self.host.clone(), incarnation, cause: ended.cause, fate: fate.clone() };
            if let Fate::GivenUp { .. } = &fate {
                self.given_up.lock().unwrap_or_else(PoisonError::into_inner).push(exit.clone());
            }
            // Whoever does not listen any more has no use for the news.
            let _ = self.exits.send(exit);
            let Fate::Restarting { after } = fate else { return };
            if self.stopped_within(after).await {
                return;
            }
        }
    }

    /// One life of the host; true when it ended because it was told to stop.
    async fn live(&mut self, incarnation: u64) -> (Ended, bool) {
        let arguments = arguments(&self.host, &self.launch, incarnation);
        let mut process = match Process::start(arguments, &self.log) {
            Ok(process) => process,
            Err(error) => return (Ended::failed(format!("its process cannot be started: {error}")), false),
        };
        self.pid.send_replace(process.pid());
        tracing::debug!(host = self.host, incarnation, pid = process.pid(), "started");
        loop {
            tokio::select! {
                ended = process.wait() => return (ended, false),
                command = self.orders.recv() => match command {
                    Some(Command::Kill { incarnation: wanted }) if wanted == incarnation => {
                        return (process.kill().await, false);
                    }
                    Some(Command::Kill { .. }) => {}
                    Some(Command::Stop { grace }) => return (process.stop(grace).await, true),
                    None => return (process.kill().await, true),
                },
            }
        }
    }

    /// Waits; true when told to stop meanwhile.
    async fn stopped_within(&mut self, wait: Duration) -> bool {
        let deadline = tokio::time::Instant::now() + wait;
        loop {
            match tokio::time::timeout_at(deadline, self.orders.recv()).await {
                Err(_) => return false,
                Ok(Some(Command::Kill { .. })) => {}
                Ok(Some(Command::Stop { .. }) | None) => return true,
            }
        }
    }
}

fn arguments(host: &str, launch: &Launch, incarnation: u64) -> Vec<std::ffi::OsString> {
    vec![
        "run-host".into(),
        "--name".into(),
        host.into(),
        "--file".into(),
        launch.file.clone().into(),
        "--supervisor".into(),
        launch.supervisor.to_string().into(),
        "--incarnation".into(),
        incarnation.to_string().into(),
    ]
}

/// Numbers that grow from start to start, whatever the clock does: the last one is kept in a file.
struct Incarnations {
    last: Mutex<u64>,
    file: PathBuf,
}

impl Incarnations {
    fn load(data_dir: &Path) -> Self {
        let file = data_dir.join("incarnation");
        let last = fs::read_to_string(&file).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        Self { last: Mutex::new(last), file }
    }

    fn next(&self) -> u64 {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        *last = now_ns().max(last.saturating_add(1));
        if let Err(error) = fs::write(&self.file, last.to_string()) {
            tracing::warn!(file = %self.file.display(), %error, "the last incarnation cannot be kept");
        }
        *last
    }
}

/// Nanoseconds since 1970, as the clock has it.
pub fn now_ns() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since_epoch.as_nanos().min(u64::MAX.into()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incarnations_grow_though_the_clock_goes_back() {
        let folder = tempfile::tempdir().unwrap();
        let future = now_ns() + (1 << 60);
        fs::write(folder.path().join("incarnation"), future.to_string()).unwrap();
        let incarnations = Incarnations::load(folder.path());
        assert_eq!([incarnations.next(), incarnations.next()], [future + 1, future + 2]);
        assert_eq!(Incarnations::load(folder.path()).next(), future + 3);
    }
}
