//! The supervisor's rules with a fake clock: no host, no wire. Whole clusters with faults are simulated in tests/simulation.

mod append;
mod cluster_events;
mod held;
mod ids;
mod journal;
mod members;
mod model;
mod moving;
mod numerics;
mod queue;
mod starved;
mod waiting;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use asterism_models::QuerySeparator;
use asterism_plan::{KnownIds, Method, MethodConfig, ModelShape, PlanRequest};
use asterism_transport::Endpoint;
use serde_json::json;

use super::{
    Decided, Fingerprint, HostSpec, JobFilter, Liveness, MODEL_LABEL, Origin, PreparedContext, PreparedJob, Question,
    Recovery, ServedModel, SessionLimits, Source, SupervisorCommand, SupervisorConfig, SupervisorEvent,
    SupervisorState,
    shell::write_queue::{Journal, JournalAction},
};
use crate::{
    api::{HostHealth, JobEvent, JobPhase, JobRequest, JobState, PlacementPolicy, Role, SessionState},
    cluster_event::ClusterEventKind,
    messages::{Condition, EncodeShards, Encoded, Generate, Hello, HostCommand, HostMessage, HostRole, TokenChoice},
    store::{Change, Entry},
    ticket::{Secret, Ticket},
};

const CONTEXT: u32 = 100;
const CLUSTER: u64 = 77;
/// Connection of the node agent.
const NODE: u64 = 900;

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

fn config(contexts: usize, spares: usize) -> SupervisorConfig {
    let named = |prefix: &'static str, count, role| (0..count).map(move |i| (format!("{prefix}{i}"), role));
    let hosts =
        named("c", contexts, Role::Context).chain(named("q", 1, Role::Query)).chain(named("s", spares, Role::Spare));
    let spec = |(name, role)| HostSpec {
        name,
        role,
        device: "cpu".into(),
        node: "here".into(),
        memory_limit: None,
        weight_bytes: 0,
        labels: BTreeMap::new(),
    };
    SupervisorConfig {
        cluster: "test".into(),
        models: vec![ServedModel {
            label: String::new(),
            name: "model".into(),
            digest: Default::default(),
            weights: Some(Default::default()),
            kv: asterism_kernels::DType::F32.into(),
            speeds: None,
        }],
        hosts: hosts.map(spec).collect(),
        method: serde_json::from_value(json!({"star": {"block_tokens": 30}})).expect("a method"),
        liveness: Liveness {
            heartbeat: seconds(0.5),
            suspect_after: 2,
            dead_after: seconds(2.0),
            rejoin: seconds(5.0),
        },
        max_running: 1,
        encode_ahead: Duration::ZERO,
        max_generating: 32,
        speculates: true,
        max_queue: 3,
        max_queue_bytes: 64 << 20,
        recovery: Recovery::Redistribute,
        rebalance: true,
        avoid_stragglers: false,
        ready_when: Default::default(),
        patience: seconds(60.0),
        mixed_numerics: Default::default(),
        sessions: SessionLimits { default_ttl: seconds(100.0), max_pinned_bytes: None },
    }
}

fn ready() -> HostMessage {
    HostMessage::Ready { numerics: "cpu".into(), model: Box::default() }
}

/// A state with its clock, journal and what it sent last.
struct Cluster {
    state: SupervisorState,
    now: f64,
    journal: Vec<Entry>,
    /// What waits for a write, where a test looks at that.
    queue: Option<Journal>,
    events: Vec<JobEvent>,
    sent: Vec<(u64, HostCommand)>,
    closed: Vec<u64>,
    /// Ids that hosts have, by connection and context.
    ids: BTreeMap<(u64, u64), KnownIds>,
    update: Vec<ClusterEventKind>,
}

impl Cluster {
    fn starting(config: SupervisorConfig) -> Self {
        let state = SupervisorState::new(config, Duration::ZERO, origin(CLUSTER));
        let (journal, queue, events, sent, closed, update, ids) = Default::default();
        Self { state, now: 0.0, journal, queue, events, sent, closed, ids, update }
    }

    /// All hosts and the node are there.
    fn ready(config: SupervisorConfig) -> Self {
        let mut cluster = Self::starting(config);
        let hello = Hello { name: "here".into(), role: HostRole::Node, start: 1, ..Hello::default() };
        cluster.deliver(NODE, HostMessage::Hello(hello));
        for at in 0..cluster.state.config().hosts.len() {
            cluster.join(at, 1);
        }
        cluster.sent.clear();
        cluster
    }

    /// A new process of host `at` joins, the `start`th of its node.
    fn join(&mut self, at: usize, start: u64) {
        self.hello(at, start, 0, (&[], &[]));
        self.deliver(connection(at, start), ready());
    }

    /// Every process was given its number of starts as its incarnation; a new one does not know it.
    fn hello(&mut self, at: usize, start: u64, cluster: u64, (contexts, jobs): (&[u64], &[u64])) {
        let spec = self.state.config().hosts[at].clone();
        let role = match spec.role {
            Role::Context => HostRole::Context,
            Role::Query => HostRole::Query,
            Role::Spare => HostRole::Spare,
        };
        let ticket = |&job: &u64| (job, self.state.ticket_of(job));
        let (contexts, jobs) = (contexts.to_vec(), jobs.iter().map(ticket).collect());
        let (name, endpoints) = (spec.name, vec![Endpoint::new("quic", format!("127.0.0.1:{at}"))]);
        let incarnation = if cluster == 0 { 0 } else { start };
        let hello = Hello { name, role, incarnation, start, pid: 1, endpoints, cluster, contexts, jobs };
        self.deliver(connection(at, start), HostMessage::Hello(hello));
    }

