//! What a seed stands for: a cluster, its jobs and sessions, its operator, and the faults. Carries nothing out.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use asterism_actors::{
    api::{JobPhase, Role, Scheduling},
    messages::{HostRole, TokenChoice},
    supervisor::{
        HostSpec, Liveness, PlacementPolicy, PreparedContext, Question, Recovery, SessionLimits, SupervisorConfig,
    },
};
use asterism_kernels::DType;
use asterism_models::QuerySeparator;
use asterism_plan::{Method, MethodConfig, ModelShape, PlanRequest};

use crate::{
    clock::Time,
    draw::Draw,
    network::{Cut, Place},
    supervisor::Stage,
};

const SECOND: Time = 1_000_000;

/// A schedule.
pub struct Scenario {
    pub config: SupervisorConfig,
    /// Node of each host, by number.
    pub nodes: Vec<usize>,
    pub node_count: usize,
    /// Time to load the model, and of a layer of each phase.
    pub times: Vec<(Time, (Time, Time))>,
    /// Whether a host that is started again listens where it did.
    pub fixed_ports: bool,
    pub quick_refusal: bool,
    pub sessions: Vec<(String, PreparedContext)>,
    pub jobs: Vec<JobSpec>,
    pub operations: Vec<(Time, Operation)>,
    pub faults: Vec<Fault>,
}

/// A job and who submits it when.
#[derive(Clone, Debug)]
pub struct JobSpec {
    pub id: String,
    pub at: Time,
    /// Session that it asks, or a context of its own.
    pub session: Option<usize>,
    pub context: PreparedContext,
    pub question: Question,
    pub cancel: Option<Time>,
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
    Kill(usize),
    KillSupervisor(Option<Stage>),
    Hang(usize, Time),
    HangSupervisor(Time),
    Cut(Cut, Time),
    Slow(usize, Time, Time),
    Corrupt(usize),
    Echo(usize),
    /// What it encodes next, it reads wrong.
    Misread(usize),
}

/// When.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Trigger {
    At(Time),
    /// So long after a job entered the phase.
    Phase(JobPhase, Time),
}

/// A name for a place of a pair.
pub fn role_name(role: Role) -> &'static str {
    match role {
        Role::Context => "context",
        Role::Query => "query",
        Role::Spare => "spare",
    }
}

impl Scenario {
    /// The schedule of a seed.
    pub fn new(seed: u64) -> Self {
        let mut draw = Draw::new(seed);
        let recovery = match draw.below(20) {
            0..12 => Recovery::Redistribute,
            12..19 => Recovery::Spare,
            _ => Recovery::Fail,
        };
        let mut counts = [draw.between(1, 5), draw.between(1, 2), draw.below(3)];
        if counts[2] == 0 && draw.one_in(2) {
            counts[2] = 1;
        }
        let node_count = draw.between(1, 3) as usize;
        let mut config = config(recovery, draw.between(1, 3) as usize);
        let roles = [(Role::Context, "c"), (Role::Query, "q"), (Role::Spare, "s")];
        let mut nodes = Vec::new();
        for ((role, prefix), count) in roles.into_iter().zip(counts) {
            for number in 0..count {
                let node = draw.below(node_count as u64) as usize;
                nodes.push(node);
                config.hosts.push(HostSpec {
                    name: format!("{prefix}{number}"),
                    role,
                    device: "cpu".into(),
                    node: format!("node-{node}"),
                    memory_limit: None,
                    labels: BTreeMap::new(),
                });
            }
        }
        let base = (draw.between(20_000, 400_000), draw.between(3_000, 60_000));
        let time = |draw: &mut Draw| {
            let factor = draw.between(5, 15);
            (draw.between(50_000, 800_000), (base.0 * factor / 10, base.1 * factor / 10))
        };
        let times = (0..nodes.len()).map(|_| time(&mut draw)).collect();
        let hosts = counts[0] as usize;
        let sessions: Vec<(String, PreparedContext)> =
            (0..draw.below(3)).map(|number| (format!("book-{number}"), prepared(&mut draw, hosts, &[]))).collect();
        let jobs = (0..draw.between(1, 4)).map(|number| job(&mut draw, number, hosts, &sessions)).collect();
        let operations = operations(&mut draw, &config.hosts);
        let faults = faults(&mut draw, &config.hosts, &nodes);
        let (fixed_ports, quick_refusal) = (draw.one_in(2), draw.one_in(2));
        Self { config, nodes, node_count, times, fixed_ports, quick_refusal, sessions, jobs, operations, faults }
    }

