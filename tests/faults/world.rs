//! One schedule from its first moment to its last check.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use asterism_actors::{api::JobPhase, store::MemoryStore, supervisor::Recovery};

use crate::{
    checks::Course,
    client::Client,
    clock::{Core, Happening, Pid, Time, What},
    coverage::Coverage,
    draw::Draw,
    host::{Host, HostConfig},
    network::Place,
    node::Node,
    scenario::{Scenario, Trigger},
    supervisor::Supervisor,
};

/// Events of a trace that are kept.
const KEPT_EVENTS: usize = 20_000;
const LIMIT: Time = 400_000_000;

/// A simulated cluster.
pub struct World {
    pub seed: u64,
    pub scenario: Scenario,
    pub core: Core,
    pub supervisor: Option<Supervisor>,
    pub journal: MemoryStore,
    pub hosts: BTreeMap<Pid, Host>,
    pub nodes: Vec<Node>,
    pub clients: Vec<Client>,
    pub sessions_made: BTreeSet<usize>,
    pub planned_faults: BTreeSet<usize>,
    /// Deeds of the operator that are done: each follows the one before.
    pub operated: usize,
    /// When the last fault and the operator's last deed are over.
    pub calm: Time,
    pub course: Course,
    trace: Option<VecDeque<String>>,
}

/// What came of a schedule.
pub struct Report {
    pub failure: Option<String>,
    pub trace: Vec<String>,
    pub coverage: Coverage,
    pub faults: String,
}

impl World {
    /// The cluster of a seed.
    pub fn new(seed: u64, traced: bool) -> Self {
        let scenario = Scenario::new(seed);
        let mut core = Core::new(Draw::new(seed ^ 0xc0de), scenario.quick_refusal);
        let mut nodes = Vec::new();
        for node in 0..scenario.node_count {
            let hosts: Vec<(usize, String)> = (0..scenario.nodes.len())
                .filter(|&host| scenario.nodes[host] == node)
                .map(|host| (host, scenario.config.hosts[host].name.clone()))
                .collect();
            // A node without hosts is in no cluster file.
            let pid = core.spawn(node, Place::Node(node), &format!("node-{node}"));
            nodes.push(Node::new(pid, format!("node-{node}"), &hosts));
        }
        core.at(0, Happening::Supervisor);
        for (number, fault) in scenario.faults.iter().enumerate() {
            if let Trigger::At(at) = fault.trigger {
                core.at(at, Happening::Fault(number));
            }
        }
        for (number, (at, _)) in scenario.operations.iter().enumerate() {
            core.at(*at, Happening::Operator(number));
        }
        let clients: Vec<Client> = scenario.jobs.iter().cloned().map(Client::new).collect();
        for (number, client) in clients.iter().enumerate() {
            core.at(client.spec.at, Happening::Client(number));
        }
        core.at(0, Happening::Check);
        let operated = scenario.operations.iter().map(|(at, _)| *at).max().unwrap_or(0);
        Self {
            seed,
            scenario,
            core,
            supervisor: None,
            journal: MemoryStore::default(),
            hosts: BTreeMap::new(),
            nodes,
            clients,
            sessions_made: BTreeSet::new(),
            planned_faults: BTreeSet::new(),
            operated: 0,
            calm: operated,
            course: Course::Faults,
            trace: traced.then(VecDeque::new),
        }
    }

    /// Runs to the end.
    pub fn run(mut self) -> Report {
        let failure = loop {
            let Some(happening) = self.core.next() else { break Some("nothing happens any more".to_string()) };
            if self.core.now > LIMIT {
                break Some(self.describe_stuck());
            }
            match self.happen(happening).and_then(|()| self.settle()) {
                Ok(()) if self.course == Course::Over => break None,
                Ok(()) => {}
                Err(failure) => break Some(failure),
            }
        };
        let faults = self.scenario.faults.iter().map(|fault| format!("{fault:?}")).collect::<Vec<_>>().join("\n  ");
        let trace = self.trace.unwrap_or_default().into();
        Report { failure, trace, coverage: self.core.coverage, faults }
    }