    /// What hosts read is what they were to, unless a test says otherwise.
    fn deliver(&mut self, connection: u64, mut message: HostMessage) {
        if let HostMessage::Encoded(encoded) = &mut message
            && encoded.digest == 0
            && let Some(context) = self.state.contexts.get(encoded.context)
        {
            let shard = &context.plan().shards[encoded.block as usize];
            encoded.digest = shard.digest(&shard.input(&*context.prepared.ids).expect("it has all ids"));
        }
        self.event(SupervisorEvent::Message { connection, message });
    }

    fn event(&mut self, event: SupervisorEvent) {
        let commands = self.state.handle(seconds(self.now), event);
        self.note(commands);
    }

    /// A change is kept and comes into force.
    fn adopt(&mut self, decided: Decided) {
        decided.changes.iter().cloned().for_each(|change| self.keep(change));
        let commands = self.state.adopt(seconds(self.now), decided);
        self.note(commands);
    }

    fn note(&mut self, commands: Vec<SupervisorCommand>) {
        assert!(self.state.indexes_agree());
        match &mut self.queue {
            Some(queue) => {
                let acts = queue.follow(commands);
                self.perform(acts);
            }
            None => self.carry_out(commands),
        }
    }

    fn perform(&mut self, acts: Vec<JournalAction>) {
        for act in acts {
            match act {
                JournalAction::Do(command) => self.carry_out(vec![*command]),
                JournalAction::Notify(callback) => callback(&self.state, seconds(self.now)),
            }
        }
    }

    fn carry_out(&mut self, commands: Vec<SupervisorCommand>) {
        for command in commands {
            match command {
                SupervisorCommand::Persist(change) | SupervisorCommand::Note(change) => self.keep(change),
                SupervisorCommand::Send { connection, command } => {
                    self.hears(connection, &command);
                    self.sent.push((connection, command));
                }
                SupervisorCommand::Disconnect { connection, .. } => self.closed.push(connection),
                SupervisorCommand::Publish { event, .. } => self.events.push(event),
                SupervisorCommand::Observe(_) => {}
                SupervisorCommand::Notify(update) => self.update.push(update),
            }
        }
    }

    fn keep(&mut self, change: Change) {
        let (Change::Put { table, key, .. } | Change::Remove { table, key }) = &change;
        self.journal.retain(|entry| (entry.table, &entry.key) != (*table, key));
        if let Change::Put { table, key, value } = change {
            self.journal.push(Entry { table, key, value });
        }
    }

    /// Time passes; hosts in `beating` are alive.
    fn tick(&mut self, now: f64, beating: &[u64]) {
        self.now = now;
        beating.iter().for_each(|&at| self.deliver(at, HostMessage::Heartbeat { kv_bytes: 0, idle_bytes: 0 }));
        self.event(SupervisorEvent::Tick);
    }

    fn submit(&mut self, timeout: Option<f64>) -> u64 {
        let context = prepared(&self.state.config().method.clone(), self.contexts());
        self.ask(Source::Context(apart(context)), timeout)
    }

    fn ask(&mut self, source: Source, timeout: Option<f64>) -> u64 {
        let fresh = self.state.number();
        let (number, decided) = self.state.submit(seconds(self.now), fresh, job(source, timeout)).expect("taken");
        self.adopt(decided);
        number
    }

    fn contexts(&self) -> usize {
        self.state.config().hosts.iter().filter(|host| host.role == Role::Context).count()
    }

    fn take_sent(&mut self) -> Vec<(u64, HostCommand)> {
        std::mem::take(&mut self.sent)
    }

    /// Answers every order to encode sent so far, from hosts that are still connected. Returns (connection, order).
    fn encode(&mut self) -> Vec<(u64, EncodeShards)> {
        let orders: Vec<(u64, EncodeShards)> = self
            .take_sent()
            .into_iter()
            .filter_map(|(to, command)| match command {
                HostCommand::Encode(order) => Some((to, order)),
                other => {
                    self.sent.push((to, other));
                    None
                }
            })
            .collect();
        for (to, order) in &orders {
            for shard in &order.shards {
                let kept = shard.kept_tokens() as u64;
                self.deliver(*to, HostMessage::Encoded(encoded(order.context, shard.block as u32, kept)));
            }
        }
        orders
    }

    fn generation(&mut self) -> Option<(u64, Generate)> {
        self.take_sent().into_iter().find_map(|(to, command)| match command {
            HostCommand::Generate(generate) => Some((to, generate)),
            _ => None,
        })
    }

    fn token(&mut self, from: u64, job: u64, index: u32, id: u32) {
        self.deliver(from, HostMessage::Token { job, index, id, text: format!("{id} "), logprobs: None });
    }

    fn status(&self, job: u64) -> crate::api::JobStatus {
        self.state.job_status(seconds(self.now), job).expect("known")
    }

