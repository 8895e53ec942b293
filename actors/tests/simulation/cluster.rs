//! The processes of a simulated cluster: started, ended and found. Decides nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash, Hasher},
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, atomic::Ordering},
    time::Duration,
};

use asterism_actors::{HostConfig, HostError, Transports, api::JobPhase, host, machine, supervisor::Supervisor};
use asterism_transport::{
    NoObserver, Transport,
    sim::{Draw, Faults, SimConfig, SimNetwork},
};
use tokio::{
    sync::{Notify, mpsc},
    task::AbortHandle,
    time::{Instant, sleep},
};

use crate::{
    disk::Disk,
    misreading::{Misreading, Misreads},
    model::Model,
    scenario::{Peer, Scenario},
};

/// A host's process that ended: its number, its start and why.
pub type Exit = (usize, u64, String);

/// A simulated cluster.
pub struct Cluster {
    pub scenario: Scenario,
    pub network: SimNetwork,
    pub disk: Disk,
    began: Instant,
    state: Mutex<State>,
    /// CallPiece when a job enters a phase, a session is made, or a supervisor comes.
    pub moved: Notify,
}

struct State {
    draw: Draw,
    /// The one that runs, and how many there were.
    supervisor: (Option<Listening>, u64),
    hosts: BTreeMap<usize, Process>,
    exits: Vec<mpsc::UnboundedSender<Exit>>,
    /// Where a process ended without a word, and who was to hear one.
    silent: BTreeMap<SocketAddr, Vec<SocketAddr>>,
    /// What jobs do, by their ids, and what any has done so far.
    phases: BTreeMap<String, JobPhase>,
    entered: Vec<JobPhase>,
    sessions: BTreeSet<usize>,
    closing: bool,
    failure: Option<String>,
    trace: Option<Vec<String>>,
    fingerprint: DefaultHasher,
}

/// A supervisor, and what it listens on.
type Listening = (Supervisor, Arc<dyn Transport>);

struct Process {
    start: u64,
    transport: Arc<dyn Transport>,
    misreads: Misreads,
    task: AbortHandle,
}

fn address(network: u8, host: usize, port: u64) -> SocketAddr {
    SocketAddr::from(([10, 0, network, host as u8], port as u16))
}

/// Where every supervisor listens.
pub fn supervisor_address() -> SocketAddr {
    address(0, 1, 1)
}

/// Where a node's agent calls from.
pub fn node_address(node: usize) -> SocketAddr {
    address(1, node, 1)
}

impl Cluster {
    /// Nothing runs yet. Exits of a node's hosts go to its number in `exits`.
    pub fn new(seed: u64, scenario: Scenario, exits: Vec<mpsc::UnboundedSender<Exit>>, traced: bool) -> Arc<Self> {
        let network = SimNetwork::new(SimConfig::new(seed));
        let disk = Disk::new(scenario.disk);
        let state = State {
            draw: Draw::new(seed ^ 0xc0de),
            supervisor: (None, 0),
            hosts: BTreeMap::new(),
            exits,
            silent: BTreeMap::new(),
            phases: BTreeMap::new(),
            entered: Vec::new(),
            sessions: BTreeSet::new(),
            closing: false,
            failure: None,
            trace: traced.then(Vec::new),
            fingerprint: DefaultHasher::new(),
        };
        let cluster =
            Self { scenario, network, disk, began: Instant::now(), state: Mutex::new(state), moved: Notify::new() };
        cluster.network.set_faults(cluster.calm());
        Arc::new(cluster)
    }

    /// The network without faults.
    pub fn calm(&self) -> Faults {
        Faults { delay: self.scenario.delay.0..=self.scenario.delay.1, ..Faults::default() }
    }

    /// Simulated time so far.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }

    /// Something happened.
    pub fn note(&self, event: impl FnOnce() -> String) {
        let at = self.began.elapsed();
        let mut state = self.state();
        let event = event();
        (at, &event).hash(&mut state.fingerprint);
        if let Some(trace) = &mut state.trace {
            trace.push(format!("{:10.4} {event}", at.as_secs_f64()));
        }
    }

    /// Something that must not happen happened; the first stands.
    pub fn fail(&self, failure: String) {
        self.note(|| format!("FAILURE {failure}"));
        self.state().failure.get_or_insert(failure);
        self.moved.notify_waiters();
    }