    /// A job for the healed cluster.
    pub fn fresh(&self, seed: u64, session: Option<usize>) -> JobSpec {
        let mut draw = Draw::new(seed ^ 0xf4e5);
        let hosts = self.config.hosts.iter().filter(|host| host.role == Role::Context).count();
        let mut spec = job(&mut draw, 100 + session.map_or(0, |session| session as u64 + 1), hosts, &[]);
        (spec.session, spec.at, spec.cancel) = (session, 0, None);
        spec
    }

    /// What a host process is started as.
    pub fn started_as(&self, host: usize) -> HostRole {
        match self.config.hosts[host].role {
            Role::Context => HostRole::Context,
            Role::Query => HostRole::Query,
            Role::Spare => HostRole::Spare,
        }
    }
}

fn config(recovery: Recovery, max_running: usize) -> SupervisorConfig {
    SupervisorConfig {
        cluster: "simulated".into(),
        model: "toy".into(),
        dtype: DType::F32,
        hosts: Vec::new(),
        method: "dense".parse().expect("a method"),
        liveness: Liveness {
            heartbeat: Duration::from_millis(500),
            suspect_after: 2,
            dead_after: Duration::from_secs(2),
            rejoin: Duration::from_secs(3),
        },
        max_running,
        max_queue: 16,
        max_queue_bytes: 64 << 20,
        recovery,
        patience: Duration::from_secs(60),
        speeds: None,
        weight_bytes: 1000,
        mixed_numerics: Default::default(),
        sessions: SessionLimits { default_ttl: Duration::from_secs(3600), max_pinned_bytes: None },
    }
}

fn prepared(draw: &mut Draw, hosts: usize, query: &[u32]) -> PreparedContext {
    let context: Vec<u32> = (0..draw.between(24, 60)).map(|_| draw.below(500) as u32).collect();
    let methods = [
        r#"{"star": {"block_tokens": 8, "anchor_tokens": 4, "shared_prefix": false}}"#,
        r#"{"star": {"block_tokens": 12, "shared_prefix": true}}"#,
        r#"{"star": {"shared_prefix": true}}"#,
        r#"{"apb": {}}"#,
        r#"{"ring": {}}"#,
        r#"{"ulysses": {}}"#,
        r#"{"dense": {}}"#,
    ];
    let request = PlanRequest {
        context: &context,
        query,
        hosts,
        one_machine: draw.one_in(2),
        shape: &ModelShape::TINY,
        speeds: None,
    };
    // Not every method takes every number of hosts and tokens.
    let plan = loop {
        let method: MethodConfig = serde_json::from_str(draw.pick(&methods)).expect("a method");
        if let Ok(plan) = method.plan(&request) {
            break plan;
        }
    };
    PreparedContext {
        ids: plan.numbered_ids(&context).into(),
        plan: Arc::new(plan),
        dense_pairs: 1,
        kv_bytes_per_token: 4,
        chat_template: false,
        query_separator: QuerySeparator::NONE,
        placement: PlacementPolicy::default(),
    }
}

fn job(draw: &mut Draw, number: u64, hosts: usize, sessions: &[(String, PreparedContext)]) -> JobSpec {
    let query_ids: Vec<u32> = (0..draw.between(1, 5)).map(|_| draw.below(500) as u32).collect();
    let session = (!sessions.is_empty() && draw.one_in(2)).then(|| draw.below(sessions.len() as u64) as usize);
    let context = match session {
        Some(session) => sessions[session].1.clone(),
        None => prepared(draw, hosts, &query_ids),
    };
    let choice = TokenChoice {
        max_tokens: draw.between(1, 12) as u32,
        temperature: if draw.one_in(2) { 0.0 } else { 0.8 },
        top_p: 1.0,
        seed: draw.any(),
        stop: Vec::new(),
        ignore_eos: draw.one_in(2),
    };
    JobSpec {
        id: format!("job-of-client-{number}"),
        at: draw.below(3 * SECOND),
        session,
        context,
        question: Question { query_ids, choice, timeout: None, anew: None },
        cancel: draw.one_in(12).then(|| draw.below(6 * SECOND)),
    }
}

