//! The agent of a node: starts the processes of its hosts, starts again those that end, kills one on order. Places no work.

mod process;
mod state;
mod tie;

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs,
    future::pending,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use asterism_transport::Places;
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
};

pub use super::condition::{Watched, WatchedProcess, Watching};
use crate::{
    cluster::{Cluster, Host, file::with_own_paths},
    data_dir::{self, private, start_file::StartFile},
    error::CliError,
    globals,
    processes::condition::ProcessLife,
};
pub use process::{ChildEnd, Process, signal};
pub use state::{Ending, Fate, Restarts};
pub use tie::SupervisorTie;

/// A host joins before it loads its model: its attempts to join end by themselves after ten seconds.
const JOIN_WITHIN: Duration = Duration::from_secs(30);

/// A process that has left its supervisor ends within so long.
const LEAVES_WITHIN: Duration = Duration::from_secs(10);

/// The process of a host ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostExit {
    /// The host.
    pub host: String,
    /// Number of the process.
    pub start: u64,
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
    /// The program that hosts run.
    pub program: PathBuf,
    /// The cluster file.
    pub file: StartFile,
    /// Where the supervisor listens: at one of these places.
    pub supervisor: Places,
    /// A host that has not joined so long after its start is ended.
    pub join_within: Duration,
}

impl Launch {
    /// Hosts run this program.
    ///
    /// # Errors
    /// When the system does not say where this program lies.
    pub fn new(file: StartFile, supervisor: impl Into<Places>) -> Result<Self, CliError> {
        let program = std::env::current_exe()
            .map_err(|error| CliError::unreachable(format!("the path of this program is not known: {error}")))?;
        Ok(Self { program, file, supervisor: supervisor.into(), join_within: JOIN_WITHIN })
    }
}

/// The running hosts of a node; clones are of the same ones.
#[derive(Clone)]
pub struct NodeAgent {
    kept: Arc<KeptProcesses>,
}

/// The processes of a node, and what one that is to be kept too is started with.
struct KeptProcesses {
    processes: Mutex<Vec<KeptProcess>>,
    launch: Launch,
    starts: Arc<Starts>,
    exits: mpsc::UnboundedSender<HostExit>,
    given_up: Arc<Mutex<Vec<HostExit>>>,
    running: watch::Sender<usize>,
}

/// A process that is kept running.
struct KeptProcess {
    hosts: Vec<String>,
    /// They are on it together.
    node: String,
    orders: mpsc::UnboundedSender<Command>,
    life: watch::Receiver<Option<ProcessLife>>,
    task: JoinHandle<()>,
}

enum Command {
    Kill { start: u64 },
    Start,
    Stop { grace: Duration },
}

/// Everything a process's keeper works with.
struct ProcessKeeper {
    hosts: Vec<String>,
    log: PathBuf,
    launch: Launch,
    starts: Arc<Starts>,
    orders: mpsc::UnboundedReceiver<Command>,
    life: watch::Sender<Option<ProcessLife>>,
    exits: mpsc::UnboundedSender<HostExit>,
    given_up: Arc<Mutex<Vec<HostExit>>>,
    origin: Instant,
    restarts: Restarts,
    /// When somebody wanted the process started while it was not over yet.
    wanted: Option<Instant>,
    /// Processes of the node that are not given up.
    running: watch::Sender<usize>,
}

impl NodeAgent {
    /// Starts `hosts`. Every end of one comes out of the receiver.
    pub fn start(cluster: &Cluster, hosts: &[&Host], launch: &Launch) -> (Self, mpsc::UnboundedReceiver<HostExit>) {
        let (exits, ended) = mpsc::unbounded_channel();
        let kept = KeptProcesses {
            processes: Mutex::default(),
            launch: launch.clone(),
            starts: Arc::new(Starts::load(&cluster.data_dir)),
            exits,
            given_up: Arc::default(),
            running: watch::channel(0).0,
        };
        let agent = Self { kept: Arc::new(kept) };
        agent.add(cluster, hosts);
        (agent, ended)
    }

