//! The supervisor's rules: what each event means. Who works on what is `assign.rs`, whose turn it is `dispatch.rs`, what a
//! loss means `recovery.rs`. No I/O, no clock, no tensor.
//!
//! Time is a duration since the Unix epoch at the supervisor's start, running on with a clock that does not jump.

pub mod view;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use asterism_models::WeightsDigest;

use crate::{
    api::{JobEvent, JobState},
    error::JobError,
    messages::{Condition, HostCommand, HostMessage},
    metric::Observation,
    news::News,
    store::Change,
    supervisor::{
        config::{Liveness, SupervisorConfig},
        fingerprint::Fingerprint,
        journal::{change::Reserved, record},
        rules::{homes::Lately, sessions::Sessions},
        tables::{
            contexts::Contexts,
            hosts::Hosts,
            job::{Outcome, Question},
            jobs::{Edit, Jobs},
            model::ClusterModel,
            prepared::PreparedContext,
        },
    },
    ticket::Secret,
};

/// Ended jobs that are remembered, and bytes of their answers.
const ENDED_JOBS: usize = 16_384;
const ENDED_BYTES: u64 = 64 << 20;

/// A request tokenised and planned.
#[derive(Clone, Debug)]
pub struct PreparedJob {
    /// Its id: its client's, or one that nobody guesses.
    pub id: String,
    /// What was asked, where the client chose the id.
    pub fingerprint: Option<Fingerprint>,
    /// What is asked about.
    pub source: Source,
    /// What is asked.
    pub question: Question,
    /// Labels.
    pub labels: BTreeMap<String, String>,
}

impl PreparedJob {
    /// Bytes that it takes, about.
    pub fn bytes(&self) -> u64 {
        let context = match &self.source {
            Source::Context(context) => context.bytes(),
            Source::Session(_) => 0,
        };
        context + 4 * self.question.query_ids.len() as u64
    }
}

/// What a question is about.
#[derive(Clone, Debug)]
pub enum Source {
    /// A context of the job's own.
    Context(PreparedContext),
    /// A session's context.
    Session(String),
}

/// What happens to the supervisor; what clients change is [`Decided`](super::Decided).
#[derive(Clone, Debug)]
pub enum Event {
    /// A message on a host or node connection.
    Message {
        /// Connection, unique for the life of the supervisor.
        connection: u64,
        /// What it said.
        message: HostMessage,
    },
    /// A host or node connection ended.
    Disconnected {
        /// Connection.
        connection: u64,
        /// Why.
        cause: String,
    },
    /// The digest of the supervisor's own weights is there, or why it cannot be had.
    Weights(Result<WeightsDigest, String>),
    /// The supervisor's own process has waited for memory or a disk since the last tick.
    Starved,
    /// Time passed.
    Tick,
}

/// What the supervisor wants done, in order; nothing that follows a change to be kept is done before it is.
#[derive(Clone, Debug)]
pub enum Command {
    /// Keep a change in the journal.
    Persist(Change),
    /// Tell a host or node.
    Send {
        /// Connection.
        connection: u64,
        /// What.
        command: HostCommand,
    },
    /// Close a connection.
    Disconnect {
        /// Connection.
        connection: u64,
        /// Reason given to the peer.
        reason: String,
    },
    /// Tell a job's watchers.
    Publish {
        /// Job number.
        job: u64,
        /// What.
        event: JobEvent,
    },
    /// Count or time something.
    Observe(Observation),
    /// Say something in the log.
    Tell(News),
}

/// What an event may have changed of who works on what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stir {
    /// Nothing.
    Nothing,
    /// What it touched.
    Touched,
    /// Hosts or the time: what could not be placed before may find room.
    Everything,
}

/// What is drawn once for the life of a journal.
#[derive(Clone, Debug)]
pub struct Origin {
    /// The cluster's number in hellos: any but 0.
    pub cluster: u64,
    /// What tickets are made from.
    pub secret: Secret,
}