    fn health(&self, at: usize) -> HostHealth {
        self.state.cluster_status(seconds(self.now), "").hosts[at].health
    }

    /// The supervisor's process ends and another one reads the journal.
    fn restart(&mut self) {
        let config = self.state.config().clone();
        self.state =
            SupervisorState::restore(config, seconds(self.now), origin(1), &self.journal).expect("a good journal");
        self.sent.clear();
        let commands = self.state.reconcile(seconds(self.now));
        self.note(commands);
    }
}

/// A list of all jobs.
fn every_job() -> JobFilter {
    JobFilter { limit: usize::MAX, ..JobFilter::default() }
}

fn origin(cluster: u64) -> Origin {
    Origin { cluster, secret: Secret::new([9; 32]) }
}

fn connection(at: usize, start: u64) -> u64 {
    at as u64 + 1 + 100 * (start - 1)
}

fn encoded(context: u64, block: u32, kept_tokens: u64) -> Encoded {
    Encoded {
        context,
        block,
        digest: 0,
        kept_tokens,
        kv_bytes: 1,
        seconds: 0.1,
        computing_s: 0.1,
        operations: 1,
        pairs: 1,
        exchange_bytes: 0,
        cached: false,
    }
}

fn prepared(method: &MethodConfig, hosts: usize) -> PreparedContext {
    prepared_of(method, hosts, CONTEXT, &[1])
}

fn prepared_of(method: &MethodConfig, hosts: usize, tokens: u32, query: &[u32]) -> PreparedContext {
    let context: Vec<u32> = (0..tokens).collect();
    let asked =
        PlanRequest { context: &context, query, hosts, one_device: false, shape: &ModelShape::TINY, speeds: None };
    let plan = method.plan(&asked).expect("a plan");
    PreparedContext {
        ids: plan.numbered_ids(&context).into(),
        identities: Arc::default(),
        method: Box::new(method.clone()),
        hosts,
        plan: Arc::new(plan),
        dense_pairs: 1,
        kv_bytes_per_token: 8,
        kv_block: 1,
        chat_template: false,
        query_separator: QuerySeparator::NONE,
        template_date: None,
        text: None,
        placement: PlacementPolicy::default(),
        key: None,
        cache_salt: None,
        background: false,
    }
    .identified()
}

/// The same of which nobody else has a shard.
fn apart(context: PreparedContext) -> PreparedContext {
    PreparedContext { identities: Arc::default(), ..context }
}

fn fingerprint(query: &str) -> Fingerprint {
    Fingerprint::of(&JobRequest::new(Some("a context".into()), query.into()))
}

/// A job with an id of its own.
fn job(source: Source, timeout: Option<f64>) -> PreparedJob {
    static JOBS: AtomicU64 = AtomicU64::new(0);
    let id = format!("job-{:032x}", JOBS.fetch_add(1, Ordering::Relaxed));
    let choice = TokenChoice { max_tokens: 4, ..TokenChoice::default() };
    let question = Question {
        query_ids: vec![1],
        choice,
        timeout: timeout.map(seconds),
        refresh_order: None,
        canary: false,
        text: None,
        trace: None,
    };
    PreparedJob { id, fingerprint: None, source, question, labels: BTreeMap::new() }
}

/// A cluster of two context hosts whose job has generated tokens 7 and 8.
fn decoding() -> (Cluster, u64) {
    let mut cluster = Cluster::ready(config(2, 0));
    let job = cluster.submit(None);
    cluster.encode();
    let (query, _) = cluster.generation().expect("the query host is asked");
    cluster.token(query, job, 0, 7);
    cluster.token(query, job, 1, 8);
    (cluster, job)
}

#[test]
fn a_job_goes_through_its_phases() {
    let mut cluster = Cluster::ready(config(2, 0));
    let job = cluster.submit(None);
    cluster.now = 1.0;
    assert_eq!(cluster.encode().len(), 4, "four shards of 30, 30, 30 and 10 tokens");
    let (query, generate) = cluster.generation().expect("the query host is asked once every shard is encoded");
    let keys = generate.shards.iter().map(|shard| shard.keys).sum();
    assert_eq!((query, keys, generate.query_start), (3, u64::from(CONTEXT), CONTEXT));
    let blocks: Vec<&[u32]> = generate.holders.iter().map(|holder| &holder.blocks[..]).collect();
    assert_eq!(blocks, [&[0, 1][..], &[2, 3]]);
    cluster.now = 2.0;
    cluster.token(query, job, 0, 5);
    cluster.now = 3.0;
    cluster.deliver(
        query,
        HostMessage::Generated { job, tokens: 1, stopped: true, text: ".".into(), times: Box::default() },
    );
    let freed = cluster.take_sent();
    let released = freed.iter().filter(|(_, command)| matches!(command, HostCommand::Release { .. })).count();
    assert_eq!((released, freed.contains(&(query, HostCommand::Stop { job }))), (2, true), "{freed:?}");
    let status = cluster.status(job);
    assert_eq!((status.state, status.text.as_str()), (JobState::Succeeded, "5 ."));
    assert_eq!((status.timings.encode_s, status.timings.query_s, status.timings.decode_s), (1.0, 1.0, 1.0));
    assert_eq!(status.timings.hosts.iter().map(|host| host.kept_tokens).sum::<usize>(), CONTEXT as usize);
}