    /// Keeps these running too, from now on.
    pub fn add(&self, cluster: &Cluster, hosts: &[&Host]) {
        let KeptProcesses { launch, starts, exits, given_up, running, .. } = self.kept.as_ref();
        let processes = by_process(hosts);
        running.send_modify(|running| *running += processes.len());
        for (process, hosts) in processes {
            let log = data_dir::log_file(&cluster.data_dir, process);
            // What earlier runs logged would be read as the cause of today's ends.
            let _ = fs::remove_file(&log);
            let (orders, ordered) = mpsc::unbounded_channel();
            let (life, seen) = watch::channel(None);
            let keeper = ProcessKeeper {
                hosts: hosts.clone(),
                log,
                launch: launch.clone(),
                starts: starts.clone(),
                orders: ordered,
                life,
                exits: exits.clone(),
                given_up: given_up.clone(),
                origin: Instant::now(),
                restarts: Restarts::new(cluster.max_restarts),
                wanted: None,
                running: running.clone(),
            };
            let task = tokio::spawn(keeper.keep());
            let node = cluster.host(&hosts[0]).map(|host| host.node.clone()).unwrap_or_default();
            self.processes().push(KeptProcess { hosts, node, orders, life: seen, task });
        }
    }

    fn processes(&self) -> MutexGuard<'_, Vec<KeptProcess>> {
        self.kept.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a host's process is kept here.
    pub fn keeps(&self, host: &str) -> bool {
        self.processes().iter().any(|kept| kept.hosts.iter().any(|known| known == host))
    }

    /// Ends a host's process with no warning if it still is the one of this number; the restart rules then apply. The hosts that it
    /// shares it with end with it.
    pub fn kill(&self, host: &str, start: u64) {
        self.order(host, Command::Kill { start });
    }

    /// Starts a host's process that has ended and is not about to be started again, whyever it ended.
    pub fn start_host(&self, host: &str) {
        self.order(host, Command::Start);
    }

    fn order(&self, host: &str, command: Command) {
        let processes = self.processes();
        if let Some(kept) = processes.iter().find(|kept| kept.hosts.iter().any(|known| known == host)) {
            // One that is kept no more was told to stop.
            let _ = kept.orders.send(command);
        }
    }

    /// The node that a host which is kept here is on.
    pub fn node_of(&self, host: &str) -> Option<String> {
        let processes = self.processes();
        processes.iter().find(|kept| kept.hosts.iter().any(|known| known == host)).map(|kept| kept.node.clone())
    }

    /// From now on hosts are started from a cluster file of this text, but for the paths that this machine has for itself. Returns what it
    /// says here.
    ///
    /// # Errors
    /// When it cannot be read, or contradicts itself; hosts are then started as before.
    pub fn start_from(&self, text: &str) -> Result<Cluster, CliError> {
        let file = &self.kept.launch.file;
        let [new, own] = [globals::as_typed(text), globals::as_typed(&file.text())];
        let file_here = with_own_paths(new.map_err(CliError::usage)?, &own.map_err(CliError::usage)?);
        let text = toml::to_string_pretty(&file_here).expect("the typed file is TOML");
        let cluster = globals::resolved(&text, file.beside())?;
        file.replace(&text);
        Ok(cluster)
    }

    /// The processes of its hosts on a node, to be looked at.
    pub fn of_node(&self, node: &str) -> Vec<WatchedProcess> {
        let processes = self.processes();
        let of_node = processes.iter().filter(|kept| kept.node == node);
        of_node.map(|kept| (kept.hosts.clone(), kept.life.clone())).collect()
    }

    /// Process ids by host.
    pub fn pids(&self) -> BTreeMap<String, u32> {
        let of_process = |kept: &KeptProcess| {
            let life = *kept.life.borrow();
            kept.hosts.iter().filter_map(|host| Some((host.clone(), life?.pid))).collect::<Vec<_>>()
        };
        self.processes().iter().flat_map(of_process).collect()
    }

