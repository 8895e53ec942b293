//! Who is alive: one record a configured host, by index, and the node agents that start them. Decides nothing about jobs.

pub mod accusations;
pub mod host_report;
mod judge;
pub mod pace;
pub mod presence;
pub mod sent_tokens;
mod slow;

use std::{collections::BTreeMap, time::Duration};

use asterism_transport::Endpoint;
use serde::{Deserialize, Serialize};

use accusations::AccusationRecord;
use host_report::{Address, HostReport};
use judge::LivenessJudge;
use pace::Pace;
use sent_tokens::SentTokens;

use crate::{
    api::{GpuReading, HostHealth, HostStatus, Role, Scheduling},
    messages::{Condition, Hello},
    supervisor::config::{HostSpec, Recovery},
};

/// What an agent told of its machine's GPUs is not so any more after so long.
const GPUS_STAND_FOR: Duration = Duration::from_secs(30);
/// More lives than a host can have.
const MOST_INCARNATIONS: u64 = 1 << 48;

/// A configured host and what is known of its process.
#[derive(Debug)]
pub struct HostRecord {
    /// As configured; its role may have been exchanged with a spare's since.
    pub spec: HostSpec,
    /// Health.
    pub health: HostHealth,
    /// Its connection while it has one.
    pub connection: Option<u64>,
    /// Its last hello; kept after death.
    pub hello: Option<Hello>,
    /// When it last said anything to this supervisor, or when that began; later by what the supervisor could not hear.
    pub last_heard: Duration,
    /// The same, whatever the supervisor could hear.
    pub spoke: Duration,
    /// KV bytes held, says its heartbeat.
    pub kv_bytes: u64,
    /// KV bytes of shards that lie idle, says its heartbeat.
    pub idle_bytes: u64,
    /// What its last report told.
    pub reported: HostReport,
    /// How fast it computes.
    pub pace: Pace,
    /// What decides the bits of its results, once it is ready.
    pub numerics: Option<String>,
    /// How its node last saw its process, and when.
    pub seen: (Condition, Duration),
    /// Since when its process is known to be started, or to be about to; none once it is ready.
    pub coming_since: Option<Duration>,
    /// When it became ready last.
    pub ready_since: Duration,
    /// Why it is dead or not ready.
    pub cause: Option<String>,
    /// Whether it said itself that it cannot work.
    pub unfit: bool,
    /// What survives the supervisor.
    pub kept: KeptHost,
    /// While it drains.
    pub drain: Option<Drain>,
    /// Contexts whose shards have moved away from it and that it does not know of yet, and since when.
    pub moved_away: Vec<(u64, Duration)>,
    /// What its process was sent of contexts' ids.
    pub given: SentTokens,
}

/// A host that gives its work to others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drain {
    /// When what has not left by itself is taken away. None: what cannot move is taken at once, the rest moves in its time.
    pub deadline: Option<Duration>,
    /// What becomes of the host then.
    pub leaving: Leaving,
}

/// Whether a host that drains ends, to be started again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Leaving {
    /// It stays, without work.
    #[default]
    Stays,
    /// It is told to end once nobody waits for anything of it.
    Drains,
    /// It was told.
    Told,
}

impl Drain {
    /// Whether a shard that could move is taken away all the same.
    pub fn is_over(self, now: Duration) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// Whether what cannot move is taken away.
    pub fn takes(self, now: Duration) -> bool {
        self.deadline.is_none_or(|deadline| deadline <= now)
    }
}

/// What the journal keeps of a host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KeptHost {
    /// Latest incarnation given to a process.
    pub incarnation: u64,
    /// No incarnation up to this one may come back.
    pub fenced: u64,
    /// The node's number of the latest process, as that says. No other host's end hangs on it.
    pub start: u64,
    /// Times that its process was started again after it was lost.
    pub restarts: u32,
    /// Whether its last process was told to end.
    #[serde(default)]
    pub ordered_to_end: bool,
    /// Whether it takes new work.
    pub scheduling: Scheduling,
    /// Its role, where it is no longer the configured one.
    pub role: Option<Role>,
}