#[test]
fn a_silent_host_is_suspect_then_dead_and_its_shards_go_to_the_other() {
    let (mut cluster, job) = decoding();
    cluster.tick(1.6, &[1, 3]);
    assert_eq!(cluster.health(1), HostHealth::Suspect);
    cluster.tick(2.5, &[1, 3]);
    assert_eq!(cluster.health(1), HostHealth::Dead);
    assert!(cluster.closed.contains(&2));
    let kill = HostCommand::Kill { host: "c1".into(), start: 1 };
    assert!(cluster.sent.contains(&(NODE, kill)), "the node ends the process that hangs");
    assert_eq!(cluster.status(job).phase, Some(JobPhase::Recovering));
    cluster.now = 2.75;
    let orders = cluster.encode();
    let blocks: Vec<usize> = orders.iter().flat_map(|(_, order)| &order.shards).map(|shard| shard.block).collect();
    assert_eq!((blocks, orders.iter().all(|(to, _)| *to == 1)), (vec![2, 3], true), "its shards alone, by the other");
    let moved = cluster.take_sent();
    let Some((3, HostCommand::Holders { holders, .. })) = moved.last() else { panic!("{moved:?}") };
    assert_eq!((holders.len(), &holders[0].blocks[..]), (1, &[0, 1, 2, 3][..]));
    cluster.token(3, job, 2, 9);
    let status = cluster.status(job);
    assert_eq!((status.tokens.as_slice(), status.phase), (&[7, 8, 9][..], Some(JobPhase::Decoding)));
    let [recovery] = &status.recoveries[..] else { panic!("{:?}", status.recoveries) };
    assert_eq!((recovery.host.as_str(), recovery.reason.as_str(), recovery.shards), ("c1", "heartbeat", 2));
    assert_eq!((recovery.silent_s, recovery.recovered_s, recovery.phase), (2.5, Some(0.25), JobPhase::Decoding));
}

#[test]
fn a_lost_query_host_is_replaced_and_goes_through_the_tokens_again() {
    let (mut cluster, job) = decoding();
    let exited = HostMessage::Exited { host: "q0".into(), start: 1, cause: "signal 9".into(), restarting: true };
    cluster.deliver(NODE, exited);
    let (migration_target, generate) = cluster.generation().expect("a context host takes the role");
    assert_eq!((migration_target, generate.generated.as_slice()), (1, &[7, 8][..]));
    cluster.token(migration_target, job, 2, 9);
    cluster.token(3, job, 3, 1);
    assert_eq!(cluster.status(job).tokens, [7, 8, 9], "the host that was lost is not heard");
}

#[test]
fn who_generates_has_the_context_to_guess_from_where_the_cluster_speculates() {
    for speculates in [true, false] {
        let mut cluster = Cluster::ready(SupervisorConfig { speculates, ..config(2, 0) });
        let job = cluster.submit(None);
        cluster.encode();
        let (_, generate) = cluster.generation().expect("asked");
        let context = cluster.status(job).context_tokens;
        assert_eq!(generate.lookup.map(|ids| ids.len()), speculates.then_some(context));
    }
}

#[test]
fn a_spare_takes_over_before_others_and_only_spares_do_if_so_configured() {
    for (spares, expected) in [(1, Some(4)), (0, None)] {
        let mut cluster = Cluster::ready(SupervisorConfig { recovery: Recovery::Spare, ..config(2, spares) });
        cluster.submit(None);
        cluster.encode();
        cluster.generation().expect("asked");
        let exited = HostMessage::Exited { host: "q0".into(), start: 1, cause: "signal 9".into(), restarting: true };
        cluster.deliver(NODE, exited);
        assert_eq!(cluster.generation().map(|(to, _)| to), expected);
        if expected.is_none() {
            cluster.join(2, 2);
            assert_eq!(cluster.generation().map(|(to, _)| to), Some(connection(2, 2)), "it waits for the host itself");
        }
    }
}

#[test]
fn without_recovery_the_jobs_of_a_lost_host_fail() {
    let mut cluster = Cluster::ready(SupervisorConfig { recovery: Recovery::Fail, ..config(2, 0) });
    let job = cluster.submit(None);
    let waiting = cluster.submit(None);
    cluster.tick(2.5, &[1, 3]);
    let error = cluster.status(job).error.expect("failed");
    assert_eq!(error.code, "host_lost");
    assert!(error.message.contains("c1") && error.message.contains("no heartbeat"), "{}", error.message);
    assert_eq!(cluster.status(waiting).state, JobState::Running, "the next one runs on the host that is left");
}

#[test]
fn a_dead_process_is_fenced_and_a_new_one_gets_another_incarnation() {
    let mut cluster = Cluster::ready(config(1, 0));
    cluster.tick(2.5, &[2]);
    cluster.deliver(1, HostMessage::Heartbeat { kv_bytes: 0, idle_bytes: 0 });
    assert!(cluster.closed.contains(&1));
    for (start, cluster_id, given) in [(1, CLUSTER, None), (2, CLUSTER, None), (2, 5, None), (2, 0, Some(2))] {
        cluster.sent.clear();
        cluster.hello(0, start, cluster_id, (&[], &[]));
        let welcomed = match cluster.sent[0].1 {
            HostCommand::Welcome { incarnation, .. } => Some(incarnation),
            _ => None,
        };
        assert_eq!(welcomed, given, "process {start} of cluster {cluster_id}: {:?}", cluster.sent);
    }
    assert_eq!(cluster.state.host_status(seconds(3.0), 0).restarts, 1);
}

