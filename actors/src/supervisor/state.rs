//! The supervisor's state: its tables, and which rule each event goes to. What the rules are is `rules`; who works on what is
//! `scheduler`. No I/O, no clock, no tensor.
//!
//! Time is a duration since the Unix epoch at the supervisor's start, running on with a clock that does not jump.

mod changes;
mod messages;
mod replay;
mod sessions;
pub mod view;

use std::time::Duration;

use crate::{
    messages::Condition,
    supervisor::{
        command::{SupervisorCommand, SupervisorEvent, WorkChange},
        config::{Liveness, ServedModel, SupervisorConfig},
        rules::{
            accused::Accusations,
            admission::AdmissionControl,
            drain::{self, Draining, leaving::Departures},
            joining::Joining,
            model::ModelCheck,
            recovery::HostLoss,
            reports::Reports,
        },
        scheduler::{advance::Scheduler, waiting::Waits},
        tables::{
            contexts::Contexts,
            hosts::Hosts,
            jobs::Jobs,
            model::ClusterModels,
            numbers::{Numbers, Origin},
            reserved::Reserved,
            sessions::Sessions,
            shard_homes::RecentEncoders,
        },
    },
};

/// The tables, and what was configured.
pub struct SupervisorState {
    pub(super) config: SupervisorConfig,
    pub(super) models: ClusterModels,
    pub(super) hosts: Hosts,
    pub(super) contexts: Contexts,
    pub(super) jobs: Jobs,
    pub(super) sessions: Sessions,
    /// Where shards that depend on nothing were encoded lately.
    pub(super) lately: RecentEncoders,
    /// What is decided and not in force.
    pub(super) reserved: Reserved,
    /// What is drawn once for the life of the journal, and the last number given away.
    pub(super) numbers: Numbers,
}

impl SupervisorState {
    /// Before any host connected. `origin` is another one for each journal.
    pub fn new(config: SupervisorConfig, now: Duration, origin: Origin) -> Self {
        Self {
            models: ClusterModels::new(&config.models),
            hosts: Hosts::new(&config.hosts, now),
            contexts: Contexts::default(),
            jobs: Jobs::default(),
            sessions: Sessions::default(),
            lately: RecentEncoders::default(),
            reserved: Reserved::default(),
            numbers: Numbers::new(origin),
            config,
        }
    }

    /// The configuration.
    pub fn config(&self) -> &SupervisorConfig {
        &self.config
    }

    /// From now on the cluster is configured like this: limits, labels, hosts and models that are new. What it says of a model that there is,
    /// and of a host's role and node, does not change while the supervisor runs; hosts that it does not have stay until they are removed.
    pub fn reconfigure(&mut self, now: Duration, config: SupervisorConfig) -> Vec<SupervisorCommand> {
        let mut out = Vec::new();
        for spec in &config.hosts {
            match self.hosts.by_name(&spec.name) {
                Some(host) => {
                    let known = &mut self.hosts.at_mut(host).spec;
                    known.labels.clone_from(&spec.labels);
                    known.device.clone_from(&spec.device);
                    (known.memory_limit, known.weight_bytes) = (spec.memory_limit, spec.weight_bytes);
                }
                None => self.hosts.add(spec.clone(), now),
            }
        }
        let is_new = |model: &&ServedModel| self.config.model(&model.label).is_none();
        let new: Vec<ServedModel> = config.models.iter().filter(is_new).cloned().collect();
        self.model_check(now, &mut out).take_in(&new);
        // Rules know hosts by their index.
        let hosts = self.hosts.iter().map(|record| record.spec.clone()).collect();
        self.config = SupervisorConfig { hosts, ..config };
        self.scheduler(now, &mut out).advance(true);
        out
    }

    /// From now on canaries alone begin, or all does; what is generated goes on.
    pub fn hold_back(&mut self, held: bool) {
        self.jobs.held = held;
    }

    /// Applies one event.
    pub fn handle(&mut self, now: Duration, event: SupervisorEvent) -> Vec<SupervisorCommand> {
        let mut out = Vec::new();
        let stir = match event {
            SupervisorEvent::Message { connection, message } => self.on_message(now, connection, message, &mut out),
            SupervisorEvent::Connected { connection, protocol } => {
                self.hosts.speaks(connection, protocol);
                WorkChange::Nothing
            }
            SupervisorEvent::Disconnected { connection, cause } => {
                self.hosts.connection_gone(connection);
                if let Some(host) = self.hosts.by_connection(connection) {
                    if self.hosts.at(host).was_told_to_leave() {
                        self.loss(now, &mut out).on_left(host);
                        self.scheduler(now, &mut out).advance(true);
                        return out;
                    }
                    let suspect = self.hosts.disconnected(host, cause);
                    out.extend(suspect.then(|| SupervisorCommand::Notify(self.hosts.suspected(now, host))));
                }
                WorkChange::Nothing
            }
            SupervisorEvent::Weights { model, weights } => {
                self.model_check(now, &mut out).on_weights(&model, weights);
                WorkChange::Everything
            }
            SupervisorEvent::Starved => {
                self.hosts.note_starved();
                WorkChange::Nothing
            }
            SupervisorEvent::Tick => {
                self.on_tick(now, &mut out);
                WorkChange::Everything
            }
        };
        match stir {
            WorkChange::Nothing => {}
            WorkChange::Touched => self.scheduler(now, &mut out).advance(false),
            WorkChange::Everything => self.scheduler(now, &mut out).advance(true),
        }
        out
    }

