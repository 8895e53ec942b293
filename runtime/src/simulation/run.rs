//! The course of a simulation: events in the order of their times, each given to the supervisor or to a host. Decides nothing that
//! these do not.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use asterism_actors::{
    JobError,
    api::{JobEvent, JobPhase, JobState, Role},
    cluster_event::ClusterEventKind,
    messages::{Encoded, Hello, HostCommand, HostMessage, HostRole, ModelReport, TokenChoice},
    readings::Phase2Times,
    store::Change,
    supervisor::{
        Decided, Origin, PreparedContext, PreparedJob, Question, Source, SupervisorCommand, SupervisorEvent,
        SupervisorState,
    },
    ticket::Secret,
};
use asterism_transport::Endpoint;
use rand::{Rng, SeedableRng, rngs::StdRng, seq::SliceRandom};
use serde::Serialize;

use super::{
    hosts::{Answer, SimulatedHost},
    room::Room,
    work::Work,
};
use crate::cluster::size::count;

/// The time at which it begins: any would do.
const BEGINS: Duration = Duration::from_secs(1_000_000);
/// How long a process takes to be there again after its node saw that it ended.
const STARTS_WITHIN: Duration = Duration::from_secs(3);
/// The job.
const JOB: &str = "simulated";
/// Events between two calls of `watch`.
const WATCHED_EVERY: u64 = 4096;

/// What is asked of the cluster, and what fails meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// Tokens of the question.
    pub query_tokens: usize,
    /// Tokens of the answer.
    pub answer_tokens: u32,
    /// Context hosts that fail.
    pub failures: usize,
    /// What draws them.
    pub seed: u64,
}

/// Something that happened, and when.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Happened {
    /// Seconds since the job was submitted.
    pub at_s: f64,
    /// What, in words.
    pub what: String,
}

/// How far a simulation is.
#[derive(Clone, Copy, Debug)]
pub struct Stage {
    /// Simulated time since the job was submitted.
    pub at: Duration,
    /// Events so far.
    pub events: u64,
}

/// A host that failed, and how its shards came back.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LostHost {
    /// Its name.
    pub host: String,
    /// Seconds since the job was submitted.
    pub at_s: f64,
    /// Whether nobody said so: it went silent.
    pub silent: bool,
    /// When the supervisor knew.
    pub noticed_s: Option<f64>,
    /// Shards that were lost with it.
    pub shards: usize,
    /// When others had them.
    pub recovered_s: Option<f64>,
    /// Seconds that this may take: until it is noticed, until a host is done with its own part, and to encode the shards again.
    pub bound_s: f64,
}

impl LostHost {
    /// Whether others had the shards in time.
    pub fn is_within_bound(&self) -> bool {
        self.shards == 0 || self.recovered_s.is_some_and(|recovered| recovered - self.at_s <= self.bound_s)
    }
}

/// A stretch in which a host encoded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stretch {
    /// The host, by its place.
    pub host: usize,
    /// When it began, in seconds.
    pub from_s: f64,
    /// When it ended.
    pub to_s: f64,
    /// Whether it was done before, by who was lost.
    pub again: bool,
}

/// What came of a simulation.
#[derive(Clone, Debug)]
pub struct Run {
    /// What happened, in order.
    pub timeline: Vec<Happened>,
    /// What failed.
    pub failures: Vec<LostHost>,
    /// Who encoded when.
    pub stretches: Vec<Stretch>,
    /// Context hosts.
    pub hosts: usize,
    /// When every shard was encoded for the first time.
    pub encoded_s: Option<f64>,
    /// When the answer was there, and how the job ended.
    pub ended: Option<(f64, JobState)>,
    /// Events.
    pub events: u64,
    /// Bytes that the journal took.
    pub journal_bytes: u64,
}

/// Who is at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Party {
    Host(usize),
    Node(usize),
}

/// What happens next.
#[derive(Debug)]
enum Event {
    Tick,
    Heartbeat { host: usize, life: u64 },
    ToSupervisor { connection: u64, message: Box<HostMessage> },
    Cut { connection: u64 },
    ToParty { connection: u64, command: Box<HostCommand> },
    Worked { host: usize, work: u64 },
    Step { host: usize, job: u64 },
    Fail { at: usize },
    Start { host: usize },
}

