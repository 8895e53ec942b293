//! What a loss means: a host dead or out of reach, an order that came to nothing. What is then missing, the scheduler orders
//! anew.

use std::time::Duration;

use crate::{
    api::{HostHealth, JobEvent, JobPhase, RecoveryStatus, Role},
    cluster_event::ClusterEventKind,
    messages::{Condition, HostCommand},
    metric::Observation,
    supervisor::{
        command::SupervisorCommand,
        config::{Liveness, Recovery, SupervisorConfig},
        journal::record,
        rules::{host_selection::HostSelection, orders::Orders, teardown::Teardown},
        tables::{
            context::{Retry, UnderWay},
            contexts::Contexts,
            hosts::Hosts,
            jobs::Jobs,
            reserved::Reserved,
            sessions::Sessions,
        },
    },
};

/// Attempts at shards that pass each other something, before their context fails.
const ATTEMPTS: u32 = 8;
/// The second attempt waits so long; each later one twice as long as the one before.
const FIRST_RETRY: Duration = Duration::from_millis(200);
/// Times that a query host may ask the same hosts again before shards or the query host move.
const STALLS: u32 = 3;
/// Stalls sooner after one that was acted upon are none of their own: query hosts tell a loss again each second.
const STALL_PAUSE: Duration = Duration::from_millis(500);
/// Stalls without a token between them after which a job fails.
const MOST_STALLS: u32 = 60;

/// Why a host is not there that was told to end and to come back: no failure of anybody's.
const LEFT: &str = "left";

/// Takes work from hosts that are lost, and has what needs it go on without them.
pub struct HostLoss<'a> {
    pub now: Duration,
    pub config: &'a SupervisorConfig,
    pub hosts: &'a mut Hosts,
    pub contexts: &'a mut Contexts,
    pub jobs: &'a mut Jobs,
    pub sessions: &'a mut Sessions,
    pub reserved: &'a Reserved,
    pub out: &'a mut Vec<SupervisorCommand>,
}