    fn on_tick(&mut self, now: Duration, out: &mut Vec<SupervisorCommand>) {
        let Liveness { heartbeat, suspect_after, dead_after, .. } = self.config.liveness;
        let suspect_after = heartbeat * suspect_after;
        self.hosts.excuse(now, suspect_after);
        let (suspect, dead) = self.hosts.silent(now, suspect_after, dead_after);
        out.extend(suspect.into_iter().map(|host| SupervisorCommand::Notify(self.hosts.suspected(now, host))));
        for host in dead {
            let record = self.hosts.at(host);
            let silence = record.silence(now).as_secs_f64();
            let unlinked = record.connection.is_none() && record.seen.0 == Condition::Well;
            let link = record.cause.clone().filter(|_| unlinked);
            let why = link.unwrap_or_else(|| record.why_silent().into());
            self.loss(now, out).lose(host, ("heartbeat", format!("no heartbeat for {silence:.1} s; {why}")));
        }
        self.loss(now, out).give_up_absent();
        self.draining(now, out).move_out();
        self.draining(now, out).rebalance();
        out.extend(self.hosts.judge_paces(now).into_iter().map(SupervisorCommand::Notify));
        let late = self.jobs.late(now);
        let mut loss = self.loss(now, out);
        let mut teardown = loss.teardown();
        teardown.expire_sessions();
        teardown.release_outgrown();
        for job in late {
            let message = "the job reached its time limit; raise --timeout or shorten the context".to_string();
            teardown.fail(job, "timeout", message);
        }
    }

    /// Ends what a journal has of another model, and frees the contexts that it has and nobody asks: one that ends between two
    /// writes may leave them.
    pub fn reconcile(&mut self, now: Duration) -> Vec<SupervisorCommand> {
        let mut out = Vec::new();
        self.model_check(now, &mut out).settle_all();
        let numbers = self.contexts.numbers();
        let mut loss = self.loss(now, &mut out);
        numbers.into_iter().for_each(|number| loss.teardown().release_unused(number));
        out
    }

    /// The whole cluster ends, as somebody wants it.
    pub fn end_hosts(&mut self) -> Vec<SupervisorCommand> {
        drain::end_hosts(&mut self.hosts)
    }

    /// What opens the context that a job asks.
    #[cfg(test)]
    pub(super) fn ticket_of(&self, job: u64) -> crate::ticket::Ticket {
        crate::supervisor::rules::joining::ticket_of(&self.jobs, &self.contexts, job)
    }

    fn loss<'a>(&'a mut self, now: Duration, out: &'a mut Vec<SupervisorCommand>) -> HostLoss<'a> {
        HostLoss {
            now,
            config: &self.config,
            hosts: &mut self.hosts,
            contexts: &mut self.contexts,
            jobs: &mut self.jobs,
            sessions: &mut self.sessions,
            reserved: &self.reserved,
            out,
        }
    }

    fn draining<'a>(&'a mut self, now: Duration, out: &'a mut Vec<SupervisorCommand>) -> Draining<'a> {
        Draining { loss: self.loss(now, out) }
    }

    fn departures<'a>(&'a mut self, now: Duration, out: &'a mut Vec<SupervisorCommand>) -> Departures<'a> {
        Departures { loss: self.loss(now, out) }
    }

    pub(super) fn accusations<'a>(&'a mut self, now: Duration, out: &'a mut Vec<SupervisorCommand>) -> Accusations<'a> {
        Accusations { loss: self.loss(now, out) }
    }

    fn reports<'a>(&'a mut self, now: Duration, out: &'a mut Vec<SupervisorCommand>) -> Reports<'a> {
        let Self { config, hosts, contexts, jobs, sessions, reserved, lately, .. } = self;
        Reports { loss: HostLoss { now, config, hosts, contexts, jobs, sessions, reserved, out }, lately }
    }

    fn scheduler<'a>(&'a mut self, now: Duration, out: &'a mut Vec<SupervisorCommand>) -> Scheduler<'a> {
        let Self { config, hosts, contexts, jobs, sessions, reserved, lately, .. } = self;
        Scheduler { loss: HostLoss { now, config, hosts, contexts, jobs, sessions, reserved, out }, lately }
    }

    fn joining<'a>(&'a mut self, now: Duration, out: &'a mut Vec<SupervisorCommand>) -> Joining<'a> {
        let Self { config, hosts, contexts, jobs, sessions, reserved, numbers, models, .. } = self;
        Joining { loss: HostLoss { now, config, hosts, contexts, jobs, sessions, reserved, out }, numbers, models }
    }

    fn model_check<'a>(&'a mut self, now: Duration, out: &'a mut Vec<SupervisorCommand>) -> ModelCheck<'a> {
        let Self { config, hosts, contexts, jobs, sessions, reserved, numbers, models, .. } = self;
        ModelCheck { loss: HostLoss { now, config, hosts, contexts, jobs, sessions, reserved, out }, numbers, models }
    }

    fn admission(&self, now: Duration) -> AdmissionControl<'_> {
        let Self { config, hosts, contexts, jobs, sessions, reserved, numbers, models, .. } = self;
        AdmissionControl { now, config, hosts, contexts, jobs, sessions, reserved, numbers, models }
    }

    #[cfg(test)]
    pub(super) fn uses(&self) -> crate::supervisor::rules::uses::Uses<'_> {
        let Self { contexts, jobs, sessions, reserved, .. } = self;
        crate::supervisor::rules::uses::Uses { contexts, jobs, sessions, reserved }
    }

    fn waits(&self, now: Duration) -> Waits<'_> {
        let Self { config, hosts, contexts, jobs, .. } = self;
        Waits { now, config, hosts, contexts, jobs }
    }
}