/// A cluster whose hosts are up, and the job that it is asked.
pub struct Simulation {
    state: SupervisorState,
    now: Duration,
    agenda: BTreeMap<(Duration, u64), Event>,
    numbered: u64,
    hosts: Vec<SimulatedHost>,
    parties: BTreeMap<u64, Party>,
    nodes: BTreeMap<String, u64>,
    connections: u64,
    work: Work,
    ids: Arc<[u32]>,
    trip: Duration,
    /// Context hosts in the order in which they fail, and whether each goes silent.
    doomed: Vec<(usize, bool)>,
    lost: Vec<BTreeSet<(u64, u32)>>,
    encoded_once: BTreeSet<(u64, u32)>,
    shards: usize,
    draw: StdRng,
    run: Run,
}

impl Simulation {
    /// A room whose hosts have all joined, and nothing to do.
    pub fn new(room: &Room, context: &PreparedContext, asked: &Asked) -> Self {
        let origin = Origin { cluster: 1, secret: Secret::new([7; 32]) };
        let mut config = room.config.clone();
        for model in &mut config.models {
            // Hosts of a simulation say that they have loaded what there is.
            (model.digest, model.weights) = (Default::default(), Some(Default::default()));
        }
        let hosts = config.hosts.len();
        let mut draw = StdRng::seed_from_u64(asked.seed);
        let mut contexts: Vec<usize> = (0..hosts).filter(|host| config.hosts[*host].role == Role::Context).collect();
        let count = contexts.len();
        contexts.shuffle(&mut draw);
        contexts.truncate(asked.failures);
        let doomed: Vec<(usize, bool)> = contexts.into_iter().map(|host| (host, draw.random_bool(0.5))).collect();
        let mut simulation = Self {
            state: SupervisorState::new(config, BEGINS, origin),
            now: BEGINS,
            agenda: BTreeMap::new(),
            numbered: 0,
            hosts: (0..hosts).map(|_| SimulatedHost::default()).collect(),
            parties: BTreeMap::new(),
            nodes: BTreeMap::new(),
            connections: 0,
            work: Work::new(&context.plan, room, asked.query_tokens),
            ids: context.ids.clone(),
            trip: Duration::from_secs_f64(room.speeds.round_trip_s / 2.0),
            lost: vec![BTreeSet::new(); doomed.len()],
            doomed,
            encoded_once: BTreeSet::new(),
            shards: context.plan.shards.len(),
            draw,
            run: Run {
                timeline: Vec::new(),
                failures: Vec::new(),
                stretches: Vec::new(),
                hosts: count,
                encoded_s: None,
                ended: None,
                events: 0,
                journal_bytes: 0,
            },
        };
        simulation.join_all();
        simulation
    }

    /// All nodes and hosts say hello, and that they are ready.
    fn join_all(&mut self) {
        for host in 0..self.hosts.len() {
            let node = self.state.config().hosts[host].node.clone();
            if !self.nodes.contains_key(&node) {
                let connection = self.connect(Party::Node(host));
                self.nodes.insert(node.clone(), connection);
                let hello = Hello { name: node, role: HostRole::Node, start: 1, pid: 1, ..Hello::default() };
                self.hear(connection, HostMessage::Hello(hello));
            }
            self.start(host);
            let connection = self.hosts[host].connection.expect("it was just started");
            self.hear(connection, ready());
            let heartbeat = self.state.config().liveness.heartbeat;
            let first = heartbeat.mul_f64(self.draw.random_range(0.0..1.0));
            self.at(self.now + first, Event::Heartbeat { host, life: self.hosts[host].life });
        }
        // What was said to hosts meanwhile, they know.
        self.agenda.retain(|_, event| matches!(event, Event::Heartbeat { .. }));
        self.at(self.now, Event::Tick);
        self.run.timeline.clear();
        self.run.journal_bytes = 0;
    }