    pub fn failure(&self) -> Option<String> {
        self.state().failure.clone()
    }

    /// Trace, fingerprint and simulated time.
    pub fn ended(&self) -> (Vec<String>, u64, Duration) {
        let mut state = self.state();
        (state.trace.take().unwrap_or_default(), state.fingerprint.finish(), self.began.elapsed())
    }

    /// A time within these, in milliseconds.
    pub fn draw(&self, from: u64, to: u64) -> Duration {
        let (from, to) = (Duration::from_millis(from), Duration::from_millis(to));
        self.state().draw.within(&(from..=to))
    }

    pub fn one_in(&self, times: usize) -> bool {
        self.state().draw.below(times) == 0
    }

    /// The supervisor that runs, and which one it is.
    pub fn supervisor(&self) -> Option<(Supervisor, u64)> {
        let state = self.state();
        state.supervisor.0.as_ref().map(|(supervisor, _)| (supervisor.clone(), state.supervisor.1))
    }

    /// Completes when something is as wanted.
    pub async fn wait_until(&self, wanted: impl Fn(&Self) -> bool) {
        loop {
            let moved = self.moved.notified();
            if wanted(self) {
                return;
            }
            moved.await;
        }
    }

    /// A job entered a phase, or ended.
    pub fn phase(&self, job: &str, phase: Option<JobPhase>) {
        let mut state = self.state();
        match phase {
            Some(phase) => {
                state.phases.insert(job.into(), phase);
                if !state.entered.contains(&phase) {
                    state.entered.push(phase);
                }
            }
            None => drop(state.phases.remove(job)),
        }
        drop(state);
        self.moved.notify_waiters();
    }

    pub fn has_entered(&self, phase: JobPhase) -> bool {
        self.state().entered.contains(&phase)
    }

    pub fn phases(&self) -> Vec<JobPhase> {
        self.state().phases.values().copied().collect()
    }

    pub fn session_made(&self, session: usize) {
        self.state().sessions.insert(session);
        self.moved.notify_waiters();
    }

    pub fn has_session(&self, session: usize) -> bool {
        self.state().sessions.contains(&session)
    }

    /// From now on nothing is started again.
    pub fn close(&self) {
        self.state().closing = true;
    }

    pub fn is_closing(&self) -> bool {
        self.state().closing
    }

    /// Whether no host runs.
    pub fn is_empty(&self) -> bool {
        self.state().hosts.is_empty()
    }

    /// Where a peer is now, if it runs.
    pub fn address_of(&self, peer: Peer) -> Option<SocketAddr> {
        let state = self.state();
        match peer {
            Peer::Supervisor => state.supervisor.0.as_ref().map(|(_, transport)| transport.local_address()),
            Peer::Host(host) => state.hosts.get(&host).map(|process| process.transport.local_address()),
        }
    }

    /// Addresses of the processes on a node.
    pub fn addresses_on(&self, node: usize) -> Vec<SocketAddr> {
        let state = self.state();
        let there = state.hosts.iter().filter(|(host, _)| self.scenario.nodes[**host] == node);
        there.map(|(_, process)| process.transport.local_address()).chain([node_address(node)]).collect()
    }

    /// Nothing comes from there or goes there any more.
    fn silence(&self, address: SocketAddr) {
        let others = self.network.addresses();
        self.network.partition(&[address], &others);
        self.state().silent.insert(address, others);
    }

    fn speak(&self, address: SocketAddr) {
        let others = self.state().silent.remove(&address);
        // Also those that do not run right now.
        others.into_iter().for_each(|others| self.network.heal(&[address], &others));
    }

    fn bind(&self, address: SocketAddr) -> Arc<dyn Transport> {
        self.speak(address);
        Arc::new(self.network.bind(address, Arc::new(NoObserver)).expect("nobody else listens there"))
    }

    pub fn bind_node(&self, node: usize) -> Arc<dyn Transport> {
        self.bind(node_address(node))
    }