    /// Hosts that are not started again, with their last end.
    pub fn given_up(&self) -> Vec<HostExit> {
        self.kept.given_up.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Completes when every host was given up.
    pub async fn done(&self) {
        // The sender is ours, so that waiting cannot fail.
        let _ = self.kept.running.subscribe().wait_for(|running| *running == 0).await;
    }

    /// Asks every host to end, kills those that have not within `grace`, and starts none again.
    pub async fn stop(self, grace: Duration) {
        let processes = std::mem::take(&mut *self.processes());
        for kept in &processes {
            let _ = kept.orders.send(Command::Stop { grace });
        }
        for kept in processes {
            let _ = kept.task.await;
        }
    }
}

/// Processes and the hosts that each is of, in their order.
fn by_process<'a>(hosts: &[&'a Host]) -> Vec<(&'a str, Vec<String>)> {
    let mut processes: Vec<(&str, Vec<String>)> = Vec::new();
    for host in hosts {
        match processes.iter_mut().find(|(process, _)| *process == host.process) {
            Some((_, hosts)) => hosts.push(host.name.clone()),
            None => processes.push((&host.process, vec![host.name.clone()])),
        }
    }
    processes
}

impl ProcessKeeper {
    /// Starts the process again and again until it is told to stop; one that is done or given up, when somebody wants that.
    async fn keep(mut self) {
        loop {
            let start = self.starts.next();
            self.restarts.started(self.origin.elapsed());
            let (ended, stopped) = self.live(start).await;
            self.life.send_replace(None);
            let fate = match stopped {
                true => Fate::Finished,
                false => self.restarts.ended(self.origin.elapsed(), ended.ending),
            };
            for host in &self.hosts {
                let exit = HostExit { host: host.clone(), start, cause: ended.cause.clone(), fate: fate.clone() };
                if let Fate::GivenUp { .. } = &fate {
                    self.given_up.lock().unwrap_or_else(PoisonError::into_inner).push(exit.clone());
                }
                // Whoever does not listen any more has no use for the news.
                let _ = self.exits.send(exit);
            }
            let over = stopped
                || match &fate {
                    Fate::Restarting { after } => self.stopped_within(*after).await,
                    _ if self.is_wanted() => false,
                    Fate::Finished => !self.wanted_again().await,
                    Fate::GivenUp { .. } => {
                        self.running.send_modify(|running| *running -= 1);
                        let wanted = self.wanted_again().await;
                        self.running.send_modify(|running| *running += 1);
                        !wanted
                    }
                };
            if over {
                return self.running.send_modify(|running| *running -= 1);
            }
        }
    }

    /// Whether somebody wanted it started a moment before it ended.
    fn is_wanted(&mut self) -> bool {
        let wanted = self.wanted.take().is_some_and(|since| since.elapsed() < LEAVES_WITHIN);
        if wanted {
            self.restarts.begin_anew();
        }
        wanted
    }

    /// Waits until somebody wants a process that has ended started; false when it is to stay as it is.
    async fn wanted_again(&mut self) -> bool {
        loop {
            match self.orders.recv().await {
                Some(Command::Start) => break,
                // There is none of that number.
                Some(Command::Kill { .. }) => {}
                Some(Command::Stop { .. }) | None => return false,
            }
        }
        self.given_up.lock().unwrap_or_else(PoisonError::into_inner).retain(|exit| !self.hosts.contains(&exit.host));
        self.restarts.begin_anew();
        true
    }

    /// One life of the process; true when it ended because it was told to stop.
    async fn live(&mut self, start: u64) -> (ChildEnd, bool) {
        let arguments = arguments(&self.hosts, &self.launch, start);
        let mut process = match Process::start_program(&self.launch.program, arguments, &self.log) {
            Ok(process) => process,
            Err(error) => return (ChildEnd::failed(format!("its process cannot be started: {error}")), false),
        };
        self.life.send_replace(process.pid().map(|pid| ProcessLife { start, pid }));
        tracing::debug!(hosts = self.hosts.join(", "), start, pid = process.pid(), "started");
        let (mut report, limit) = (process.report(), self.launch.join_within);
        loop {
            let due = self.restarts.report_due(limit);
            tokio::select! {
                ended = process.wait() => return (ended, false),
                () = report.acknowledged(), if due.is_some() => self.restarts.reported(self.origin.elapsed()),
                () = moment(due.map(|due| self.origin + due)) => {
                    let ended = process.kill().await;
                    let cause = format!("it had not joined the supervisor within {} s", limit.as_secs_f64());
                    return (ChildEnd::failed(format!("{cause}; {}", ended.cause)), false);
                }
                command = self.orders.recv() => match command {
                    Some(Command::Kill { start: wanted }) if wanted == start => {
                        return (process.kill().await, false);
                    }
                    // It is another one.
                    Some(Command::Kill { .. }) => {}
                    // Whoever wants it started saw it leave, and it has not ended yet.
                    Some(Command::Start) => self.wanted = Some(Instant::now()),
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
                Ok(Some(Command::Kill { .. } | Command::Start)) => {}
                Ok(Some(Command::Stop { .. }) | None) => return true,
            }
        }
    }
}

/// Completes at `time`; never where there is none.
async fn moment(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time.into()).await,
        None => pending().await,
    }
}