impl KeptHost {
    /// Numbers that no supervisor of this cluster gave, such as an attacker's of the time when hosts chose them, count as
    /// those of a process that is gone.
    fn mended(self) -> Self {
        match self.incarnation <= MOST_INCARNATIONS && self.fenced <= self.incarnation {
            true => self,
            false => Self { incarnation: 1, fenced: 1, ..self },
        }
    }
}

/// What a hello means.
#[derive(Debug, PartialEq, Eq)]
pub enum HelloVerdict {
    /// A process that was not known: it holds nothing.
    New,
    /// The process that was connected before, with all it holds; `Some`: its earlier connection, to be closed.
    Back(Option<u64>),
    /// A later process of a host that was not yet declared dead: that one is gone.
    Successor,
    /// Refused, with the reason.
    Refused(String),
}

impl HostRecord {
    /// One that has not been there; `now` is when it begins to be silent.
    fn new(spec: HostSpec, now: Duration) -> Self {
        Self {
            spec,
            health: HostHealth::Starting,
            connection: None,
            hello: None,
            last_heard: now,
            spoke: now,
            kv_bytes: 0,
            idle_bytes: 0,
            reported: HostReport::default(),
            pace: Pace::default(),
            numerics: None,
            seen: Default::default(),
            coming_since: None,
            ready_since: now,
            cause: None,
            unfit: false,
            kept: KeptHost::default(),
            drain: None,
            moved_away: Vec::new(),
            given: SentTokens::default(),
        }
    }

    /// For `status`.
    pub fn status(&self, now: Duration, shards: usize) -> HostStatus {
        HostStatus {
            name: self.spec.name.clone(),
            role: self.spec.role,
            node: self.spec.node.clone(),
            scheduling: if self.drain.is_some() { Scheduling::Draining } else { self.kept.scheduling },
            restarts: self.kept.restarts,
            shards,
            device: self.spec.device.clone(),
            model: self.spec.model().to_owned(),
            health: self.health,
            pid: self.hello.as_ref().map(|hello| hello.pid),
            address: self.hello.as_ref().and_then(|hello| Some(hello.endpoints.last()?.socket().to_owned())),
            endpoints: self.hello.iter().flat_map(|hello| &hello.endpoints).map(Endpoint::to_string).collect(),
            data_links: self.reported.data_links.clone(),
            heartbeat_age_s: self.hello.as_ref().map(|_| self.silence(now).as_secs_f64()),
            threads: self.reported.threads,
            numerics: self.numerics.clone(),
            protocol: None,
            build: self.numerics.as_deref().and_then(build_of).map(str::to_owned),
            clock_offset_s: self.reported.clock_offset_s,
            kv_bytes: self.kv_bytes,
            idle_kv_bytes: self.idle_bytes,
            cause: self.cause.clone(),
            slow: self.pace.slow(),
            slowdown: self.pace.slowdown(),
            absent: None,
        }
    }

    /// Time since its last message.
    pub fn silence(&self, now: Duration) -> Duration {
        now.saturating_sub(self.last_heard)
    }

    /// Whether its process is up and can be told something.
    pub fn is_up(&self) -> bool {
        self.connection.is_some() && matches!(self.health, HostHealth::Ready | HostHealth::Suspect)
    }

    /// Whether an operator said that it will not come back.
    pub fn is_removed(&self) -> bool {
        self.kept.scheduling == Scheduling::Removed
    }

    /// Whether it was told to end and has not ended.
    pub fn was_told_to_leave(&self) -> bool {
        self.drain.is_some_and(|drain| drain.leaving == Leaving::Told)
    }

    /// Whether it takes new work.
    pub fn takes_work(&self) -> bool {
        self.is_up() && self.kept.scheduling == Scheduling::Open && self.drain.is_none()
    }

    /// How willingly it does the work of `role`; none when it never does.
    pub fn rank(&self, role: Role, recovery: Recovery) -> Option<u8> {
        let started_as = self.hello.as_ref().and_then(|hello| hello.role.role()).unwrap_or(self.spec.role);
        let able = started_as == role || started_as == Role::Spare || recovery == Recovery::Redistribute;
        match (self.spec.role, recovery) {
            _ if !able => None,
            (own, _) if own == role => Some(0),
            (Role::Spare, Recovery::Spare | Recovery::Redistribute) => Some(1),
            (_, Recovery::Redistribute) => Some(2),
            _ => None,
        }
    }
}

