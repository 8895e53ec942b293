//! The supervisor's rules: who is alive, which job runs where, and what a failure means. No I/O, no clock, no tensor.

use std::{collections::VecDeque, time::Duration};

use asterism_plan::Plan;

use crate::{
    api::{ClusterStatus, ErrorBody, HostHealth, JobEvent, JobStatus, Role},
    error::JobError,
    messages::{HostCommand, HostMessage, TokenChoice},
    metric::Observation,
    supervisor::{
        config::{Recovery, SupervisorConfig},
        hosts::{HostRecord, Hosts},
        job::Job,
    },
};

/// A request tokenised and planned.
#[derive(Clone, Debug)]
pub struct PreparedJob {
    /// Client id; absent: the supervisor makes one.
    pub id: Option<String>,
    /// The plan.
    pub plan: Plan,
    /// Pairs that dense attention over the context computes in phase 1.
    pub dense_pairs: u64,
    /// Query tokens.
    pub query_ids: Vec<u32>,
    /// How tokens are chosen.
    pub choice: TokenChoice,
    /// Time after submission at which the job fails.
    pub timeout: Option<Duration>,
    /// Labels.
    pub labels: std::collections::BTreeMap<String, String>,
}

/// What happens to the supervisor.
#[derive(Debug)]
pub enum Event {
    /// A message on a host connection.
    Message {
        /// Connection, unique for the life of the supervisor.
        connection: u64,
        /// What it said.
        message: HostMessage,
    },
    /// A host connection ended.
    Disconnected {
        /// Connection.
        connection: u64,
        /// Why.
        cause: String,
    },
    /// A host process ended, says who started it.
    Exited {
        /// Host name.
        host: String,
        /// How.
        cause: String,
    },
    /// A client cancels a job.
    Cancel {
        /// Job number.
        job: u64,
    },
    /// Time passed.
    Tick,
}

/// What the supervisor wants done.
#[derive(Debug)]
pub enum Command {
    /// Tell a host.
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
}

/// The state.
pub struct SupervisorState {
    config: SupervisorConfig,
    pub(super) hosts: Hosts,
    jobs: Vec<Job>,
    queue: VecDeque<u64>,
}

impl SupervisorState {
    /// Before any host connected.
    pub fn new(config: SupervisorConfig) -> Self {
        let hosts = Hosts::new(&config.hosts);
        Self { config, hosts, jobs: Vec::new(), queue: VecDeque::new() }
    }

    /// The configuration.
    pub fn config(&self) -> &SupervisorConfig {
        &self.config
    }

    /// Takes a job in and starts it when there is room. Returns its number; the same id twice returns the first job.
    ///
    /// # Errors
    /// [`JobError::Overloaded`] when the queue is full.
    pub fn submit(&mut self, now: Duration, prepared: PreparedJob) -> Result<(u64, Vec<Command>), JobError> {
        if let Some(job) = prepared.id.as_deref().and_then(|id| self.job_number(id)) {
            return Ok((job, Vec::new()));
        }
        if self.queue.len() >= self.config.max_queue {
            return Err(JobError::Overloaded { waiting: self.queue.len() });
        }
        let number = self.jobs.len() as u64 + 1;
        self.jobs.push(Job::new(number, now, &self.config.model, prepared));
        self.queue.push_back(number);
        let mut commands = Vec::new();
        self.dispatch(now, &mut commands);
        Ok((number, commands))
    }

    /// Applies one event.
    pub fn handle(&mut self, now: Duration, event: Event) -> Vec<Command> {
        let mut commands = Vec::new();
        match event {
            Event::Message { connection, message } => self.on_message(now, connection, message, &mut commands),
            Event::Disconnected { connection, cause } => {
                if let Some(host) = self.hosts.by_connection(connection) {
                    self.lose(now, host, "disconnected", cause, &mut commands);
                }
            }
            Event::Exited { host, cause } => {
                if let Some(host) = self.hosts.by_name(&host) {
                    self.lose(now, host, "exited", cause, &mut commands);
                }
            }
            Event::Cancel { job } => {
                self.queue.retain(|&queued| queued != job);
                self.end(now, job, Outcome::Cancelled, &mut commands);
            }
            Event::Tick => self.on_tick(now, &mut commands),
        }
        self.dispatch(now, &mut commands);
        commands
    }

