//! What a seed stands for: a cluster, its jobs and sessions, its operator, and the faults. Carries nothing out.

use std::{collections::BTreeMap, time::Duration};

use asterism_actors::{
    Batching, DeviceHandover, JobError,
    api::{JobPhase, JobRequest, PlacementPolicy, Prompt, Role, Scheduling, SessionRequest, bounds},
    messages::HostRole,
    supervisor::{HostSpec, Liveness, Recovery, ServedModel, SessionLimits, SupervisorConfig},
};
use asterism_models::Sampling;
use asterism_transport::sim::Draw;

use crate::model::Model;

/// A schedule.
pub struct Scenario {
    pub config: SupervisorConfig,
    /// Node of each host, by number.
    pub nodes: Vec<usize>,
    pub node_count: usize,
    /// Time to load the model, and of a layer of phase 1.
    pub times: Vec<(Duration, Duration)>,
    /// Whether a host that is started again listens where it did, and what hosts hand each other as it lies.
    pub habits: (bool, DeviceHandover),
    /// What goes together through the layers of hosts.
    pub batching: Batching,
    /// How long frames are under way.
    pub delay: (Duration, Duration),
    /// How long the journal takes to write.
    pub disk: Duration,
    pub sessions: Vec<SessionRequest>,
    /// Tokens with which a session is created; the rest is appended, in two parts.
    pub cuts: Vec<Option<usize>>,
    pub jobs: Vec<JobSpec>,
    pub operations: Vec<(Duration, Operation)>,
    pub faults: Vec<Fault>,
}

/// A job and who submits it when.
#[derive(Clone, Debug)]
pub struct JobSpec {
    pub at: Duration,
    /// Session that it asks, or a context of its own.
    pub session: Option<usize>,
    pub request: JobRequest,
    /// The answer where nothing goes wrong.
    pub expected: Vec<u32>,
    pub cancel: Option<Duration>,
}

/// What an operator does.
#[derive(Clone, Debug)]
pub enum Operation {
    Schedule(usize, Scheduling),
    Replace(usize, usize),
}

/// A fault and when it happens.
#[derive(Clone, Debug)]
pub struct Fault {
    pub kind: FaultKind,
    pub trigger: Trigger,
}

/// What happens.
#[derive(Clone, Debug)]
pub enum FaultKind {
    /// A host ends: its peers hear so, or only notice.
    Kill(usize, bool),
    /// The supervisor ends: now, or when a write of its journal has begun, or is done.
    KillSupervisor(Moment),
    /// A host stops and, later, goes on: nothing comes or goes, and nothing of that is noticed.
    Hang(usize, Duration),
    HangSupervisor(Duration),
    /// All of a node's processes and all others do not hear each other.
    CutNode(usize, Duration),
    CutPair(Peer, Peer, Duration),
    /// Links break at once.
    Break(Peer, Peer),
    Slow(usize, Duration, Duration),
    /// A host gives its links to another up, which hears what is under way late and of the end later still.
    GiveUp(Peer, Peer, Duration),
    /// What a host is told next to encode it reads wrong.
    Misread(usize),
    /// Packets are lost, repeated, reordered, damaged, or end their links.
    Noise(usize, Duration, f64),
}

/// When a supervisor ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    Now,
    BeforeKept,
    AfterKept,
}

/// An end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    Supervisor,
    Host(usize),
}

/// When.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Trigger {
    At(Duration),
    /// So long after a job entered the phase.
    Phase(JobPhase, Duration),
}

const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// A number of `from..=to`.
fn between(draw: &mut Draw, from: u64, to: u64) -> u64 {
    from + draw.below((to - from + 1) as usize) as u64
}

fn one_in(draw: &mut Draw, times: usize) -> bool {
    draw.below(times) == 0
}

fn pick<T: Clone>(draw: &mut Draw, from: &[T]) -> T {
    from[draw.below(from.len())].clone()
}