#[test]
fn a_broken_link_alone_costs_nothing() {
    let (mut cluster, job) = decoding();
    cluster.event(SupervisorEvent::Disconnected { connection: 2, cause: "reset".into() });
    assert_eq!(cluster.health(1), HostHealth::Suspect);
    cluster.now = 1.0;
    let name = cluster.state.config().hosts[1].name.clone();
    let hello = Hello {
        name,
        incarnation: 1,
        cluster: CLUSTER,
        contexts: vec![job, 55],
        jobs: vec![(66, Ticket::default())],
        endpoints: vec![Endpoint::new("quic", "127.0.0.1:9")],
        ..Hello::default()
    };
    cluster.deliver(20, HostMessage::Hello(hello));
    cluster.deliver(20, ready());
    let sent = cluster.take_sent();
    assert!(sent.contains(&(20, HostCommand::Release { context: 55, keep: true })), "{sent:?}");
    assert!(sent.contains(&(20, HostCommand::Stop { job: 66 })), "{sent:?}");
    assert!(!sent.iter().any(|(_, command)| matches!(command, HostCommand::Encode(_))), "{sent:?}");
    cluster.token(3, job, 2, 9);
    assert!(cluster.status(job).recoveries.is_empty());
}

#[test]
fn two_losses_one_after_the_other_are_both_repaired() {
    let mut cluster = Cluster::ready(config(3, 0));
    let job = cluster.submit(None);
    cluster.encode();
    cluster.generation().expect("asked");
    for host in ["c1", "c2"] {
        let exited = HostMessage::Exited { host: host.into(), start: 1, cause: "signal 9".into(), restarting: true };
        cluster.deliver(NODE, exited);
    }
    let orders = cluster.encode();
    assert!(orders.iter().any(|(to, _)| *to == 1));
    cluster.token(4, job, 0, 7);
    let status = cluster.status(job);
    assert_eq!(status.recoveries.iter().filter(|recovery| recovery.recovered_s.is_some()).count(), 2);
    assert_eq!(status.tokens, [7]);
}

#[test]
fn a_job_without_a_host_waits_and_fails_in_the_end() {
    let mut cluster = Cluster::ready(config(1, 0));
    for host in ["c0", "q0"] {
        let exited = HostMessage::Exited { host: host.into(), start: 1, cause: "signal 9".into(), restarting: false };
        cluster.deliver(NODE, exited);
    }
    let job = cluster.submit(None);
    cluster.tick(30.0, &[]);
    assert_eq!(cluster.status(job).state, JobState::Pending);
    cluster.tick(61.0, &[]);
    let error = cluster.status(job).error.expect("failed");
    assert_eq!(error.code, "placement_impossible");
    assert!(cluster.state.host_status(seconds(61.0), 0).cause.expect("dead").contains("not started again"));
}

#[test]
fn a_lost_host_shows_why_its_latest_start_failed() {
    let mut cluster = Cluster::ready(config(1, 0));
    let mut cause_after = |start, cause: &str| {
        let exited = HostMessage::Exited { host: "c0".into(), start, cause: cause.into(), restarting: true };
        cluster.deliver(NODE, exited);
        cluster.state.host_status(seconds(1.0), 0).cause.expect("dead")
    };
    assert_eq!(cause_after(1, "signal 9"), "signal 9");
    assert_eq!(cause_after(2, "its certificate has ended"), "its certificate has ended");
    assert_eq!(cause_after(1, "late news"), "its certificate has ended");
}

#[test]
fn a_restarted_supervisor_finds_shards_and_generations_again() {
    let (mut cluster, job) = decoding();
    cluster.now = 5.0;
    cluster.restart();
    cluster.hello(0, 1, CLUSTER, (&[job], &[]));
    cluster.deliver(1, ready());
    cluster.hello(2, 1, CLUSTER, (&[], &[job]));
    cluster.deliver(3, ready());
    cluster.hello(1, 1, CLUSTER, (&[job], &[]));
    cluster.deliver(2, ready());
    // Hosts hold what they are ordered to encode, and say so again.
    let orders = cluster.encode();
    assert_eq!(orders.iter().map(|(_, order)| order.shards.len()).sum::<usize>(), 4, "{orders:?}");
    let sent = cluster.take_sent();
    assert!(sent.iter().any(|(to, command)| *to == 3 && matches!(command, HostCommand::Generate(_))), "{sent:?}");
    for (index, id) in [7, 8, 9].into_iter().enumerate() {
        cluster.token(3, job, index as u32, id);
    }
    cluster.deliver(
        3,
        HostMessage::Generated { job, tokens: 3, stopped: false, text: String::new(), times: Box::default() },
    );
    let status = cluster.status(job);
    assert_eq!((status.state, status.text.as_str()), (JobState::Succeeded, "7 8 9 "));
    assert_eq!(cluster.state.job_number(&status.id), Some(job));
}