    /// Notes an event, when somebody wants to see it.
    pub fn note(&mut self, event: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            if trace.len() == KEPT_EVENTS {
                trace.pop_front();
            }
            trace.push_back(format!("{:10.4} {}", self.core.now as f64 / 1e6, event()));
        }
    }

    fn happen(&mut self, happening: Happening) -> Result<(), String> {
        match happening {
            Happening::Process(pid, what) => self.core.hand(pid, *what),
            Happening::Net(event) => self.core.on_net(event),
            Happening::Wake(pid) => self.core.wake(pid),
            Happening::Fault(number) => {
                if self.course == Course::Faults {
                    self.inject(number);
                }
            }
            Happening::Supervisor => self.start_supervisor()?,
            Happening::Client(number) => self.client_acts(number)?,
            Happening::Operator(number) => self.operate(number),
            Happening::Check => {
                self.create_sessions()?;
                self.check()?;
                self.core.after(100_000, Happening::Check);
            }
        }
        Ok(())
    }

    /// Handles all that follows at this moment.
    fn settle(&mut self) -> Result<(), String> {
        loop {
            if let Some((pid, what)) = self.core.inbox.pop_front() {
                self.dispatch(pid, what);
            } else if let Some((client, event)) = self.core.told.first().cloned() {
                self.core.told.remove(0);
                let recovery = self.scenario.config.recovery;
                if let Some(supervisor) = &mut self.supervisor {
                    let phases: Vec<JobPhase> = std::mem::take(&mut supervisor.phases);
                    phases.into_iter().for_each(|phase| self.phase_entered(phase));
                }
                self.clients[client].hear(event, recovery)?;
            } else if let Some((pid, cause)) = self.core.exits.pop() {
                self.end_process(pid, &cause);
            } else if let Some((host, start)) = self.core.starts.pop() {
                self.start_host(host, start);
            } else if let Some((host, start)) = self.core.kills.pop() {
                let name = &self.scenario.config.hosts[host].name;
                let killed = self.hosts.values().find(|h| h.config.name == *name && h.config.start == start);
                if let Some(pid) = killed.map(|host| host.pid) {
                    self.end_host(pid, "killed by its node");
                }
            } else {
                return Ok(());
            }
        }
    }

    fn dispatch(&mut self, pid: Pid, what: What) {
        if self.trace.is_some() && !matches!(what, What::Tick | What::Beat { .. } | What::Layer { .. }) {
            let heartbeat = format!("{what:?}").contains("Heartbeat");
            let name = self.name(pid);
            if !heartbeat {
                self.note(|| format!("{name} <- {}", shortened(&what)));
            }
        }
        if let Some(host) = self.hosts.get_mut(&pid) {
            host.handle(&mut self.core, what);
        } else if let Some(node) = self.nodes.iter_mut().find(|node| node.pid == pid) {
            node.handle(&mut self.core, what);
        } else if let Some(supervisor) = self.supervisor.as_mut().filter(|s| s.pid == pid && !s.dead) {
            supervisor.handle(&mut self.core, what);
        }
    }

    fn name(&self, pid: Pid) -> String {
        match self.core.processes.get(&pid).map(|process| process.place) {
            Some(Place::Host(host)) => format!("{} ({pid})", self.scenario.config.hosts[host].name),
            Some(place) => format!("{place:?} ({pid})"),
            None => format!("({pid})"),
        }
    }

    fn start_supervisor(&mut self) -> Result<(), String> {
        let pid = self.core.spawn(0, Place::Supervisor, "supervisor");
        let supervisor = Supervisor::new(pid, &self.core, self.scenario.config.clone(), &self.journal)?;
        self.supervisor = Some(supervisor);
        self.note(|| format!("a supervisor begins ({pid})"));
        if self.core.now > 0 {
            self.phase_entered(JobPhase::Recovering);
        }
        Ok(())
    }

    fn start_host(&mut self, host: usize, start: u64) {
        let (name, node) = (self.scenario.config.hosts[host].name.clone(), self.scenario.nodes[host]);
        let address = match self.scenario.fixed_ports {
            true => name.clone(),
            false => format!("{name}:{start}"),
        };
        let pid = self.core.spawn(node, Place::Host(host), &address);
        let role = self.scenario.started_as(host);
        let all = self.scenario.config.recovery == Recovery::Redistribute;
        let spare = role == asterism_actors::messages::HostRole::Spare;
        let encodes = all || spare || role == asterism_actors::messages::HostRole::Context;
        let generates = all || spare || role == asterism_actors::messages::HostRole::Query;
        let (load, layer) = self.scenario.times[host];
        let config = HostConfig { name, address, role, start, encodes, generates, load, layer };
        self.hosts.insert(pid, Host::new(pid, config));
    }

    fn end_process(&mut self, pid: Pid, cause: &str) {
        if self.hosts.contains_key(&pid) {
            return self.end_host(pid, cause);
        }
        if self.supervisor.as_ref().is_some_and(|supervisor| supervisor.pid == pid) {
            self.note(|| format!("the supervisor ends ({pid})"));
            self.core.told.clear();
            self.supervisor = None;
            let quickly = self.core.draw.one_in(2);
            self.core.end(pid, quickly);
            let later = self.core.draw.between(300_000, 4_000_000);
            self.calm = self.calm.max(self.core.now + later);
            self.core.after(later, Happening::Supervisor);
        }
    }

    /// Ends a host process; its node learns of it.
    pub(super) fn end_host(&mut self, pid: Pid, cause: &str) {
        let Some(host) = self.hosts.remove(&pid) else { return };
        self.note(|| format!("{} ({pid}) ends: {cause}", host.config.name));
        let quickly = self.core.draw.one_in(2);
        self.core.end(pid, quickly);
        let number = self.scenario.config.hosts.iter().position(|spec| spec.name == host.config.name);
        let Some(number) = number else { return };
        let node = self.nodes[self.scenario.nodes[number]].pid;
        let (start, cause) = (host.config.start, cause.to_string());
        let soon = self.core.draw.between(1_000, 50_000);
        self.core.timer(node, soon, What::Ended { host: number, start, cause });
    }
}

/// Messages that carry whole inputs, without them.
fn shortened(what: &What) -> String {
    let text = format!("{what:?}");
    match text.char_indices().nth(260) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text,
    }
}