fn operations(draw: &mut Draw, hosts: &[HostSpec]) -> Vec<(Time, Operation)> {
    if !draw.one_in(6) {
        return Vec::new();
    }
    let host = draw.below(hosts.len() as u64) as usize;
    let at = draw.between(SECOND, 5 * SECOND);
    let how = draw.pick(&[Scheduling::Cordoned, Scheduling::Draining]);
    let mut operations = vec![(at, Operation::Schedule(host, how))];
    if let Some(spare) = hosts.iter().position(|host| host.role == Role::Spare).filter(|_| draw.one_in(2)) {
        operations.push((at + draw.below(3 * SECOND), Operation::Replace(host, spare)));
    }
    operations.push((at + draw.between(SECOND, 6 * SECOND), Operation::Schedule(host, Scheduling::Open)));
    operations
}

fn faults(draw: &mut Draw, hosts: &[HostSpec], nodes: &[usize]) -> Vec<Fault> {
    // The query step is short: more faults have to aim at it.
    let soon = |draw: &mut Draw| match draw.below(5) {
        0 => Trigger::Phase(JobPhase::Encoding, draw.below(300_000)),
        1..=3 => Trigger::Phase(JobPhase::Querying, draw.below(30_000)),
        _ => Trigger::Phase(JobPhase::Decoding, draw.below(300_000)),
    };
    let any = |draw: &mut Draw| {
        let trigger = match draw.one_in(3) {
            true => Trigger::At(draw.below(3 * SECOND)),
            false => soon(draw),
        };
        Fault { kind: kind(draw, hosts, nodes), trigger }
    };
    match draw.below(4) {
        0 => vec![any(draw)],
        1 => vec![any(draw), any(draw)],
        _ => {
            // One that costs work, and another while that is repaired.
            let those: Vec<usize> = (0..hosts.len()).filter(|&host| hosts[host].role != Role::Spare).collect();
            let host = draw.pick(&those);
            let kind_of = if draw.one_in(3) { FaultKind::Hang(host, Time::MAX / 2) } else { FaultKind::Kill(host) };
            let trigger = soon(draw);
            let second = Trigger::Phase(JobPhase::Recovering, draw.below(500_000));
            vec![Fault { kind: kind_of, trigger }, Fault { kind: kind(draw, hosts, nodes), trigger: second }]
        }
    }
}

fn kind(draw: &mut Draw, hosts: &[HostSpec], nodes: &[usize]) -> FaultKind {
    // By role first, so that few spares get as many faults as many context hosts.
    let roles: Vec<Role> =
        [Role::Context, Role::Query, Role::Spare].into_iter().filter(|r| hosts.iter().any(|h| h.role == *r)).collect();
    let role = draw.pick(&roles);
    let those: Vec<usize> = (0..hosts.len()).filter(|&host| hosts[host].role == role).collect();
    let host = draw.pick(&those);
    let time = draw.between(300_000, 8 * SECOND);
    let stage = draw.pick(&[None, Some(Stage::BeforeKept), Some(Stage::AfterKept), Some(Stage::Midway)]);
    match draw.below(27) {
        0..=2 => FaultKind::Kill(host),
        3 => FaultKind::KillSupervisor(stage),
        4..=6 => FaultKind::Hang(host, if draw.one_in(3) { Time::MAX / 2 } else { time }),
        7 => FaultKind::HangSupervisor(time),
        8 => FaultKind::Cut(Cut::Node(draw.pick(nodes)), time),
        9..=11 => FaultKind::Cut(Cut::Pair(Place::Host(host), Place::Supervisor), time),
        12..=14 => {
            let other = (host + 1 + draw.below(hosts.len() as u64 - 1) as usize) % hosts.len();
            FaultKind::Cut(Cut::Pair(Place::Host(host), Place::Host(other)), time)
        }
        15..=17 => FaultKind::Slow(host, time, draw.between(50_000, 600_000)),
        18..=20 => FaultKind::Corrupt(host),
        21..=23 => FaultKind::Echo(host),
        _ => FaultKind::Misread(host),
    }
}