#[test]
fn hosts_that_do_not_come_back_to_a_restarted_supervisor_are_lost() {
    let (mut cluster, job) = decoding();
    cluster.now = 5.0;
    cluster.restart();
    for at in [0, 2] {
        cluster.hello(at, 1, CLUSTER, (&[job], &[]));
        cluster.deliver(connection(at, 1), ready());
    }
    cluster.tick(11.0, &[1, 3]);
    assert_eq!(cluster.health(1), HostHealth::Starting);
    [11.5, 12.0, 12.5].into_iter().for_each(|now| cluster.tick(now, &[1, 3]));
    assert_eq!(cluster.health(1), HostHealth::Dead);
    assert!(cluster.encode().iter().filter(|(to, _)| *to == 1).count() >= 4, "the host that is there encodes all");
    assert!(cluster.generation().is_some());
}

#[test]
fn a_host_that_stopped_with_its_supervisor_is_missed_once_its_node_is_back() {
    let (mut cluster, job) = decoding();
    cluster.now = 1_800_000_000.0;
    cluster.restart();
    let hello = Hello { name: "here".into(), role: HostRole::Node, start: 1, ..Hello::default() };
    cluster.now += 1.0;
    cluster.deliver(NODE, HostMessage::Hello(hello));
    for at in [0, 2] {
        cluster.hello(at, 1, CLUSTER, (&[job], &[]));
        cluster.deliver(connection(at, 1), ready());
    }
    let again = cluster.now;
    cluster.tick(again + 1.9, &[1, 3]);
    assert_eq!(cluster.health(1), HostHealth::Starting);
    cluster.tick(again + 2.1, &[1, 3]);
    assert_eq!(cluster.health(1), HostHealth::Dead);
    let [.., recovery] = &cluster.status(job).recoveries[..] else { panic!("it lost shards") };
    assert_eq!(recovery.host, "c1");
    assert!((recovery.silent_s - 3.1).abs() < 1e-6, "no longer than the supervisor lives: {}", recovery.silent_s);
    let kill = HostCommand::Kill { host: "c1".into(), start: 1 };
    assert!(cluster.sent.contains(&(NODE, kill)), "the node ends the process that hangs");
}

#[test]
fn a_cancelled_job_frees_its_hosts_and_late_messages_change_nothing() {
    let mut cluster = Cluster::ready(config(1, 0));
    let job = cluster.submit(None);
    let id = cluster.status(job).id;
    let decided = cluster.state.cancel(seconds(0.0), &id).expect("it runs");
    cluster.adopt(decided);
    assert!(cluster.sent.contains(&(1, HostCommand::Release { context: job, keep: true })));
    cluster.encode();
    assert!(cluster.generation().is_none());
    assert_eq!(cluster.status(job).state, JobState::Cancelled);
}

#[test]
fn a_job_past_its_time_limit_fails_waiting_or_running() {
    let mut cluster = Cluster::ready(config(1, 0));
    let jobs = [cluster.submit(Some(1.0)), cluster.submit(Some(1.0))];
    cluster.tick(1.5, &[1, 2]);
    for job in jobs {
        assert_eq!(cluster.status(job).error.expect("failed").code, "timeout");
    }
}

#[test]
fn a_full_queue_refuses_and_an_id_names_one_job_and_one_request() {
    let mut cluster = Cluster::ready(config(1, 0));
    let method = cluster.state.config().method.clone();
    let mut named = job(Source::Context(prepared(&method, 1)), None);
    (named.id, named.fingerprint) = ("mine".into(), Some(fingerprint("what")));
    let (first, decided) = cluster.state.submit(Duration::ZERO, 1, named.clone()).expect("taken");
    cluster.adopt(decided);
    let (again, decided) = cluster.state.submit(Duration::ZERO, 2, named.clone()).expect("taken");
    assert_eq!((first, decided.changes.len()), (again, 0));
    for other in [Some(fingerprint("something else")), None] {
        let taken = PreparedJob { fingerprint: other, ..named.clone() };
        assert_eq!(cluster.state.submit(Duration::ZERO, 3, taken).expect_err("another request").code(), "job_exists");
    }
    for _ in 0..3 {
        cluster.submit(None);
    }
    let refused = cluster.state.submit(Duration::ZERO, 9, job(Source::Context(prepared(&method, 1)), None));
    assert_eq!(refused.expect_err("three wait already").code(), "overloaded");
}

#[test]
fn a_shard_of_another_size_than_planned_fails_the_job() {
    let mut cluster = Cluster::ready(config(1, 0));
    let job = cluster.submit(None);
    cluster.deliver(1, HostMessage::Encoded(encoded(job, 0, 29)));
    let error = cluster.status(job).error.expect("failed");
    assert_eq!(error.code, "shard_mismatch");
    assert!(error.message.contains("29") && error.message.contains("30"), "{}", error.message);
}

#[test]
fn a_replay_that_differs_is_an_error_not_an_answer() {
    let (mut cluster, job) = decoding();
    cluster.token(3, job, 1, 8);
    assert_eq!(cluster.status(job).tokens, [7, 8], "told again");
    cluster.token(3, job, 0, 6);
    assert_eq!(cluster.status(job).error.expect("failed").code, "replay_mismatch");
}