    /// A job's number by its id.
    pub fn job_number(&self, id: &str) -> Option<u64> {
        self.jobs.iter().find(|job| job.status.id == id).map(|job| job.number)
    }

    /// A job's status with its timings up to `now`.
    pub fn job_status(&self, now: Duration, number: u64) -> Option<JobStatus> {
        self.job(number).map(|job| job.status_at(now))
    }

    /// Every job, oldest first.
    pub fn job_statuses(&self, now: Duration) -> Vec<JobStatus> {
        self.jobs.iter().map(|job| job.status_at(now)).collect()
    }

    /// The cluster for `status`.
    pub fn cluster_status(&self, now: Duration, version: &str) -> ClusterStatus {
        ClusterStatus {
            name: self.config.cluster.clone(),
            model: self.config.model.clone(),
            method: self.config.method.name().to_string(),
            version: version.to_string(),
            ready: self.hosts.iter().all(|host| host.health == HostHealth::Ready),
            hosts: self.hosts.iter().map(|host| host.status(now)).collect(),
            jobs_pending: self.queue.len(),
            jobs_running: self.running().count(),
        }
    }

    /// Context hosts that take shards now.
    pub fn context_hosts(&self) -> usize {
        self.hosts.ready(Role::Context).len()
    }

    pub(super) fn running(&self) -> impl Iterator<Item = &Job> {
        self.jobs.iter().filter(|job| job.is_running())
    }

    fn job(&self, number: u64) -> Option<&Job> {
        self.jobs.get(number.checked_sub(1)? as usize)
    }

    pub(super) fn job_mut(&mut self, number: u64) -> Option<&mut Job> {
        self.jobs.get_mut(number.checked_sub(1)? as usize)
    }

    fn on_message(&mut self, now: Duration, connection: u64, message: HostMessage, commands: &mut Vec<Command>) {
        if let HostMessage::Hello(hello) = message {
            let heartbeat_ms = self.config.heartbeat.as_millis() as u64;
            let command = match self.hosts.admit(now, connection, &hello) {
                Ok(()) => HostCommand::Welcome { heartbeat_ms },
                Err(reason) => HostCommand::Refuse { reason },
            };
            commands.push(Command::Send { connection, command });
            return;
        }
        let Some(host) = self.hosts.by_connection(connection) else {
            let reason = "this host was declared dead or never said hello".to_string();
            commands.push(Command::Disconnect { connection, reason });
            return;
        };
        self.hosts.heard(now, host);
        match message {
            HostMessage::Hello(_) => {}
            HostMessage::Heartbeat { kv_bytes } => self.hosts.at_mut(host).kv_bytes = kv_bytes,
            HostMessage::Ready => self.hosts.at_mut(host).health = HostHealth::Ready,
            HostMessage::Unfit { cause } => self.lose(now, host, "unfit", cause, commands),
            HostMessage::Failed { job, code, message } => {
                self.end(now, job, Outcome::Failed { code, message }, commands);
            }
            message => self.on_job_message(now, host, message, commands),
        }
    }

    fn on_tick(&mut self, now: Duration, commands: &mut Vec<Command>) {
        let suspect = self.config.heartbeat * self.config.suspect_after;
        for host in self.hosts.silent(now, suspect, self.config.dead_after) {
            let silence = self.hosts.at(host).silence(now).as_secs_f64();
            let cause = format!("no heartbeat for {silence:.1} s; the process hangs, is stopped or is cut off");
            self.lose(now, host, "heartbeat", cause, commands);
        }
        let late: Vec<u64> =
            self.jobs.iter().filter(|job| !job.has_ended() && job.is_late(now)).map(|job| job.number).collect();
        for job in late {
            self.queue.retain(|&queued| queued != job);
            let message = "the job reached its time limit; raise --timeout or shorten the context".to_string();
            self.end(now, job, Outcome::Failed { code: "timeout".into(), message }, commands);
        }
    }