impl Scenario {
    /// The schedule of a seed.
    pub fn new(seed: u64) -> Self {
        let mut draw = Draw::new(seed ^ 0x5eed_0000);
        let recovery = match draw.below(20) {
            0..12 => Recovery::Redistribute,
            12..19 => Recovery::Spare,
            _ => Recovery::Fail,
        };
        let mut counts = [between(&mut draw, 1, 4), between(&mut draw, 1, 2), draw.below(3) as u64];
        counts[2] += u64::from(counts[2] == 0 && one_in(&mut draw, 2));
        let node_count = between(&mut draw, 1, 3) as usize;
        let mut config = config(recovery, between(&mut draw, 1, 3) as usize);
        let mut nodes = Vec::new();
        for ((role, prefix), count) in
            [(Role::Context, "c"), (Role::Query, "q"), (Role::Spare, "s")].into_iter().zip(counts)
        {
            for number in 0..count {
                let node = draw.below(node_count);
                nodes.push(node);
                config.hosts.push(HostSpec {
                    name: format!("{prefix}{number}"),
                    role,
                    device: "cpu".into(),
                    node: format!("node-{node}"),
                    memory_limit: None,
                    weight_bytes: 1000,
                    labels: BTreeMap::new(),
                });
            }
        }
        let base = between(&mut draw, 5, 120);
        let mut time = |_| (ms(between(&mut draw, 50, 800)), ms(base * between(&mut draw, 5, 15) / 10));
        let times = (0..nodes.len()).map(&mut time).collect();
        let quick = Duration::from_micros(between(&mut draw, 50, 3000));
        let delay = (quick, quick * between(&mut draw, 1, 6) as u32);
        let disk = Duration::from_micros(pick(&mut draw, &[0, 200, 5000, 60_000]));
        let sessions: Vec<SessionRequest> =
            (0..draw.below(3)).map(|number| session(&mut draw, number, &config)).collect();
        let cuts = sessions.iter().map(|session| cut(&mut draw, session, &config)).collect();
        let jobs = if one_in(&mut draw, 8) { between(&mut draw, 6, 10) } else { between(&mut draw, 1, 4) };
        let jobs = (0..jobs).map(|number| job(&mut draw, number, &config, &sessions, None)).collect();
        let operations = operations(&mut draw, &config.hosts);
        let faults = faults(&mut draw, &config.hosts, node_count);
        let hands_over = [DeviceHandover::Nothing, DeviceHandover::Parcels, DeviceHandover::Everything];
        let habits = (one_in(&mut draw, 2), pick(&mut draw, &hands_over));
        let batching = Batching {
            token_interval: Some(pick(&mut draw, &[ms(1), ms(10), ms(50)])),
            pack_rows: Some(pick(&mut draw, &[0, 60, 2048])),
        };
        config.encode_ahead = pick(&mut draw, &[ms(0), ms(5), ms(1000)]);
        Self {
            config,
            nodes,
            node_count,
            times,
            habits,
            batching,
            delay,
            disk,
            sessions,
            cuts,
            jobs,
            operations,
            faults,
        }
    }

    /// A job for the healed cluster.
    pub fn fresh(&self, seed: u64, session: Option<usize>) -> JobSpec {
        let mut draw = Draw::new(seed ^ 0xf4e5);
        let number = 100 + session.map_or(0, |session| session as u64 + 1);
        let mut spec = job(&mut draw, number, &self.config, &self.sessions, Some(session));
        (spec.at, spec.cancel) = (Duration::ZERO, None);
        spec
    }

    /// What a host process is started as, and whether it encodes and generates.
    pub fn started_as(&self, host: usize) -> (HostRole, bool, bool) {
        let all = self.config.recovery == Recovery::Redistribute;
        match self.config.hosts[host].role {
            Role::Context => (HostRole::Context, true, all),
            Role::Query => (HostRole::Query, all, true),
            Role::Spare => (HostRole::Spare, true, true),
        }
    }
}