    /// Starts a supervisor on the journal as it is.
    pub async fn start_supervisor(self: &Arc<Self>) {
        if self.is_closing() {
            return;
        }
        let transport = self.bind(supervisor_address());
        let front = Model::shared().front.clone();
        let mut config = self.scenario.config.clone();
        config.models[0].digest = front.digest.clone();
        match Supervisor::start(config, vec![front], transport.clone(), Box::new(self.disk.clone())).await {
            Ok(supervisor) => {
                self.note(|| "a supervisor begins".into());
                let mut state = self.state();
                state.supervisor = (Some((supervisor, transport)), state.supervisor.1 + 1);
                drop(state);
                self.moved.notify_waiters();
            }
            Err(error) => self.fail(format!("no supervisor starts: {error}")),
        }
    }

    /// It has ended in order.
    pub fn forget_supervisor(&self) {
        let ended = self.state().supervisor.0.take();
        drop(ended);
    }

    /// Ends the supervisor as a signal would; another one starts later.
    pub fn kill_supervisor(self: &Arc<Self>, quietly: bool) {
        let Some((supervisor, transport)) = self.state().supervisor.0.take() else { return };
        if quietly {
            self.silence(transport.local_address());
        }
        transport.close();
        supervisor.kill();
        let (again, cluster) = (self.draw(300, 4000), self.clone());
        self.note(|| format!("the supervisor ends, quietly: {quietly}"));
        tokio::spawn(async move {
            sleep(again).await;
            cluster.start_supervisor().await;
        });
    }

    /// Starts a host's process.
    pub fn start_host(self: &Arc<Self>, host: usize, start: u64) {
        if self.is_closing() {
            return;
        }
        let spec = &self.scenario.config.hosts[host];
        let (role, encodes, generates) = self.scenario.started_as(host);
        let (load, layer) = self.scenario.times[host];
        let inner = self.bind(address(2, host, if self.scenario.habits.0 { 1 } else { start }));
        let misreads = Misreads::default();
        let transport = Arc::new(Misreading { inner, misreads: misreads.clone() });
        let hands_over = Some(self.scenario.habits.1);
        let config = HostConfig {
            encodes,
            generates,
            hands_over,
            batching: self.scenario.batching,
            ..HostConfig::new(&spec.name, role, supervisor_address(), start)
        };
        let loader = Box::new(move || {
            machine::block_on(sleep(load));
            Ok(Model::shared().loaded(layer))
        });
        self.note(|| format!("{} starts ({start})", spec.name));
        let running = tokio::spawn(host::run(config, Transports::one(transport.clone()), loader));
        self.state().hosts.insert(host, Process { start, transport, misreads, task: running.abort_handle() });
        let cluster = self.clone();
        tokio::spawn(async move {
            let cause = match running.await {
                Ok(Ok(_)) => "it ended".into(),
                Ok(Err(error)) => cluster.judge_end(host, error),
                Err(error) if error.is_cancelled() => "signal 9".into(),
                Err(error) => {
                    cluster.fail(format!("host {host} panicked: {error}"));
                    "panic".into()
                }
            };
            cluster.host_ended(host, start, cause);
        });
    }

    fn judge_end(&self, host: usize, error: HostError) -> String {
        let known = matches!(error, HostError::Lost { .. } | HostError::Refused { .. } | HostError::Supervisor { .. });
        if !known {
            self.fail(format!("host {host} ended: {error}"));
        }
        error.to_string()
    }

    fn host_ended(&self, host: usize, start: u64, cause: String) {
        self.note(|| format!("{} ({start}) ends: {cause}", self.scenario.config.hosts[host].name));
        let mut state = self.state();
        // Dropped when nobody holds the lock: that closes it.
        let ended = state.hosts.remove(&host);
        let node = self.scenario.nodes[host];
        let _ = state.exits[node].send((host, start, cause));
        drop(state);
        drop(ended);
        self.moved.notify_waiters();
    }

    /// The ids that a host is told next it reads wrong.
    pub fn misread(&self, host: usize) -> bool {
        let state = self.state();
        state.hosts.get(&host).map(|process| process.misreads.store(true, Ordering::Relaxed)).is_some()
    }

    /// Ends a host's process as a signal would, if it runs and is this start of it.
    pub fn kill_host(&self, host: usize, start: Option<u64>, quietly: bool) -> bool {
        let found = {
            let state = self.state();
            let process = state.hosts.get(&host).filter(|process| start.is_none_or(|start| process.start == start));
            process.map(|process| (process.transport.clone(), process.task.clone()))
        };
        let Some((transport, task)) = found else { return false };
        if quietly {
            self.silence(transport.local_address());
        }
        transport.close();
        task.abort();
        true
    }
}