    /// Declares a host dead and decides what that means for its jobs.
    fn lose(&mut self, now: Duration, host: usize, reason: &'static str, cause: String, commands: &mut Vec<Command>) {
        if self.hosts.at(host).health == HostHealth::Dead {
            return;
        }
        let connection = self.hosts.bury(host, cause.clone());
        let record = self.hosts.at(host);
        let (name, role) = (record.spec.name.clone(), record.spec.role);
        commands.push(Command::Observe(Observation::HostFailed { reason }));
        commands.extend(connection.map(|connection| Command::Disconnect { connection, reason: cause.clone() }));
        let hit: Vec<u64> = self.running().filter(|job| job.uses(host)).map(|job| job.number).collect();
        for job in hit {
            match self.config.recovery {
                Recovery::Fail | Recovery::Spare | Recovery::Redistribute => {
                    let message = format!(
                        "{role:?} host {name} was lost while the job used it: {cause}. The other hosts go on; submit the job again"
                    );
                    self.end(now, job, Outcome::Failed { code: "host_lost".into(), message }, commands);
                }
            }
        }
    }

    /// Ends a job that has not ended, tells its watchers and frees what hosts hold for it.
    pub(super) fn end(&mut self, now: Duration, number: u64, outcome: Outcome, commands: &mut Vec<Command>) {
        let Some(job) = self.job_mut(number).filter(|job| !job.has_ended()) else { return };
        job.finish(now, outcome);
        let used = job.used_hosts();
        commands.extend(job.ended_observations().into_iter().map(Command::Observe));
        let event = JobEvent::Finished { status: Box::new(job.status_at(now)) };
        commands.push(Command::Publish { job: number, event });
        let release = HostCommand::Release { job: number };
        let connections = used.into_iter().filter_map(|host| self.hosts.at(host).connection);
        commands.extend(connections.map(|connection| Command::Send { connection, command: release.clone() }));
    }

    /// Starts waiting jobs while there is room and the cluster has hosts for them.
    fn dispatch(&mut self, now: Duration, commands: &mut Vec<Command>) {
        while self.running().count() < self.config.max_running {
            let Some(&number) = self.queue.front() else { return };
            match self.placement() {
                Placement::Wait => return,
                Placement::Impossible(cause) => {
                    self.queue.pop_front();
                    let message = format!("{cause}; `asterism status` shows the hosts");
                    self.end(now, number, Outcome::Failed { code: "placement_impossible".into(), message }, commands);
                }
                Placement::On { contexts, query } => {
                    self.queue.pop_front();
                    self.start(now, number, (&contexts, query), commands);
                }
            }
        }
    }

    fn placement(&self) -> Placement {
        let contexts = self.hosts.ready(Role::Context);
        let query = self.hosts.ready(Role::Query).first().copied();
        match (contexts.is_empty(), query) {
            (false, Some(query)) if !self.hosts.starting() => Placement::On { contexts, query },
            _ if self.hosts.starting() => Placement::Wait,
            (true, _) => Placement::Impossible("no context host is alive"),
            _ => Placement::Impossible("no query host is alive"),
        }
    }
}

enum Placement {
    Wait,
    Impossible(&'static str),
    On { contexts: Vec<usize>, query: usize },
}

/// How a job ends.
#[derive(Debug)]
pub enum Outcome {
    /// With an answer; `stopped` by an end of sequence or stop string rather than the token limit.
    Answered {
        /// See above.
        stopped: bool,
    },
    /// With an error.
    Failed {
        /// Stable code.
        code: String,
        /// What, where, what to do.
        message: String,
    },
    /// By its user.
    Cancelled,
}

impl Outcome {
    /// The error, if it is one.
    pub fn error(&self) -> Option<ErrorBody> {
        match self {
            Self::Failed { code, message } => {
                Some(ErrorBody { message: message.clone(), code: code.clone(), param: None })
            }
            _ => None,
        }
    }
}

impl HostRecord {
    /// Time since it was last heard.
    pub fn silence(&self, now: Duration) -> Duration {
        now.saturating_sub(self.last_heard)
    }
}