#[test]
fn a_session_is_encoded_once_and_asked_until_its_time_has_passed() {
    let mut cluster = Cluster::ready(config(2, 0));
    let context = prepared(&cluster.state.config().method.clone(), 2);
    let create = |cluster: &mut Cluster| {
        let number = cluster.state.number();
        cluster.state.create_session((seconds(cluster.now), number), "moby", context.clone(), None)
    };
    let decided = create(&mut cluster).expect("a new name");
    cluster.adopt(decided);
    assert_eq!(create(&mut cluster).expect_err("taken").code(), "session_exists");
    let first = cluster.ask(Source::Session("moby".into()), None);
    assert_eq!(cluster.status(first).state, JobState::Pending);
    assert_eq!(cluster.encode().len(), 4);
    let second = cluster.ask(Source::Session("moby".into()), None);
    assert!(cluster.encode().is_empty(), "nothing is encoded again");
    for job in [first, second] {
        cluster.token(3, job, 0, 7);
        cluster.deliver(
            3,
            HostMessage::Generated { job, tokens: 1, stopped: true, text: String::new(), times: Box::default() },
        );
        assert_eq!(cluster.status(job).state, JobState::Succeeded);
    }
    assert!(!cluster.sent.iter().any(|(_, command)| matches!(command, HostCommand::Release { .. })));
    let status = cluster.state.session_status(seconds(1.0), "moby").expect("there");
    assert_eq!((status.state, status.hits, status.hosts.len(), status.expires_s), (SessionState::Ready, 2, 2, 99.0));
    cluster.restart();
    assert_eq!(cluster.state.session_status(seconds(1.0), "moby").expect("kept").hits, 2);
    cluster.tick(100.5, &[]);
    let error = cluster.state.session_status(seconds(100.5), "moby").expect_err("over");
    assert_eq!(error.code(), "session_expired");
    assert_eq!(cluster.state.drop_session(seconds(101.0), "ahab").expect_err("none").code(), "session_not_found");
}

#[test]
fn sessions_keep_what_they_have_and_admission_says_no() {
    let mut limited = config(2, 0);
    limited.sessions.max_pinned_bytes = Some(1000);
    limited.hosts.iter_mut().for_each(|host| host.memory_limit = Some(600));
    limited.recovery = Recovery::Spare;
    let mut cluster = Cluster::ready(limited);
    let context = prepared(&cluster.state.config().method.clone(), 2);
    let create = |cluster: &Cluster, number, name| {
        cluster.state.create_session((Duration::ZERO, number), name, context.clone(), None)
    };
    let decided = create(&cluster, 1, "a").expect("800 bytes");
    cluster.adopt(decided);
    let refused = create(&cluster, 2, "b").expect_err("200 bytes left");
    assert_eq!(refused.code(), "capacity_exhausted");
    assert!(refused.to_string().contains("800") && refused.to_string().contains("200"), "{refused}");
    let refused = cluster.state.submit(Duration::ZERO, 9, job(Source::Context(context), None)).expect_err("no room");
    assert_eq!(refused.code(), "placement_impossible");
}

#[test]
fn weights_that_hosts_share_are_counted_once() {
    let placed = |shared: bool| {
        let mut limited = config(2, 0);
        limited.recovery = Recovery::Spare;
        for (host, limit) in limited.hosts.iter_mut().zip([800, 500]) {
            (host.memory_limit, host.weight_bytes) = (Some(limit), if shared && limit == 500 { 0 } else { 300 });
        }
        let cluster = Cluster::ready(limited);
        let context = prepared(&cluster.state.config().method.clone(), 2);
        cluster.state.submit(Duration::ZERO, 9, job(Source::Context(context), None)).map(drop)
    };
    assert_eq!(placed(false).expect_err("200 bytes left on the second").code(), "placement_impossible");
    placed(true).expect("400 bytes on each");
}

#[test]
fn a_query_host_that_gets_no_answer_tries_again_then_shards_move() {
    let (mut cluster, job) = decoding();
    let stalled = |cluster: &mut Cluster, host: &str| {
        cluster.now += 1.0;
        cluster.deliver(3, HostMessage::Stalled { job, host: host.into(), wrong: false, cause: "reset".into() });
        cluster.take_sent()
    };
    for _ in 0..2 {
        let sent = stalled(&mut cluster, "c1");
        assert!(matches!(&sent[..], [(3, HostCommand::Holders { .. })]), "{sent:?}");
    }
    let sent = stalled(&mut cluster, "c1");
    let encodes: Vec<u64> =
        sent.iter().filter(|(_, c)| matches!(c, HostCommand::Encode(_))).map(|(to, _)| *to).collect();
    assert_eq!(encodes, [1, 1], "{sent:?}");
    assert_eq!(cluster.status(job).recoveries[0].reason, "stalled");
}

/// A query host says of a context host that its partials cannot be right.
fn accuse(cluster: &mut Cluster, job: u64, host: &str) {
    let cause = "its partial of shard 1 in layer 0 is not finite".into();
    cluster.deliver(3, HostMessage::Stalled { job, host: host.into(), wrong: true, cause });
}