/// The state.
pub struct SupervisorState {
    pub(super) config: SupervisorConfig,
    pub(super) model: ClusterModel,
    pub(super) hosts: Hosts,
    pub(super) contexts: Contexts,
    pub(super) jobs: Jobs,
    pub(super) sessions: Sessions,
    /// Where shards that depend on nothing were encoded lately.
    pub(super) lately: Lately,
    /// How many questions that are not in force yet are about a context.
    pub(super) asked_soon: BTreeMap<u64, usize>,
    /// Contexts that sessions have grown out of and that somebody may still ask.
    pub(super) outgrown: BTreeSet<u64>,
    /// What is drawn once for the life of the journal.
    pub(super) origin: Origin,
    pub(super) last_number: u64,
    /// What is decided and not in force.
    pub(super) reserved: Reserved,
    /// When this supervisor began, for hosts that do not come back to it.
    pub(super) began: Duration,
    /// Since when there is no query host at all, if there is none.
    pub(super) no_query_host_since: Option<Duration>,
    /// Whether what was accepted waits until a self-test has passed, and the canary that was taken in last.
    pub(super) held: bool,
    pub(super) canary: Option<u64>,
    /// Seconds that a token of phase 1 takes, learnt from those that were encoded.
    pub(super) token_seconds: f64,
    /// Query hosts that accused a host of wrong answers, and the first host that each did.
    pub(super) accusers: BTreeMap<usize, usize>,
}

impl SupervisorState {
    /// Before any host connected. `origin` is another one for each journal.
    pub fn new(config: SupervisorConfig, now: Duration, origin: Origin) -> Self {
        let hosts = Hosts::new(&config.hosts, now);
        let model = ClusterModel::new(config.digest.clone(), config.weights.clone());
        Self {
            config,
            model,
            hosts,
            contexts: Contexts::default(),
            jobs: Jobs::default(),
            sessions: Sessions::default(),
            lately: Lately::default(),
            asked_soon: BTreeMap::new(),
            outgrown: BTreeSet::new(),
            origin,
            last_number: 0,
            reserved: Reserved::default(),
            began: now,
            no_query_host_since: None,
            held: false,
            canary: None,
            token_seconds: 1e-4,
            accusers: BTreeMap::new(),
        }
    }

    /// The configuration.
    pub fn config(&self) -> &SupervisorConfig {
        &self.config
    }

    /// From now on canaries alone begin, or all does; what is generated goes on.
    pub fn hold_back(&mut self, held: bool) {
        self.held = held;
    }

    /// Whether a job waits for the self-test.
    pub(super) fn is_held(&self, number: u64) -> bool {
        self.held && !self.jobs.get(number).is_some_and(|job| job.question.canary)
    }

    /// The job of this id, when the request was the same.
    ///
    /// # Errors
    /// [`JobError::IdTaken`] when it was another.
    pub fn repeated(&self, id: &str, fingerprint: Option<Fingerprint>) -> Result<Option<u64>, JobError> {
        match self.job_number(id).and_then(|number| self.jobs.get(number)) {
            Some(job) if job.fingerprint == fingerprint => Ok(Some(job.number)),
            Some(_) => Err(JobError::IdTaken { id: id.to_string() }),
            None => Ok(None),
        }
    }

    /// Whether the queue takes one more.
    pub(super) fn check_queue(&self, prepared: &PreparedJob) -> Result<(), JobError> {
        let waiting = self.jobs.count(JobState::Pending) + self.reserved.jobs;
        // What waits for a self-test must not keep it out.
        if self.held && prepared.question.canary {
            return Ok(());
        }
        if waiting >= self.config.max_queue {
            return Err(JobError::Overloaded { waiting });
        }
        self.check_bytes(prepared.bytes())
    }

    /// Whether what is accepted may take so many bytes more.
    pub(super) fn check_bytes(&self, more: u64) -> Result<(), JobError> {
        let held = self.contexts.bytes() + self.jobs.open_bytes() + self.reserved.bytes;
        let limit = self.config.max_queue_bytes;
        match held.saturating_add(more) > limit {
            true => Err(JobError::Full { held, limit, waiting: self.jobs.count(JobState::Pending) }),
            false => Ok(()),
        }
    }