fn arguments(hosts: &[String], launch: &Launch, start: u64) -> Vec<OsString> {
    let names = hosts.iter().flat_map(|host| ["--name".into(), host.into()]);
    let rest =
        ["--supervisor".into(), launch.supervisor.to_string().into(), "--start".into(), start.to_string().into()];
    [OsString::from("run-host")].into_iter().chain(names).chain(launch.file.arguments()).chain(rest).collect()
}

/// Numbers that grow from start to start, whatever the clock does: the last one is kept in a file.
struct Starts {
    last: Mutex<u64>,
    file: PathBuf,
}

impl Starts {
    fn load(data_dir: &Path) -> Self {
        let file = data_dir.join("starts");
        let last = fs::read_to_string(&file).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        Self { last: Mutex::new(last), file }
    }

    fn next(&self) -> u64 {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        *last = now_ns().max(last.saturating_add(1));
        if let Err(error) = private::replace(&self.file, last.to_string().as_bytes()) {
            tracing::warn!(file = %self.file.display(), %error, "the last number of a start cannot be kept");
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
    use std::{fs::Permissions, os::unix::fs::PermissionsExt};

    use super::*;
    use crate::cluster::{file as cluster_file, sample::SAMPLE};

    #[test]
    fn starts_grow_though_the_clock_goes_back() {
        let folder = tempfile::tempdir().unwrap();
        let future = now_ns() + (1 << 60);
        fs::write(folder.path().join("starts"), future.to_string()).unwrap();
        let starts = Starts::load(folder.path());
        assert_eq!([starts.next(), starts.next()], [future + 1, future + 2]);
        assert_eq!(Starts::load(folder.path()).next(), future + 3);
    }

    /// A program that joins at once unless it is `context-1`, and then lives for as long as its parent.
    const PROGRAM: &str = "#!/bin/sh\n[ \"$3\" = context-1 ] || echo joined\nread line\n";

    #[tokio::test]
    async fn a_host_that_never_joins_is_ended_and_started_again() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("host");
        fs::write(&program, PROGRAM).unwrap();
        fs::set_permissions(&program, Permissions::from_mode(0o700)).unwrap();
        let file = cluster_file::parse(SAMPLE, []).unwrap();
        let mut cluster = Cluster::resolve(&file, folder.path()).unwrap();
        (cluster.data_dir, cluster.max_restarts) = (folder.path().to_owned(), 1);
        let log = data_dir::log_file(&cluster.data_dir, "context-1");
        fs::create_dir_all(log.parent().unwrap()).unwrap();
        let hosts: Vec<_> = ["context-0", "context-1"].map(|name| cluster.host(name).unwrap()).into();
        let start_file = StartFile::new(folder.path().join("up.toml"), folder.path(), SAMPLE.into());
        let launch =
            Launch { program, join_within: Duration::from_secs(1), ..Launch::new(start_file, cluster.listen).unwrap() };

        let (agent, mut exits) = NodeAgent::start(&cluster, &hosts, &launch);
        let [first, second] = [exits.recv().await.unwrap(), exits.recv().await.unwrap()];
        assert_eq!([first.host.as_str(), second.host.as_str()], ["context-1"; 2], "the other one joined: {first:?}");
        assert!(first.cause.starts_with("it had not joined the supervisor within 1 s"), "{}", first.cause);
        assert!(first.cause.contains("signal: 9"), "{}", first.cause);
        assert!(first.restarting() && second.start > first.start, "{second:?}");
        assert_eq!(agent.given_up(), [second], "the restart limit holds");
        assert_eq!(agent.pids().into_keys().collect::<Vec<_>>(), ["context-0"]);
        agent.stop(Duration::from_secs(60)).await;
        assert_eq!(exits.recv().await.map(|exit| (exit.host, exit.fate)), Some(("context-0".into(), Fate::Finished)));
    }
}