/// The build of what a host computes with: the last word of its numerics, before those of several devices.
fn build_of(numerics: &str) -> Option<&str> {
    numerics.split(" tensor parallel ").next()?.rsplit(' ').next()
}

/// Every configured host, and the connection of each node agent.
#[derive(Debug)]
pub struct Hosts {
    records: Vec<HostRecord>,
    by_name: BTreeMap<String, usize>,
    by_connection: BTreeMap<u64, usize>,
    /// The version of the protocol that each connection settled on.
    protocols: BTreeMap<u64, u16>,
    /// What each is started as, whatever role it has taken since.
    started_as: Vec<Role>,
    /// Connection of each node agent, and since when.
    nodes: BTreeMap<String, (u64, Duration)>,
    /// The GPUs of nodes' machines, and when their agents told of them last.
    gpus: BTreeMap<String, (Duration, Vec<GpuReading>)>,
    /// What is known of who judges them.
    judge: LivenessJudge,
    /// When this supervisor began, for hosts that do not come back to it; later by what it could not hear.
    began: Duration,
    /// When hosts came last, or shards of contexts were dealt out.
    pub dealt_at: Duration,
    /// Since when there is no query host at all, by the labels of the models of which there is none.
    pub no_query_host_since: BTreeMap<String, Duration>,
    /// What query hosts said of others' answers.
    pub accusations: AccusationRecord,
}

impl Hosts {
    /// None connected yet; `now` is when they begin to be silent.
    pub fn new(specs: &[HostSpec], now: Duration) -> Self {
        let records = specs.iter().map(|spec| HostRecord::new(spec.clone(), now)).collect();
        let by_name = specs.iter().enumerate().rev().map(|(host, spec)| (spec.name.clone(), host)).collect();
        let started_as = specs.iter().map(|spec| spec.role).collect();
        let (by_connection, nodes, protocols) = Default::default();
        Self {
            protocols,
            records,
            by_name,
            by_connection,
            started_as,
            nodes,
            gpus: BTreeMap::new(),
            judge: LivenessJudge::default(),
            began: now,
            dealt_at: now,
            no_query_host_since: BTreeMap::new(),
            accusations: AccusationRecord::default(),
        }
    }

    /// A host that was not configured before; `now` is when it begins to be silent.
    pub fn add(&mut self, spec: HostSpec, now: Duration) {
        self.by_name.insert(spec.name.clone(), self.records.len());
        self.started_as.push(spec.role);
        self.records.push(HostRecord::new(spec, now));
    }

    /// All records.
    pub fn iter(&self) -> impl Iterator<Item = &HostRecord> {
        self.records.iter()
    }

    /// Records of hosts that were not removed.
    pub fn wanted(&self) -> impl Iterator<Item = &HostRecord> {
        self.records.iter().filter(|host| !host.is_removed())
    }

    /// One record.
    pub fn at(&self, host: usize) -> &HostRecord {
        &self.records[host]
    }

    /// One record.
    pub fn at_mut(&mut self, host: usize) -> &mut HostRecord {
        &mut self.records[host]
    }

    /// A host's name.
    pub fn name(&self, host: usize) -> &str {
        &self.records[host].spec.name
    }

    /// The host on a connection.
    pub fn by_connection(&self, connection: u64) -> Option<usize> {
        self.by_connection.get(&connection).copied()
    }