    /// What submitting the job changes; nothing is placed yet.
    ///
    /// # Errors
    /// Where the supervisor refuses it.
    pub fn submit(&mut self, context: PreparedContext, asked: &Asked) -> Result<Decided, JobError> {
        let question = Question {
            query_ids: vec![1; asked.query_tokens],
            choice: TokenChoice { max_tokens: asked.answer_tokens, ..TokenChoice::default() },
            timeout: None,
            refresh_order: None,
            canary: false,
            text: None,
            trace: None,
        };
        let source = Source::Context(context);
        let job = PreparedJob { id: JOB.into(), fingerprint: None, source, question, labels: BTreeMap::new() };
        let number = self.state.number();
        let (_, decided) = self.state.submit(self.now, number, job)?;
        for change in &decided.changes {
            self.run.journal_bytes += bytes_of(change);
        }
        Ok(decided)
    }

    /// Takes the job in: its shards are placed, and ordered.
    pub fn place(&mut self, decided: Decided) {
        self.note("the job is taken in".into());
        let commands = self.state.adopt(self.now, decided);
        self.apply(commands);
        let (query, token) = self.work.steps;
        let whole = self.work.encode_s + query + token;
        for at in 0..self.doomed.len() {
            let when = whole * self.draw.random_range(0.05..1.0);
            self.at(BEGINS + Duration::from_secs_f64(when), Event::Fail { at });
        }
    }