impl HostLoss<'_> {
    /// Orders to hosts.
    pub fn orders(&mut self) -> Orders<'_> {
        let speculates = self.config.speculates;
        Orders { hosts: self.hosts, contexts: self.contexts, jobs: self.jobs, speculates, out: self.out }
    }

    /// What ends.
    pub fn teardown(&mut self) -> Teardown<'_> {
        Teardown {
            now: self.now,
            hosts: self.hosts,
            contexts: self.contexts,
            jobs: self.jobs,
            sessions: self.sessions,
            reserved: self.reserved,
            out: self.out,
        }
    }

    /// The same, for a while.
    pub fn reborrow(&mut self) -> HostLoss<'_> {
        HostLoss {
            now: self.now,
            config: self.config,
            hosts: self.hosts,
            contexts: self.contexts,
            jobs: self.jobs,
            sessions: self.sessions,
            reserved: self.reserved,
            out: self.out,
        }
    }

    /// Which hosts there are for what.
    pub fn selection(&self) -> HostSelection<'_> {
        HostSelection { config: self.config, hosts: self.hosts, contexts: self.contexts, jobs: self.jobs }
    }

    /// Declares a host dead: fences its process, has it ended, and takes its work away.
    pub fn lose(&mut self, host: usize, why: (&'static str, String)) {
        if self.hosts.at(host).health == HostHealth::Dead {
            return;
        }
        let (reason, cause) = why;
        let (start, silent_s) = (self.hosts.at(host).kept.start, self.hosts.at(host).silence(self.now).as_secs_f64());
        let name = self.hosts.name(host).to_string();
        let left = matches!(reason, LEFT | "removed");
        self.out.push(SupervisorCommand::Notify(match left {
            true => ClusterEventKind::HostLeft { host: name },
            false => ClusterEventKind::HostLost { host: name, reason: reason.into(), silent_s, cause: cause.clone() },
        }));
        let connection = self.hosts.bury(host, cause.clone());
        self.hosts.at_mut(host).unfit = reason == "unfit";
        self.out.push(SupervisorCommand::Persist(record::host(self.hosts.at(host))));
        if !left {
            self.out.push(SupervisorCommand::Observe(Observation::HostFailed { reason }));
        }
        self.out
            .extend(connection.map(|connection| SupervisorCommand::Disconnect { connection, reason: cause.clone() }));
        if self.hosts.node_of(host).is_some() && !matches!(reason, "unfit" | "misread" | "lied" | "removed") {
            // Its node starts it again, unless it says otherwise.
            let now = self.now;
            self.hosts.at_mut(host).coming_since.get_or_insert(now);
        }
        // A process that has ended or said that it is about to needs no help; what it logs last is the cause.
        if !matches!(reason, "exited" | "unfit" | "removed" | LEFT)
            && let Some(connection) = self.hosts.node_of(host)
        {
            let command = HostCommand::Kill { host: self.hosts.name(host).to_string(), start };
            self.out.push(SupervisorCommand::Send { connection, command });
        }
        self.vacate(host, (reason, cause));
    }

    /// The connection of a host that was told to leave ended: it has.
    pub fn on_left(&mut self, host: usize) {
        self.lose(host, (LEFT, "it was asked to end".into()));
    }

    /// A node says that a process of a host ended. It speaks for its own hosts only.
    pub fn on_exited(&mut self, from: u64, (name, start): (&str, u64), (cause, restarting): (String, bool)) {
        let Some(host) = self.of_node(from, name) else { return };
        let record = self.hosts.at_mut(host);
        if start < record.kept.start {
            return;
        }
        if start > record.kept.start && record.health == HostHealth::Dead && !record.unfit {
            // A start after the one that was lost did not come so far as to join: why is what keeps it away now.
            record.cause = Some(cause.clone());
        }
        let reason = if self.hosts.at(host).was_told_to_leave() { LEFT } else { "exited" };
        self.lose(host, (reason, cause));
        let now = self.now;
        let record = self.hosts.at_mut(host);
        match restarting {
            true => drop(record.coming_since.get_or_insert(now)),
            false => record.coming_since = None,
        }
        if let Some(cause) = record.cause.as_mut().filter(|_| !restarting && !record.unfit) {
            cause.push_str("; it is not started again");
        }
    }

    /// A node says how a process of a host looks. It speaks for its own hosts only.
    pub fn on_seen(&mut self, from: u64, (name, start): (&str, u64), condition: Condition) {
        if let Some(host) = self.of_node(from, name)
            && start == self.hosts.at(host).kept.start
        {
            self.hosts.seen(self.now, host, condition);
        }
    }

    /// The host of this name; none where the node on this connection is not the one to speak for it.
    fn of_node(&mut self, from: u64, name: &str) -> Option<usize> {
        let host = self.hosts.by_name(name)?;
        let (node, speaker) = (&self.hosts.at(host).spec.node, self.hosts.node_name(from).unwrap_or_default());
        if node == speaker {
            return Some(host);
        }
        let cause = format!("node {speaker} speaks for host {name}, expected its own node {node}");
        let refused = Observation::Refused { reason: "node", who: speaker.to_string(), cause: cause.clone() };
        self.out.push(SupervisorCommand::Observe(refused));
        self.out.push(SupervisorCommand::Disconnect { connection: from, reason: cause });
        None
    }

    /// Takes all work from a host, dead or alive, and notes that with the jobs that need it.
    pub fn vacate(&mut self, host: usize, why: (&str, String)) {
        let alive = self.hosts.at(host).is_up();
        for number in self.contexts.on_host(host) {
            // A session that fails takes with it what was appended to it, which may be on this host too.
            let Some(context) = self.contexts.get(number) else { continue };
            let held = !context.held_by(host).is_empty();
            if self.config.recovery == Recovery::Fail && !alive && held {
                let message = self.loss_message(host, "context", &why.1);
                self.teardown().fail_context(number, "host_lost", message);
                continue;
            }
            self.take_shards(number, (host, why.0));
        }
        for number in self.jobs.on_host(host) {
            if self.config.recovery == Recovery::Fail && !alive {
                let message = self.loss_message(host, "query", &why.1);
                self.teardown().fail(number, "host_lost", message);
                continue;
            }
            self.take_generation(number, (host, why.0));
        }
    }

    /// A host has a context's shards no more; one that is up is told. What it passed others before it reported goes with it.
    pub fn take_shards(&mut self, number: u64, (host, reason): (usize, &str)) {
        let mut context = self.contexts.get_mut(number).expect("it holds shards");
        let tainted = context.tainted_by(host);
        tainted.iter().for_each(|other| context.doubt(*other));
        let entangled = context.entangled().len();
        let lost = context.lose(host);
        if let Some(placed) = context.placed_mut().filter(|_| lost > 0) {
            placed.again.get_or_insert(UnderWay::since(self.now));
        }
        drop(context);
        for host in tainted.into_iter().chain([host]).filter(|host| self.hosts.at(*host).is_up()).collect::<Vec<_>>() {
            self.orders().release(host, number);
        }
        if lost == 0 {
            return;
        }
        let loss = (host, Role::Context, lost.max(entangled));
        self.jobs.of_context(number).into_iter().for_each(|job| self.note(job, loss, reason));
    }

    /// A host generates for a job no more; one that is up is told.
    pub fn take_generation(&mut self, number: u64, (host, reason): (usize, &str)) {
        if self.hosts.at(host).is_up() {
            self.orders().send(host, HostCommand::Stop { job: number });
        }
        self.note(number, (host, Role::Query, 0), reason);
        self.jobs.get_mut(number).expect("it runs").query_host = None;
    }

    /// An order to encode came to nothing.
    pub fn on_not_encoded(
        &mut self,
        host: usize,
        (number, attempt): (u64, u32),
        (peer_lost, code, message): (bool, String, String),
    ) {
        let Some(mut context) = self.contexts.get_mut(number).filter(|c| c.is_ordered_any(host)) else { return };
        let given_up = context.disinherit(host);
        drop(context);
        if !given_up.is_empty() {
            // Where a shard cannot move to before it leaves, it is lost to its host first, with retries and their end.
            let leave = |old| self.take_shards(number, (old, "drained"));
            return given_up.into_iter().for_each(leave);
        }
        let Some(mut context) = self.contexts.get_mut(number) else { return };
        let Some(placed) = context.placed_mut().filter(|placed| placed.attempt == attempt && !placed.redo) else {
            return;
        };
        let attempts = placed.retry.attempts;
        if !peer_lost || attempts >= ATTEMPTS {
            drop(context);
            let name = self.hosts.name(host).to_string();
            let tried = if attempts > 0 { format!(" ({} attempts)", attempts + 1) } else { String::new() };
            let message = format!("{name}: {message}{tried}");
            return self.teardown().fail_context(number, &code, message);
        }
        let not_before = self.now + FIRST_RETRY * 2_u32.pow(attempts);
        placed.retry = Retry { attempts: attempts + 1, not_before };
        placed.redo = true;
    }

    /// A host encoded a shard from something else than it was to read: it gets no shard of the context while another can.
    pub fn on_misread(&mut self, host: usize, (number, block): (u64, usize)) {
        let name = self.hosts.name(host).to_string();
        let message = format!(
            "{name} read another input for shard {block} than planned. See whether its memory is sound and it runs this very version"
        );
        let refused = Observation::Refused { reason: "input_mismatch", who: name, cause: message.clone() };
        self.out.push(SupervisorCommand::Observe(refused));
        let mut context = self.contexts.get_mut(number).expect("it has the shard");
        context.avoid.insert(host);
        context.misread += 1;
        let (often, was_migration_target) =
            (context.misread > ATTEMPTS, context.migration_targets().contains_key(&block));
        if was_migration_target {
            // Who held them holds them still; what this host has of them goes with the rest.
            context.disinherit(host);
        }
        let has_none = context.shards_on(host) == 0;
        drop(context);
        if often {
            return self.teardown().fail_context(number, "input_mismatch", message);
        }
        if self.is_replaceable(host, number) {
            return self.lose(host, ("misread", message));
        }
        match has_none {
            true => self.orders().release(host, number),
            false => self.take_shards(number, (host, "input_mismatch")),
        }
    }

    /// A query host gets no answer from a host that others hear: it tries again, and if that does not help, shards move, or
    /// the generation does when nobody answers it.
    pub fn on_stalled(&mut self, from: usize, number: u64, (silent, cause): (String, String)) {
        let Some(host) = self.hosts.by_name(&silent) else { return };
        let Some(job) = self.jobs.running_mut(number).filter(|job| job.query_host == Some(from)) else { return };
        let (Some(query_host), context) = (job.query_host, job.context) else { return };
        drop(job);
        let held =
            self.contexts.get(context).is_some_and(|c| c.is_ready() && c.places().iter().any(|p| p.host == Some(host)));
        if !held {
            // Its shards are under way elsewhere, or there already: holders follow when all are.
            let ready = self.contexts.get(context).is_some_and(|context| context.is_ready());
            if ready {
                self.orders().send_holders(number, query_host);
            }
            return;
        }
        let mut job = self.jobs.get_mut(number).expect("it runs");
        job.stalls.hosts.insert(host);
        if self.now.saturating_sub(job.stalls.last) < STALL_PAUSE {
            return;
        }
        (job.stalls.count, job.stalls.last) = (job.stalls.count + 1, self.now);
        let (silent_hosts, stalls) = (job.stalls.hosts.len(), job.stalls.count);
        if stalls.is_multiple_of(STALLS) && silent_hosts > 1 && stalls <= MOST_STALLS {
            job.avoid.insert(query_host);
        }
        drop(job);
        if stalls > MOST_STALLS {
            let message = format!("{silent} does not answer the query host: {cause}; waited in vain {stalls} times");
            return self.teardown().fail(number, "host_lost", message);
        }
        if stalls % STALLS != 0 {
            return self.orders().send_holders(number, query_host);
        }
        if silent_hosts > 1 {
            return self.take_generation(number, (query_host, "stalled"));
        }
        self.contexts.get_mut(context).expect("it is held").avoid.insert(host);
        self.take_shards(context, (host, "stalled"));
    }

    /// A job goes on: its recoveries are over.
    pub fn resume(&mut self, number: u64) {
        let Some(mut job) = self.jobs.get_mut(number) else { return };
        let (recovered, phase) = (job.recovered(self.now), job.phase());
        drop(job);
        if recovered.is_empty() {
            return;
        }
        for recovery in recovered {
            let seconds = recovery.recovered_s.unwrap_or_default();
            self.out.push(SupervisorCommand::Observe(Observation::Recovered { seconds }));
            self.out.push(SupervisorCommand::Publish { job: number, event: JobEvent::Recovery { recovery } });
        }
        self.out.push(SupervisorCommand::Publish { job: number, event: JobEvent::Phase { phase } });
    }

    /// Hosts that held shards for an earlier supervisor and have not come back to this one.
    pub fn give_up_absent(&mut self) {
        let Liveness { dead_after, rejoin, .. } = self.config.liveness;
        for host in self.hosts.absent(self.now, dead_after, dead_after + rejoin) {
            let cause = "it did not come back to the supervisor after that was started again".to_string();
            self.lose(host, ("disconnected", cause));
        }
    }

    fn note(&mut self, number: u64, loss: (usize, Role, usize), reason: &str) {
        let (host, role, shards) = loss;
        let record = self.hosts.at(host);
        let silent_s = record.silence(self.now).as_secs_f64();
        let host = record.spec.name.clone();
        let Some(mut job) = self.jobs.running_mut(number) else { return };
        let (phase, reason) = (job.phase(), reason.to_string());
        let recovery = RecoveryStatus { host, role, reason, phase, silent_s, shards, recovered_s: None };
        job.lost(self.now, recovery.clone());
        self.out.push(SupervisorCommand::Publish { job: number, event: JobEvent::Recovery { recovery } });
        let event = JobEvent::Phase { phase: JobPhase::Recovering };
        self.out.push(SupervisorCommand::Publish { job: number, event });
    }

    fn loss_message(&self, host: usize, role: &str, cause: &str) -> String {
        let name = self.hosts.name(host);
        format!(
            "{role} host {name} was lost while the job used it: {cause}. The other hosts go on; submit the job again, or set supervisor.recovery to \"redistribute\""
        )
    }

    /// Whether somebody else could encode what a host encoded wrongly.
    fn is_replaceable(&self, host: usize, context: u64) -> bool {
        let Some(context) = self.contexts.get(context) else { return false };
        let able =
            self.hosts.that(|record| record.takes_work() && record.rank(Role::Context, self.config.recovery).is_some());
        let is_of = |other: usize| self.hosts.at(other).spec.model() == context.prepared.model();
        able.into_iter().any(|other| other != host && is_of(other) && !context.avoid.contains(&other))
    }
}