    /// Applies one event.
    pub fn handle(&mut self, now: Duration, event: Event) -> Vec<Command> {
        let mut commands = Vec::new();
        let stir = match event {
            Event::Message { connection, message } => self.on_message(now, connection, message, &mut commands),
            Event::Disconnected { connection, cause } => {
                self.hosts.node_gone(connection);
                if let Some(host) = self.hosts.by_connection(connection) {
                    let suspect = self.hosts.disconnected(host, cause);
                    commands.extend(suspect.then(|| Command::Tell(self.hosts.suspected(now, host))));
                }
                Stir::Nothing
            }
            Event::Weights(weights) => {
                self.on_weights(now, weights, &mut commands);
                Stir::Everything
            }
            Event::Starved => {
                self.hosts.judge.starved = true;
                Stir::Nothing
            }
            Event::Tick => {
                self.on_tick(now, &mut commands);
                Stir::Everything
            }
        };
        match stir {
            Stir::Nothing => {}
            Stir::Touched => self.advance(now, false, &mut commands),
            Stir::Everything => self.advance(now, true, &mut commands),
        }
        commands
    }

    pub(super) fn running_job(&mut self, number: u64) -> Option<Edit<'_>> {
        self.jobs.get_mut(number).filter(|job| job.is_running())
    }

    pub(super) fn send(&self, host: usize, command: HostCommand, commands: &mut Vec<Command>) {
        let connection = self.hosts.at(host).connection;
        commands.extend(connection.map(|connection| Command::Send { connection, command }));
    }

    fn on_tick(&mut self, now: Duration, commands: &mut Vec<Command>) {
        let Liveness { heartbeat, suspect_after, dead_after, .. } = self.config.liveness;
        let suspect_after = heartbeat * suspect_after;
        self.began += self.hosts.excuse(now, suspect_after);
        let (suspect, dead) = self.hosts.silent(now, suspect_after, dead_after);
        commands.extend(suspect.into_iter().map(|host| Command::Tell(self.hosts.suspected(now, host))));
        for host in dead {
            let record = self.hosts.at(host);
            let silence = record.silence(now).as_secs_f64();
            let unlinked = record.connection.is_none() && record.seen.0 == Condition::Well;
            let link = record.cause.clone().filter(|_| unlinked);
            let why = link.unwrap_or_else(|| record.why_silent().into());
            self.lose(now, host, ("heartbeat", format!("no heartbeat for {silence:.1} s; {why}")), commands);
        }
        self.give_up_absent(now, commands);
        self.move_out(now, commands);
        self.expire_sessions(now, commands);
        self.release_outgrown(commands);
        for job in self.jobs.late(now) {
            let message = "the job reached its time limit; raise --timeout or shorten the context".to_string();
            self.end(now, job, Outcome::Failed { code: "timeout".into(), message }, commands);
        }
    }

    /// Ends a job that has not ended, tells its watchers and frees what hosts hold for it.
    pub(super) fn end(&mut self, now: Duration, number: u64, outcome: Outcome, commands: &mut Vec<Command>) {
        let Some(mut job) = self.jobs.open_mut(number) else { return };
        job.finish(now, outcome);
        let (context, query_host) = (job.context, job.query_host.take());
        commands.push(Command::Persist(record::job(&job)));
        commands.extend(job.ended_observations().into_iter().map(Command::Observe));
        commands.push(Command::Tell(job.ended()));
        let event = JobEvent::Finished { status: Box::new(job.status_at(now)) };
        drop(job);
        commands.push(Command::Publish { job: number, event });
        if let Some(host) = query_host {
            self.send(host, HostCommand::Stop { job: number }, commands);
        }
        self.release_unused(context, commands);
        while let Some(oldest) = self.jobs.surplus(ENDED_JOBS, ENDED_BYTES) {
            self.jobs.remove(oldest);
            commands.push(Command::Persist(record::no_job(oldest)));
        }
    }

    /// Ends what a journal has of another model, and frees the contexts that it has and nobody asks: one that ends between two
    /// writes may leave them.
    pub fn reconcile(&mut self, now: Duration) -> Vec<Command> {
        let mut commands = Vec::new();
        self.settle_model(now, &mut commands);
        self.contexts.numbers().into_iter().for_each(|number| self.release_unused(number, &mut commands));
        commands
    }

    /// Frees a context that neither a session nor a job that goes on has a use for.
    pub(super) fn release_unused(&mut self, number: u64, commands: &mut Vec<Command>) {
        let Some(context) = self.contexts.get(number) else { return };
        if self.is_of_session(number) || self.is_asked_beside(number, None) {
            return;
        }
        for host in context.hosts() {
            self.release(host, number, commands);
        }
        self.contexts.remove(number);
        commands.extend(record::no_context(number).map(Command::Persist));
    }
}