    /// Goes on until the job has ended, or nothing can happen any more within `most`.
    pub fn run(mut self, most: Duration, mut watch: impl FnMut(Stage)) -> Run {
        while let Some(((time, _), event)) = self.agenda.pop_first() {
            if time > BEGINS + most || self.run.ended.is_some() {
                break;
            }
            self.now = time;
            self.run.events += 1;
            if self.run.events.is_multiple_of(WATCHED_EVERY) {
                watch(Stage { at: self.now - BEGINS, events: self.run.events });
            }
            self.happen(event);
        }
        self.run.failures.sort_by(|one, other| one.at_s.total_cmp(&other.at_s));
        self.run
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Tick => {
                let pause = self.state.config().liveness.heartbeat / 2;
                self.at(self.now + pause, Event::Tick);
                let commands = self.state.handle(self.now, SupervisorEvent::Tick);
                self.apply(commands);
            }
            Event::Heartbeat { host, life } => self.heartbeat(host, life),
            Event::ToSupervisor { connection, message } => self.hear(connection, *message),
            Event::Cut { connection } => {
                self.parties.remove(&connection);
                let cause = "the connection was closed".to_string();
                let commands = self.state.handle(self.now, SupervisorEvent::Disconnected { connection, cause });
                self.apply(commands);
            }
            Event::ToParty { connection, command } => match self.parties.get(&connection) {
                Some(Party::Host(host)) if self.hosts[*host].connection == Some(connection) => {
                    self.obey(*host, *command)
                }
                Some(Party::Node(_)) => self.obey_as_node(*command),
                _ => {}
            },
            Event::Worked { host, work } => self.worked(host, work),
            Event::Step { host, job } => self.step(host, job),
            Event::Fail { at } => self.fail(at),
            Event::Start { host } => {
                self.start(host);
                let (connection, life) =
                    (self.hosts[host].connection.expect("it was just started"), self.hosts[host].life);
                self.say(connection, ready());
                self.at(self.now, Event::Heartbeat { host, life });
            }
        }
    }

    // What hosts do.

    fn heartbeat(&mut self, host: usize, life: u64) {
        let of = &self.hosts[host];
        let Some(connection) = of.connection.filter(|_| of.life == life) else { return };
        let kv_bytes = of.kv_bytes();
        self.say(connection, HostMessage::Heartbeat { kv_bytes, idle_bytes: 0 });
        let pause = self.state.config().liveness.heartbeat;
        self.at(self.now + pause, Event::Heartbeat { host, life });
    }

    fn obey(&mut self, host: usize, command: HostCommand) {
        match command {
            HostCommand::Encode(order) => {
                let seconds = self.work.seconds(&order, &self.state.config().hosts[host].node);
                self.numbered += 1;
                let number = self.numbered;
                if self.hosts[host].take(number, order.clone(), seconds) {
                    self.report(host, &order, 0.0);
                }
                self.begin(host);
            }
            HostCommand::Release { context, .. } => {
                self.hosts[host].release(context);
                self.begin(host);
            }
            HostCommand::Generate(order) => {
                let (job, holders) = (order.job, order.holders.clone());
                let tokens = order.generated.len() as u32;
                self.hosts[host].answers.insert(job, Answer { order, holders, tokens, waits: false });
                self.after(self.work.steps.0, Event::Step { host, job });
            }
            HostCommand::Holders { job, holders } => {
                if let Some(answer) = self.hosts[host].answers.get_mut(&job) {
                    answer.holders = holders;
                    if std::mem::take(&mut answer.waits) {
                        self.after(self.work.steps.1, Event::Step { host, job });
                    }
                }
            }
            HostCommand::Stop { job } => drop(self.hosts[host].answers.remove(&job)),
            _ => {}
        }
    }

    /// An agent ends a process that was declared dead, and starts it again.
    fn obey_as_node(&mut self, command: HostCommand) {
        let HostCommand::Kill { host, .. } = command else { return };
        let Some(host) = self.state.config().hosts.iter().position(|spec| spec.name == host) else { return };
        if self.hosts[host].connection.is_none() {
            self.ended(host, "it was declared dead");
        }
    }

    fn begin(&mut self, host: usize) {
        if let Some((work, seconds)) = self.hosts[host].begin(self.now) {
            self.after(seconds, Event::Worked { host, work });
        }
    }

    fn worked(&mut self, host: usize, number: u64) {
        let Some(work) = self.hosts[host].works.front().filter(|work| work.number == number).cloned() else { return };
        self.hosts[host].works.pop_front();
        let blocks = || work.order.shards.iter().map(|shard| (work.order.context, shard.block as u32));
        let again = blocks()
            .any(|shard| self.encoded_once.contains(&shard) || self.lost.iter().any(|lost| lost.contains(&shard)));
        self.run.stretches.push(Stretch {
            host,
            from_s: work.began.unwrap_or(self.now).saturating_sub(BEGINS).as_secs_f64(),
            to_s: self.since(),
            again,
        });
        for shard in blocks() {
            self.encoded_once.insert(shard);
            self.recovered(shard);
        }
        if self.run.encoded_s.is_none() && self.encoded_once.len() == self.shards {
            self.run.encoded_s = Some(self.since());
        }
        self.report(host, &work.order, work.seconds);
        self.begin(host);
    }

    /// Says that shards are encoded, and holds them.
    fn report(&mut self, host: usize, order: &asterism_actors::messages::EncodeShards, seconds: f64) {
        let Some(connection) = self.hosts[host].connection else { return };
        let each = seconds / order.shards.len().max(1) as f64;
        for shard in &order.shards {
            let cost = self.work.counted(std::slice::from_ref(shard));
            self.hosts[host].held.insert((order.context, shard.block as u32), cost.kv_bytes);
            let input = shard.input(&*self.ids).expect("a shard of this context");
            let encoded = Encoded {
                context: order.context,
                block: shard.block as u32,
                digest: shard.digest(&input),
                kept_tokens: shard.kept_tokens() as u64,
                kv_bytes: cost.kv_bytes,
                seconds: each,
                computing_s: each,
                operations: cost.flops,
                pairs: cost.attention_pairs,
                exchange_bytes: 0,
                cached: false,
            };
            self.say(connection, HostMessage::Encoded(encoded));
        }
    }

    /// A token, or the end of an answer; it waits where a shard is nowhere.
    fn step(&mut self, host: usize, job: u64) {
        let Some(connection) = self.hosts[host].connection else { return };
        let config = self.state.config();
        let holds = |name: &String, context: u64, blocks: &[u32]| {
            let at = config.hosts.iter().position(|spec| spec.name == *name);
            at.is_some_and(|at| blocks.iter().all(|block| self.hosts[at].held.contains_key(&(context, *block))))
        };
        let Some(answer) = self.hosts[host].answers.get(&job) else { return };
        let there = answer.holders.iter().all(|holder| holds(&holder.host, answer.order.context, &holder.blocks));
        let answer = self.hosts[host].answers.get_mut(&job).expect("it was there");
        if !there {
            answer.waits = true;
            return;
        }
        let (index, most) = (answer.tokens, answer.order.choice.max_tokens);
        answer.tokens += 1;
        self.say(connection, HostMessage::Token { job, index, id: 1, text: String::new(), logprobs: None });
        if index + 1 < most {
            return self.after(self.work.steps.1, Event::Step { host, job });
        }
        let times = Box::new(Phase2Times::default());
        self.say(connection, HostMessage::Generated { job, tokens: most, stopped: false, text: String::new(), times });
    }

    // What fails.

    fn fail(&mut self, at: usize) {
        let (host, silent) = self.doomed[at];
        let shards = self.hosts[host].shards();
        let again = self.work.again(shards.iter().map(|(_, block)| *block as usize));
        let liveness = self.state.config().liveness;
        let noticed = liveness.dead_after + liveness.heartbeat;
        let name = self.state.config().hosts[host].name.clone();
        let how = if silent { "goes silent" } else { "is killed" };
        self.note(format!("{name} {how}, with {}", count(shards.len(), "shard")));
        self.run.failures.push(LostHost {
            host: name,
            at_s: self.since(),
            silent,
            noticed_s: None,
            shards: shards.len(),
            recovered_s: None,
            bound_s: noticed.as_secs_f64() + again + 4.0 * self.trip.as_secs_f64(),
        });
        self.lose_again(&shards);
        self.lost[at] = shards.into_iter().collect();
        let connection = self.hosts[host].connection;
        self.hosts[host].end();
        if let Some(connection) = connection.filter(|_| !silent) {
            self.at(self.now + self.trip, Event::Cut { connection });
            self.ended(host, "signal 9");
        }
    }

    /// What was on its way to be made good is lost once more: from now on it has as long as before.
    fn lose_again(&mut self, shards: &[(u64, u32)]) {
        let since = self.since();
        for at in (0..self.lost.len()).filter(|at| shards.iter().any(|shard| self.lost[*at].contains(shard))) {
            let name = self.state.config().hosts[self.doomed[at].0].name.clone();
            if let Some(failure) = self.run.failures.iter_mut().find(|failure| failure.host == name) {
                failure.bound_s += since - failure.at_s;
            }
        }
    }

    /// A node says that a process of it ended, and starts it again.
    fn ended(&mut self, host: usize, cause: &str) {
        let spec = &self.state.config().hosts[host];
        let (name, agent) = (spec.name.clone(), self.nodes[&spec.node]);
        let start = self.hosts[host].life;
        self.say(agent, HostMessage::Exited { host: name, start, cause: cause.into(), restarting: true });
        self.at(self.now + STARTS_WITHIN, Event::Start { host });
    }

    fn recovered(&mut self, shard: (u64, u32)) {
        for at in 0..self.lost.len() {
            if !self.lost[at].remove(&shard) || !self.lost[at].is_empty() {
                continue;
            }
            let (since, name) = (self.since(), self.state.config().hosts[self.doomed[at].0].name.clone());
            if let Some(failure) = self.run.failures.iter_mut().find(|failure| failure.host == name) {
                failure.recovered_s = Some(since);
                let took = since - failure.at_s;
                self.note(format!("others have all shards of {name}, {took:.2} s after it failed"));
            }
        }
    }

    // The wire, and what the supervisor wants.

    fn start(&mut self, host: usize) {
        self.hosts[host].end();
        self.hosts[host].life += 1;
        let connection = self.connect(Party::Host(host));
        self.hosts[host].connection = Some(connection);
        let spec = &self.state.config().hosts[host];
        let role = match spec.role {
            Role::Context => HostRole::Context,
            Role::Query => HostRole::Query,
            Role::Spare => HostRole::Spare,
        };
        let endpoints = vec![Endpoint::new("quic", "127.0.0.1:1")];
        let start = self.hosts[host].life;
        let hello = Hello { name: spec.name.clone(), role, start, pid: 1, endpoints, ..Hello::default() };
        self.hear(connection, HostMessage::Hello(hello));
    }

    fn connect(&mut self, party: Party) -> u64 {
        self.connections += 1;
        self.parties.insert(self.connections, party);
        self.connections
    }

    fn hear(&mut self, connection: u64, message: HostMessage) {
        let commands = self.state.handle(self.now, SupervisorEvent::Message { connection, message });
        self.apply(commands);
    }

    fn say(&mut self, connection: u64, message: HostMessage) {
        self.at(self.now + self.trip, Event::ToSupervisor { connection, message: Box::new(message) });
    }

    fn after(&mut self, seconds: f64, event: Event) {
        self.at(self.now + Duration::from_secs_f64(seconds), event);
    }

    fn at(&mut self, time: Duration, event: Event) {
        self.numbered += 1;
        self.agenda.insert((time, self.numbered), event);
    }

    fn apply(&mut self, commands: Vec<SupervisorCommand>) {
        for command in commands {
            match command {
                SupervisorCommand::Send { connection, command } => {
                    self.at(self.now + self.trip, Event::ToParty { connection, command: Box::new(command) });
                }
                SupervisorCommand::Persist(change) | SupervisorCommand::Note(change) => {
                    self.run.journal_bytes += bytes_of(&change);
                }
                SupervisorCommand::Publish { event, .. } => self.publish(event),
                SupervisorCommand::Notify(kind) => self.notify(&kind),
                SupervisorCommand::Disconnect { .. } | SupervisorCommand::Observe(_) => {}
            }
        }
    }

    fn publish(&mut self, event: JobEvent) {
        match event {
            JobEvent::Phase { phase } => self.note(format!("the job is {}", words(phase))),
            JobEvent::Recovery { recovery } if recovery.recovered_s.is_none() => {
                let since = self.since();
                let found = self.run.failures.iter_mut().find(|failure| failure.host == recovery.host);
                if let Some(failure) = found.filter(|failure| failure.noticed_s.is_none()) {
                    failure.noticed_s = Some(since);
                }
                self.note(format!(
                    "{} is lost ({}): {} encoded anew",
                    recovery.host,
                    recovery.reason,
                    count(recovery.shards, "shard")
                ));
            }
            JobEvent::Finished { status } => {
                self.run.ended = Some((self.since(), status.state));
                let error = status.error.map_or(String::new(), |error| format!(": {}", error.message));
                let state = format!("{:?}", status.state).to_lowercase();
                self.note(format!("the job has ended: {state}{error}"));
            }
            _ => {}
        }
    }

    fn notify(&mut self, kind: &ClusterEventKind) {
        match kind {
            ClusterEventKind::HostSuspect { host, silent_s, .. } => {
                self.note(format!("{host} is a suspect, silent for {silent_s:.2} s"));
            }
            ClusterEventKind::HostReady { host } if self.now > BEGINS => {
                self.note(format!("{host} is back, with nothing"))
            }
            _ => {}
        }
    }

    fn note(&mut self, what: String) {
        self.run.timeline.push(Happened { at_s: self.since(), what });
    }

    fn since(&self) -> f64 {
        self.now.saturating_sub(BEGINS).as_secs_f64()
    }
}

fn ready() -> HostMessage {
    HostMessage::Ready { numerics: "simulated".into(), model: Box::<ModelReport>::default() }
}

fn bytes_of(change: &Change) -> u64 {
    match change {
        Change::Put { value, .. } => value.len() as u64,
        Change::Remove { .. } => 0,
    }
}

fn words(phase: JobPhase) -> &'static str {
    match phase {
        JobPhase::Queued => "queued",
        JobPhase::Encoding => "encoded: phase 1",
        JobPhase::Querying => "asked: the query step",
        JobPhase::Decoding => "answered, token by token",
        JobPhase::Recovering => "recovering",
    }
}