#[test]
fn a_host_that_answers_what_cannot_be_right_loses_its_shards_at_once_and_is_fenced_once_others_did_better() {
    let (mut cluster, job) = decoding();
    accuse(&mut cluster, job, "c1");
    let sent = cluster.take_sent();
    let encodes: Vec<u64> =
        sent.iter().filter(|(_, c)| matches!(c, HostCommand::Encode(_))).map(|(to, _)| *to).collect();
    assert!(!encodes.is_empty() && encodes.iter().all(|to| *to == 1), "c0 takes them: {sent:?}");
    assert_eq!(cluster.status(job).recoveries[0].reason, "wrong_partials");
    assert!(cluster.health(1) == HostHealth::Ready && cluster.closed.is_empty(), "one word against another");
    let stated = HostMessage::Stalled { job, host: "c0".into(), wrong: true, cause: "a lie".into() };
    cluster.deliver(2, stated);
    assert_eq!(cluster.state.jobs.get(job).expect("it runs").accused.len(), 1, "only its query host's word counts");
}

#[test]
fn answers_that_are_wrong_wherever_they_come_from_fail_the_job_and_fence_nobody() {
    let (mut cluster, job) = decoding();
    for _ in 0..5 {
        let context = cluster.state.jobs.get(job).map(|job| job.context).expect("it runs");
        let Some(context) = cluster.state.contexts.get(context) else { break };
        let Some(host) = context.places().iter().find_map(|place| place.host) else { break };
        let name = cluster.state.hosts.name(host).to_owned();
        accuse(&mut cluster, job, &name);
        cluster.encode();
    }
    assert_eq!(cluster.status(job).error.map(|error| error.code).as_deref(), Some("not_finite_partial"));
    assert!(cluster.closed.is_empty(), "it is the input's fault");
}

#[test]
fn an_accused_host_is_cordoned_and_who_accuses_a_second_is_himself() {
    let (mut cluster, _) = decoding();
    let (c0, c1, q0) = (0, 1, 2);
    let mut commands = Vec::new();
    cluster.state.accusations(Duration::from_secs(1), &mut commands).convict(q0, vec![(c1, "not finite".into())]);
    let of = |cluster: &Cluster, host: usize| (cluster.health(host), cluster.state.hosts.at(host).kept.scheduling);
    assert_eq!(of(&cluster, c1), (HostHealth::Dead, crate::api::Scheduling::Cordoned));
    cluster.state.accusations(Duration::from_secs(2), &mut commands).convict(q0, vec![(c0, "not finite".into())]);
    assert_eq!(of(&cluster, c0), (HostHealth::Ready, crate::api::Scheduling::Open));
    assert_eq!(of(&cluster, q0), (HostHealth::Dead, crate::api::Scheduling::Cordoned));
}

#[test]
fn shards_that_depend_on_each_other_are_all_encoded_again() {
    let mut cluster = Cluster::ready(config(3, 0));
    let method: MethodConfig = serde_json::from_value(json!({"ring": {}})).expect("a method");
    let job = cluster.ask(Source::Context(prepared(&method, 3)), None);
    let first = cluster.encode();
    assert_eq!((first.len(), first[0].1.peers.len()), (3, 3));
    cluster.generation().expect("asked");
    let exited = HostMessage::Exited { host: "c1".into(), start: 1, cause: "signal 9".into(), restarting: true };
    cluster.deliver(NODE, exited);
    let again = cluster.encode();
    let blocks: usize = again.iter().map(|(_, order)| order.shards.len()).sum();
    assert_eq!((blocks, again[0].1.attempt), (6, 2), "zigzag: two a host; {again:?}");
    assert_eq!(cluster.status(job).recoveries[0].shards, 6, "what it costs is said");
}

#[test]
fn an_order_that_met_a_lost_peer_is_given_again_later() {
    let mut cluster = Cluster::ready(config(2, 0));
    let method: MethodConfig = serde_json::from_value(json!({"ring": {}})).expect("a method");
    let job = cluster.ask(Source::Context(prepared(&method, 2)), None);
    cluster.sent.clear();
    let (code, message) = ("host".to_string(), "c1 reset the link".to_string());
    let failed = HostMessage::NotEncoded { context: job, attempt: 1, peer_lost: true, code, message };
    cluster.deliver(1, failed.clone());
    assert!(cluster.encode().is_empty());
    cluster.tick(0.3, &[1, 2, 3]);
    assert_eq!(cluster.encode().len(), 2);
    assert!(cluster.generation().is_some());
    cluster.deliver(1, failed);
    assert_eq!(cluster.status(job).state, JobState::Running, "news of an earlier attempt");
}

#[test]
fn a_short_context_does_not_wait_behind_long_ones() {
    let mut cluster = Cluster::ready(config(1, 0));
    let method = cluster.state.config().method.clone();
    let running = cluster.submit(None);
    let long: Vec<u32> = (0..100_000).collect();
    let asked = PlanRequest {
        context: &long,
        query: &[1],
        hosts: 1,
        one_device: false,
        shape: &ModelShape::TINY,
        speeds: None,
    };
    let mut heavy = prepared(&method, 1);
    heavy.ids = long.as_slice().into();
    heavy.plan = Arc::new(serde_json::from_value::<MethodConfig>(json!({"dense": {}})).unwrap().plan(&asked).unwrap());
    let long = cluster.ask(Source::Context(heavy), None);
    cluster.now = 0.5;
    let short = cluster.submit(None);
    cluster.encode();
    let orders: Vec<u64> = cluster.encode().iter().map(|(_, order)| order.context).collect();
    assert!(orders.iter().all(|context| *context == short), "{running} {long} {short}: {orders:?}");
}