fn config(recovery: Recovery, max_running: usize) -> SupervisorConfig {
    SupervisorConfig {
        cluster: "simulated".into(),
        models: vec![ServedModel {
            label: String::new(),
            name: "tiny".into(),
            digest: Default::default(),
            weights: Some(Default::default()),
            kv: asterism_kernels::DType::F32.into(),
            speeds: None,
        }],
        hosts: Vec::new(),
        method: serde_json::from_str(r#"{"pulsar": {}}"#).expect("a method"),
        liveness: Liveness { heartbeat: ms(500), suspect_after: 2, dead_after: ms(2000), rejoin: ms(3000) },
        max_running,
        encode_ahead: Duration::ZERO,
        max_generating: 32,
        speculates: true,
        max_queue: 16,
        max_queue_bytes: 64 << 20,
        recovery,
        rebalance: true,
        avoid_stragglers: false,
        ready_when: Default::default(),
        patience: Duration::from_secs(60),
        mixed_numerics: Default::default(),
        sessions: SessionLimits { default_ttl: Duration::from_secs(3600), max_pinned_bytes: None },
    }
}

/// Methods with sizes that suit a context of some dozens of tokens. None: the cluster's own.
const METHODS: [Option<&str>; 16] = [
    None,
    Some(r#"{"pulsar": {"block_tokens": 12, "sink_tokens": 4, "chunk_tokens": 2, "summary_tokens": 4}}"#),
    Some(
        r#"{"pulsar": {"block_tokens": 16, "sink_tokens": 2, "chunk_tokens": 4, "summary_tokens": 8, "shared_prefix": true}}"#,
    ),
    Some(
        r#"{"pulsar": {"block_tokens": 16, "sink_tokens": 2, "chunk_tokens": 4, "summary_tokens": 8, "shared_prefix": false}}"#,
    ),
    Some(r#"{"star": {"block_tokens": 8, "anchor_tokens": 4, "shared_prefix": false}}"#),
    Some(r#"{"star": {"block_tokens": 12, "shared_prefix": true}}"#),
    Some(r#"{"pulsar": {"block_tokens": 16, "sink_tokens": 4, "refresh_tokens": 12, "chunk_tokens": 4}}"#),
    Some(r#"{"star": {}}"#),
    Some(r#"{"apb": {"heads": "trained"}}"#),
    Some(r#"{"apb": {}}"#),
    Some(r#"{"ring": {}}"#),
    Some(r#"{"ulysses": {}}"#),
    Some(r#"{"chain": {"block_tokens": 12}}"#),
    Some(r#"{"dense": {}}"#),
    Some(r#"{"streaming": {"sink_tokens": 4, "window_tokens": 16}}"#),
    Some(r#"{"auto": {}}"#),
];

fn tokens(draw: &mut Draw, from: u64, to: u64) -> Vec<u32> {
    (0..between(draw, from, to)).map(|_| draw.below(500) as u32).collect()
}

fn session(draw: &mut Draw, number: usize, config: &SupervisorConfig) -> SessionRequest {
    loop {
        let request = SessionRequest {
            name: format!("book-{number}"),
            context: Prompt::Tokens(tokens(draw, 24, 60)),
            model: None,
            method: method(draw),
            allow_idle_hosts: true,
            chat_template: false,
            query_separator: None,
            template_date: None,
            ttl_s: None,
            placement: PlacementPolicy::default(),
        };
        // Not every method takes every number of hosts and tokens.
        if Model::shared().front.prepare_session(request.clone(), &config.method, &config.context_hosts()).is_ok() {
            return request;
        }
    }
}

/// Where a session is cut, unless it is created as a whole or its method takes no part of it.
fn cut(draw: &mut Draw, session: &SessionRequest, config: &SupervisorConfig) -> Option<usize> {
    let whole = crate::model::ids(&session.context);
    let cut = one_in(draw, 2).then(|| between(draw, 12, whole.len() as u64 - 2) as usize)?;
    let takes = |tokens: usize| {
        let request = SessionRequest { context: Prompt::Tokens(whole[..tokens].to_vec()), ..session.clone() };
        Model::shared().front.prepare_session(request, &config.method, &config.context_hosts()).is_ok()
    };
    (takes(cut) && takes(middle(cut, whole.len()))).then_some(cut)
}

/// Where the second part ends of a session that is created with `cut` of so many tokens.
pub fn middle(cut: usize, whole: usize) -> usize {
    cut + (whole - cut).div_ceil(2)
}

fn method(draw: &mut Draw) -> Option<asterism_plan::MethodConfig> {
    pick(draw, &METHODS).and_then(|method| serde_json::from_str(method).ok())
}

/// A job that asks one of the sessions or none, or the one that is wanted.
fn job(
    draw: &mut Draw,
    number: u64,
    config: &SupervisorConfig,
    sessions: &[SessionRequest],
    wanted: Option<Option<usize>>,
) -> JobSpec {
    let (model, hosts) = (Model::shared(), config.context_hosts());
    let any = (!sessions.is_empty() && one_in(draw, 2)).then(|| draw.below(sessions.len()));
    let session = wanted.unwrap_or(any);
    loop {
        let key = pick(draw, &[None, Some("moon"), Some("sun")]);
        let mut request = JobRequest {
            labels: key.map(|key| (bounds::KEY.to_owned(), key.to_owned())).into_iter().collect(),
            id: Some(format!("client-{number}")),
            method: method(draw).filter(|_| session.is_none()),
            max_tokens: between(draw, 1, 12) as usize,
            sampling: Sampling { temperature: pick(draw, &[0.0, 0.8]), seed: draw.number(), ..Sampling::default() },
            ignore_eos: true,
            chat_template: false,
            allow_idle_hosts: true,
            ..JobRequest::new(None, Prompt::Tokens(tokens(draw, 1, 5)))
        };
        let (plan, context) = match session {
            Some(session) => {
                let session = sessions[session].clone();
                request.session = Some(session.name.clone());
                let context = crate::model::ids(&session.context).to_vec();
                let prepared = model.front.prepare_session(session, &config.method, &hosts).expect("it was before");
                ((*prepared.plan).clone(), context)
            }
            None => {
                let context = tokens(draw, 24, 60);
                request.context = Some(Prompt::Tokens(context.clone()));
                match model.front.preview(request.clone(), &config.method, &hosts) {
                    Ok((plan, _)) => (plan, context),
                    // Not every method takes every number of hosts and tokens.
                    Err(JobError::Plan(_)) => continue,
                    Err(error) => panic!("a request that is none: {error}"),
                }
            }
        };
        let expected = model.answer(&plan, &context, &request);
        let cancel = one_in(draw, 12).then(|| ms(between(draw, 0, 6000)));
        return JobSpec { at: ms(between(draw, 0, 3000)), session, request, expected, cancel };
    }
}

fn operations(draw: &mut Draw, hosts: &[HostSpec]) -> Vec<(Duration, Operation)> {
    if !one_in(draw, 6) {
        return Vec::new();
    }
    let (host, at) = (draw.below(hosts.len()), ms(between(draw, 1000, 5000)));
    let how = pick(draw, &[Scheduling::Cordoned, Scheduling::Draining]);
    let mut operations = vec![(at, Operation::Schedule(host, how))];
    if let Some(spare) = hosts.iter().position(|host| host.role == Role::Spare).filter(|_| one_in(draw, 2)) {
        operations.push((at + ms(between(draw, 0, 3000)), Operation::Replace(host, spare)));
    }
    operations.push((at + ms(between(draw, 3000, 9000)), Operation::Schedule(host, Scheduling::Open)));
    operations
}

fn faults(draw: &mut Draw, hosts: &[HostSpec], nodes: usize) -> Vec<Fault> {
    // The query step is short: more faults have to aim at it.
    let soon = |draw: &mut Draw| match draw.below(5) {
        0 | 1 => Trigger::Phase(JobPhase::Encoding, ms(between(draw, 0, 600))),
        2 | 3 => Trigger::Phase(JobPhase::Querying, ms(between(draw, 0, 40))),
        _ => Trigger::Phase(JobPhase::Decoding, ms(between(draw, 0, 200))),
    };
    let any = |draw: &mut Draw| {
        let trigger = match one_in(draw, 3) {
            true => Trigger::At(ms(between(draw, 0, 4000))),
            false => soon(draw),
        };
        Fault { kind: kind(draw, hosts, nodes), trigger }
    };
    match draw.below(8) {
        0 => Vec::new(),
        1 | 2 => vec![any(draw)],
        3 | 4 => vec![any(draw), any(draw)],
        _ => {
            // One that costs work, and another while that is repaired.
            let those: Vec<usize> = (0..hosts.len()).filter(|&host| hosts[host].role != Role::Spare).collect();
            let host = pick(draw, &those);
            let first = FaultKind::Kill(host, one_in(draw, 2));
            let trigger = soon(draw);
            let second = Trigger::Phase(JobPhase::Recovering, ms(between(draw, 0, 500)));
            vec![Fault { kind: first, trigger }, Fault { kind: kind(draw, hosts, nodes), trigger: second }]
        }
    }
}

fn kind(draw: &mut Draw, hosts: &[HostSpec], nodes: usize) -> FaultKind {
    // By role first, so that few spares get as many faults as many context hosts.
    let roles = [Role::Context, Role::Query, Role::Spare];
    let roles: Vec<Role> = roles.into_iter().filter(|role| hosts.iter().any(|host| host.role == *role)).collect();
    let role = pick(draw, &roles);
    let those: Vec<usize> = (0..hosts.len()).filter(|&host| hosts[host].role == role).collect();
    let (host, time) = (pick(draw, &those), ms(between(draw, 300, 8000)));
    let other = (host + 1 + draw.below(hosts.len() - 1)) % hosts.len();
    let other = if one_in(draw, 2) { Peer::Supervisor } else { Peer::Host(other) };
    match draw.below(24) {
        0..=3 => FaultKind::Kill(host, one_in(draw, 2)),
        4 | 5 => FaultKind::KillSupervisor(pick(draw, &[Moment::Now, Moment::BeforeKept, Moment::AfterKept])),
        6..=8 => FaultKind::Hang(host, time),
        9 => FaultKind::HangSupervisor(time),
        10 if nodes > 1 => FaultKind::CutNode(draw.below(nodes), time),
        10..=13 => FaultKind::CutPair(Peer::Host(host), other, time),
        14 | 15 => FaultKind::Break(Peer::Host(host), other),
        20 => FaultKind::GiveUp(Peer::Host(host), other, time),
        21 => FaultKind::GiveUp(other, Peer::Host(host), time),
        22 | 23 => FaultKind::Misread(host),
        16 | 17 => FaultKind::Slow(host, time, ms(between(draw, 20, 300))),
        _ => FaultKind::Noise(host, time, pick(draw, &[0.01, 0.05, 0.2])),
    }
}