    /// The host of a name.
    pub fn by_name(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// Every host's name, and where it is reached.
    pub fn addresses(&self) -> Vec<Address> {
        (0..self.records.len()).map(|host| self.address(host)).collect()
    }

    /// The name and the endpoints of one.
    pub fn address(&self, host: usize) -> Address {
        let HostRecord { spec, hello, .. } = &self.records[host];
        (spec.name.clone(), hello.as_ref().map(|hello| hello.endpoints.clone()).unwrap_or_default())
    }

    /// Whether hosts that have never been there may still come within `patience`, so that a context is not dealt to a part of
    /// them.
    pub fn is_booting(&self, now: Duration, patience: Duration) -> bool {
        let coming = self.wanted().any(|host| match host.health {
            HostHealth::Starting => true,
            HostHealth::Loading => host.kept.restarts == 0,
            _ => false,
        });
        coming && now.saturating_sub(self.began) < patience
    }

    /// Hosts that satisfy a condition.
    pub fn that(&self, condition: impl Fn(&HostRecord) -> bool) -> Vec<usize> {
        (0..self.records.len()).filter(|&host| condition(&self.records[host])).collect()
    }

    /// Takes in what the journal kept of a host.
    pub fn restore(&mut self, name: &str, kept: KeptHost) {
        if let Some(host) = self.by_name(name) {
            let record = &mut self.records[host];
            record.spec.role = kept.role.unwrap_or(record.spec.role);
            record.drain = (kept.scheduling == Scheduling::Draining).then(Drain::default);
            record.kept = kept.mended();
        }
    }

    /// Judges a hello. A process declared dead does not come back; only a new one of its host does, and gets another number.
    pub fn judge(&self, hello: &Hello, cluster: u64) -> HelloVerdict {
        let name = &hello.name;
        let Some(host) = self.by_name(name) else {
            return HelloVerdict::Refused(format!("no host named {name} is in the cluster file"));
        };
        let (record, role) = (self.at(host), self.started_as[host]);
        let is_new = hello.cluster == 0 && hello.incarnation == 0;
        let refused = if record.is_removed() {
            format!("{name} was removed from the cluster; `asterism host uncordon {name}` takes it in again")
        } else if hello.role.role() != Some(role) {
            format!("{name} is a {role:?} host in the cluster file, expected that and got {:?}", hello.role)
        } else if hello.cluster != cluster && !is_new {
            format!("{name} worked for another cluster or an earlier journal of it")
        } else if let Err(cause) = host_report::check_endpoints(&hello.endpoints) {
            format!("{name}: {cause}")
        } else {
            return self.judge_process(record, hello, is_new);
        };
        HelloVerdict::Refused(refused)
    }

    fn judge_process(&self, record: &HostRecord, hello: &Hello, is_new: bool) -> HelloVerdict {
        let (name, got) = (&hello.name, hello.incarnation);
        let KeptHost { incarnation, fenced, start, .. } = record.kept;
        if !is_new {
            return match got {
                _ if got > incarnation => HelloVerdict::Refused(format!(
                    "incarnation {got} of {name} was never given, expected at most {incarnation}"
                )),
                _ if got <= fenced || got < incarnation => HelloVerdict::Refused(format!(
                    "incarnation {got} of {name} was declared dead or replaced; only one after {} is taken",
                    fenced.max(incarnation - 1)
                )),
                _ => HelloVerdict::Back(record.connection),
            };
        }
        match record.connection {
            // What an earlier process said on its way to the end came late.
            Some(_) if hello.start < start => {
                HelloVerdict::Refused(format!("process {} of {name} is followed by {start} already", hello.start))
            }
            _ if record.hello.is_some() && record.health != HostHealth::Dead => HelloVerdict::Successor,
            _ => HelloVerdict::New,
        }
    }

    /// Takes a hello in that was judged good. A new process gets the next incarnation. It counts as a restart where the last
    /// one was lost: not where that was told to end, or had been given no work so that it could.
    pub fn admit(&mut self, now: Duration, connection: u64, hello: Hello) -> usize {
        let host = self.by_name(&hello.name).expect("it was judged good");
        self.unplug(host);
        self.by_connection.insert(connection, host);
        let record = &mut self.records[host];
        if hello.incarnation == 0 {
            let planned = record.kept.ordered_to_end || record.kept.scheduling != Scheduling::Open;
            let lost = record.kept.incarnation > 0 && !planned;
            record.kept.restarts = record.kept.restarts.saturating_add(u32::from(lost));
            record.kept.ordered_to_end = false;
            record.kept.incarnation += 1;
            record.kept.start = hello.start;
        }
        record.health = HostHealth::Loading;
        record.coming_since.get_or_insert(now);
        (record.connection, record.hello) = (Some(connection), Some(hello));
        (record.last_heard, record.spoke) = (now, now);
        record.given = SentTokens::default();
        if record.hello.as_ref().is_some_and(|hello| hello.cluster == 0) {
            record.pace.begin_anew();
        }
        (record.cause, record.numerics) = (None, None);
        record.seen = Default::default();
        host
    }

    /// Declares a host dead and fences its process. Returns its connection, to be closed.
    pub fn bury(&mut self, host: usize, cause: String) -> Option<u64> {
        let record = &mut self.records[host];
        record.health = HostHealth::Dead;
        record.kept.fenced = record.kept.incarnation;
        record.drain = record.drain.filter(|drain| drain.leaving == Leaving::Stays);
        (record.kv_bytes, record.idle_bytes) = (0, 0);
        record.reported = HostReport::default();
        record.seen = Default::default();
        record.given = SentTokens::default();
        record.cause = Some(cause);
        self.unplug(host)
    }

    fn unplug(&mut self, host: usize) -> Option<u64> {
        let connection = self.records[host].connection.take()?;
        self.by_connection.remove(&connection);
        Some(connection)
    }

    /// A node agent said hello. Returns its earlier connection.
    pub fn admit_node(&mut self, now: Duration, name: &str, connection: u64) -> Result<Option<u64>, String> {
        if !self.records.iter().any(|host| host.spec.node == name) {
            return Err(format!("no host of a node named {name} is in the cluster file"));
        }
        Ok(self.nodes.insert(name.to_string(), (connection, now)).map(|(earlier, _)| earlier))
    }

    /// Whether a connection is a node agent's.
    pub fn is_node(&self, connection: u64) -> bool {
        self.nodes.values().any(|&(node, _)| node == connection)
    }

    /// The agent on a connection tells of its machine's GPUs.
    pub fn note_gpus(&mut self, now: Duration, connection: u64, gpus: Vec<GpuReading>) {
        if let Some(node) = self.node_name(connection).map(str::to_owned) {
            // Those of nodes that were removed are not kept.
            self.gpus.retain(|_, (told, _)| now.saturating_sub(*told) < GPUS_STAND_FOR);
            self.gpus.insert(node, (now, gpus));
        }
    }

    /// GPUs of machines whose agents are connected and told of them lately, by node.
    pub fn gpus(&self, now: Duration) -> impl Iterator<Item = (&str, &GpuReading)> {
        let is_known = move |node: &str, told: Duration| {
            self.nodes.contains_key(node) && now.saturating_sub(told) < GPUS_STAND_FOR
        };
        let known = self.gpus.iter().filter(move |(node, (told, _))| is_known(node, *told));
        known.flat_map(|(node, (_, gpus))| gpus.iter().map(|gpu| (node.as_str(), gpu)))
    }

    /// The node whose agent is on a connection.
    pub fn node_name(&self, connection: u64) -> Option<&str> {
        self.nodes.iter().find(|(_, (node, _))| *node == connection).map(|(name, _)| name.as_str())
    }

    /// Hosts of a node whose last process was declared dead, and the node's number of that.
    pub fn fenced_of(&self, node: &str) -> Vec<(String, u64)> {
        let fenced = |host: &&HostRecord| {
            host.spec.node == node
                && host.connection.is_none()
                && host.kept.fenced > 0
                && host.kept.fenced == host.kept.incarnation
        };
        self.records.iter().filter(fenced).map(|host| (host.spec.name.clone(), host.kept.start)).collect()
    }

    /// A host or node speaks this version of the protocol on a connection.
    pub fn speaks(&mut self, connection: u64, protocol: u16) {
        self.protocols.insert(connection, protocol);
    }

    /// The version of the protocol that a host speaks, while it is connected.
    pub fn protocol_of(&self, host: usize) -> Option<u16> {
        self.protocols.get(&self.records[host].connection?).copied()
    }

    /// A connection ended, which may be a node agent's.
    pub fn connection_gone(&mut self, connection: u64) {
        self.protocols.remove(&connection);
        self.nodes.retain(|_, (node, _)| *node != connection);
    }

    /// The agent that starts a host's process.
    pub fn node_of(&self, host: usize) -> Option<u64> {
        self.nodes.get(&self.records[host].spec.node).map(|(connection, _)| *connection)
    }

    /// Since when that agent is connected.
    pub fn node_since(&self, host: &HostRecord) -> Option<Duration> {
        self.nodes.get(&host.spec.node).map(|(_, since)| *since)
    }
}
