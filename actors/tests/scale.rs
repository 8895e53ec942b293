//! What a long context on many hosts costs the supervisor: its real rules and journal, hosts that only say what hosts say.
//!
//! `ASTERISM_SCALE=10000000,1024 cargo test --release --test scale -- --nocapture` prints the figures of ten million tokens on
//! 1,024 hosts; a smaller size holds them to their bounds in every run.

use std::{
    collections::BTreeMap,
    hint::black_box,
    sync::Arc,
    time::{Duration, Instant},
};

use asterism_actors::{
    api::PlacementPolicy,
    messages::{EncodeShards, Encoded, Generate, Hello, HostCommand, HostMessage, HostRole, TokenChoice, WireMessage},
    query_host::route::routes,
    store::{Change, RedbStore, StateStore},
    supervisor::{
        Candidate, Demand, HostSpec, Liveness, Origin, PreparedContext, PreparedJob, Question, Recovery, ServedModel,
        SessionLimits, Source, SupervisorCommand, SupervisorConfig, SupervisorEvent, SupervisorState, Wanted, place,
    },
    ticket::Secret,
};
use asterism_models::QuerySeparator;
use asterism_plan::{MergeTree, Method, MethodConfig, ModelShape, PlanRequest, Shard};
use asterism_transport::Endpoint;

const NOW: Duration = Duration::from_secs(1_000_000);
const METHODS: [&str; 3] = [
    r#"{"star": {"anchor_tokens": 4096, "shared_prefix": false}}"#,
    r#"{"pulsar": {"shared_prefix": true}}"#,
    r#"{"ring": {"layout": "contiguous"}}"#,
];

/// Tokens and context hosts.
fn size() -> (usize, usize) {
    let Ok(typed) = std::env::var("ASTERISM_SCALE") else { return (200_000, 128) };
    let (tokens, hosts) = typed.split_once(',').expect("TOKENS,HOSTS");
    (tokens.parse().expect("a number"), hosts.parse().expect("a number"))
}

fn config(hosts: usize) -> SupervisorConfig {
    use asterism_actors::api::Role;
    let context = (0..hosts).map(|host| (format!("c{host}"), Role::Context));
    let spec = |(at, (name, role)): (usize, (String, Role))| {
        let (device, node) = ("cpu".to_string(), format!("n{}", at / 8));
        HostSpec { name, role, device, node, memory_limit: Some(1 << 40), weight_bytes: 0, labels: BTreeMap::new() }
    };
    let second = Duration::from_secs(1);
    SupervisorConfig {
        cluster: "scale".into(),
        models: vec![ServedModel {
            label: String::new(),
            name: "none".into(),
            digest: Default::default(),
            weights: Some(Default::default()),
            kv: asterism_kernels::DType::F32.into(),
            speeds: None,
        }],
        hosts: context.chain([("q0".to_string(), Role::Query)]).enumerate().map(spec).collect(),
        method: MethodConfig::default(),
        liveness: Liveness { heartbeat: second, suspect_after: 2, dead_after: 4 * second, rejoin: 9 * second },
        max_running: 4,
        encode_ahead: Duration::ZERO,
        max_generating: 32,
        speculates: true,
        max_queue: 16,
        max_queue_bytes: 1 << 30,
        recovery: Recovery::Redistribute,
        rebalance: true,
        avoid_stragglers: false,
        ready_when: Default::default(),
        patience: 60 * second,
        mixed_numerics: Default::default(),
        sessions: SessionLimits { default_ttl: 100 * second, max_pinned_bytes: None },
    }
}

/// A cluster whose hosts are all ready; a host's connection is its index.
fn ready(hosts: usize) -> SupervisorState {
    let origin = Origin { cluster: 7, secret: Secret::new([3; 32]) };
    let mut state = SupervisorState::new(config(hosts), NOW, origin);
    for (connection, spec) in state.config().hosts.clone().into_iter().enumerate() {
        let role = if connection < hosts { HostRole::Context } else { HostRole::Query };
        let endpoints = vec![Endpoint::new("quic", "127.0.0.1:1")];
        let hello = Hello { name: spec.name, role, start: 1, pid: 1, endpoints, ..Hello::default() };
        annotate(&mut state, connection, HostMessage::Hello(hello));
        annotate(&mut state, connection, HostMessage::Ready { numerics: "cpu".into(), model: Box::default() });
    }
    state
}

fn annotate(state: &mut SupervisorState, connection: usize, message: HostMessage) -> Vec<SupervisorCommand> {
    state.handle(NOW, SupervisorEvent::Message { connection: connection as u64, message })
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let start = Instant::now();
    let done = work();
    (done, start.elapsed().as_secs_f64() * 1e3)
}

fn bytes(changes: &[Change]) -> Vec<usize> {
    let len = |change: &Change| match change {
        Change::Put { value, .. } => value.len(),
        Change::Remove { .. } => 0,
    };
    changes.iter().map(len).collect()
}

fn kept(commands: &[SupervisorCommand]) -> Vec<Change> {
    let change = |command: &SupervisorCommand| match command {
        SupervisorCommand::Persist(change) | SupervisorCommand::Note(change) => Some(change.clone()),
        _ => None,
    };
    commands.iter().filter_map(change).collect()
}

/// The method's plan for a context of its own.
fn prepared(context: &[u32], method: &str, hosts: usize) -> PreparedContext {
    let method: MethodConfig = serde_json::from_str(method).expect("a method");
    let shape = &ModelShape::TINY;
    let request = PlanRequest { context, query: &[5, 9], hosts, one_device: false, shape, speeds: None };
    let plan = method.plan(&request).expect("a plan");
    PreparedContext {
        ids: plan.numbered_ids(context).into(),
        identities: Arc::default(),
        method: Box::new(method),
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

fn job(context: PreparedContext) -> PreparedJob {
    let choice = TokenChoice { max_tokens: 4, ..TokenChoice::default() };
    let question = Question {
        query_ids: vec![5, 9],
        choice,
        timeout: None,
        refresh_order: None,
        canary: false,
        text: None,
        trace: None,
    };
    let (source, labels) = (Source::Context(context), BTreeMap::new());
    PreparedJob { id: "job-1".into(), fingerprint: None, source, question, labels }
}

/// What orders and the ids before them take on the wire, and the orders by connection.
fn orders(commands: Vec<SupervisorCommand>) -> (usize, usize, Vec<(usize, EncodeShards)>) {
    let (mut ids, mut ordered, mut orders) = (0, 0, Vec::new());
    for command in commands {
        let SupervisorCommand::Send { connection, command } = command else { continue };
        let bytes = command.archive().len();
        match command {
            HostCommand::Ids(_) => ids += bytes,
            HostCommand::Encode(order) => {
                ordered += bytes;
                orders.push((connection as usize, order));
            }
            _ => {}
        }
    }
    (ids, ordered, orders)
}

/// Partials that the query host of a generation receives in a layer, and the most that any other host does.
fn received(order: &Generate) -> (usize, usize) {
    let routes = routes(&MergeTree::new(&order.shards, order.fan_in), order.fan_in, &order.holders);
    let mut by = BTreeMap::new();
    routes.iter().for_each(|route| route.received(&mut by));
    (routes.iter().map(|route| route.answers().len()).sum(), by.into_values().max().unwrap_or(0))
}

fn encoded(order: &EncodeShards, shard: &Shard, ids: &[u32]) -> Encoded {
    Encoded {
        context: order.context,
        block: shard.block as u32,
        digest: shard.digest(&shard.input(ids).expect("a plan of this context")),
        kept_tokens: shard.kept_tokens() as u64,
        kv_bytes: 1,
        seconds: 0.1,
        computing_s: 0.1,
        operations: 1,
        pairs: 1,
        exchange_bytes: 0,
        cached: false,
    }
}

#[test]
fn a_long_context_on_many_hosts() {
    let (tokens, hosts) = size();
    let context: Vec<u32> = (0..tokens as u32).map(|token| token.wrapping_mul(2_654_435_761) % 50_000).collect();
    let folder = tempfile::tempdir().expect("a folder");
    println!("{tokens} tokens on {hosts} hosts");
    for (at, method) in METHODS.into_iter().enumerate() {
        let (context, plan_ms) = timed(|| prepared(&context, method, hosts));
        let (ids, shards) = (context.ids.clone(), context.plan.shards.clone());
        let mut state = ready(hosts);
        let number = state.number();
        let (decided, submit_ms) = timed(|| state.submit(NOW, number, job(context)).expect("it is taken").1);
        let sizes = bytes(&decided.changes);
        let [_, plan_bytes, id_bytes, job_bytes] = sizes[..] else { panic!("{sizes:?}") };
        let mut store = RedbStore::open(folder.path().join(format!("{at}.redb")), "scale").expect("a journal");
        let changes = decided.changes.clone();
        let ((), first_ms) = timed(|| store.apply(&changes).expect("it is kept"));
        let (commands, place_ms) = timed(|| state.adopt(NOW, decided));
        let changes = kept(&commands);
        let places_bytes: usize = bytes(&changes).iter().sum();
        let ((), places_ms) = timed(|| store.apply(&changes).expect("it is kept"));
        let (sent, ordered, orders) = orders(commands);

        let (connection, order) = orders[0].clone();
        let (context, block) = (order.context, order.shards[0].block as u32);
        let progress = HostMessage::Progress { context, block, layers: 1, of: 4 };
        let times = 1000;
        let ((), progress_ms) = timed(|| {
            for _ in 0..times {
                assert!(black_box(annotate(&mut state, connection, progress.clone())).is_empty(), "nobody watches");
            }
        });
        let ((), heartbeat_ms) = timed(|| {
            for _ in 0..times {
                black_box(annotate(&mut state, connection, HostMessage::Heartbeat { kv_bytes: 1, idle_bytes: 0 }));
            }
        });
        let reports: Vec<(usize, Encoded)> = orders
            .iter()
            .flat_map(|(to, order)| order.shards.iter().map(|shard| (*to, encoded(order, shard, &ids))))
            .collect();
        let (printed, encoded_ms) = timed(|| {
            let mut printed = Vec::new();
            reports.into_iter().for_each(|(to, report)| {
                printed.extend(annotate(&mut state, to, HostMessage::Encoded(report)));
            });
            printed
        });
        let asked = printed.iter().find_map(|command| match command {
            SupervisorCommand::Send { command: HostCommand::Generate(order), .. } => Some(order),
            _ => None,
        });
        let (query, others) = received(asked.expect("every shard is encoded"));
        assert!(query <= 32 && others <= 32, "partials a layer: {query} and {others}");
        println!(
            "{method}: plan {plan_ms:.0} ms, {plan_bytes} B in the journal beside {id_bytes} B of ids; \
             taken in {submit_ms:.1} ms, written in {first_ms:.1} ms; placed and ordered in {place_ms:.1} ms, \
             {sent} B of ids and {ordered} B of orders sent; job's change {job_bytes} B, places {places_bytes} B written \
             in {places_ms:.2} ms; progress {:.2} us, heartbeat {:.2} us, encoded {:.1} us each; the query host receives \
             {query} partials a layer, any other {others} at most",
            progress_ms * 1e3 / f64::from(times),
            heartbeat_ms * 1e3 / f64::from(times),
            encoded_ms * 1e3 / shards.len() as f64,
        );
        // A host is told of those that its shards send something to: half of all, where that is all later ones.
        let named: usize = orders.iter().map(|(_, order)| order.peers.len()).sum();
        assert!(named <= hosts * (hosts + 1) / 2, "{named} peers are named");
        assert_eq!(id_bytes, 4 * tokens);
        assert!(plan_bytes < (2 * tokens).max(1 << 20), "{plan_bytes} B for {method}");
        assert!(sent < 8 * tokens + 8192 * 4 * hosts, "{sent} B of ids: each host gets what its shards read");
        assert!(job_bytes + places_bytes < 4096 + 16 * shards.len(), "{job_bytes} + {places_bytes} B");
        let each_us = encoded_ms * 1e3 / shards.len() as f64;
        assert!(each_us < 200.0 + 0.1 * shards.len() as f64, "{each_us} us for a shard's report");
    }
}

#[test]
fn shards_are_placed_in_a_time_that_grows_as_they_do() {
    let (_, hosts) = size();
    let (nodes, labels): (Vec<String>, _) =
        ((0..hosts).map(|host| format!("n{}", host / 8)).collect(), BTreeMap::new());
    let candidate = |host: usize| {
        let (node, labels) = (nodes[host].as_str(), &labels);
        Candidate { host, node, labels, rank: 0, detour: 0, free_bytes: Some(1 << 40), busy: host % 3, numerics: None }
    };
    let candidates: Vec<Candidate> = (0..hosts).map(candidate).collect();
    for each in [1, 8] {
        let demand = |block| Demand { block, logical: block / each, kv_bytes: 1 << 20 };
        let demands: Vec<Demand> = (0..hosts * each).map(demand).collect();
        let policy = &PlacementPolicy::default();
        let wanted = Wanted { demands: &demands, policy, exchanges: false };
        let (placed, ms) = timed(|| place(&wanted, &candidates).expect("there is room"));
        println!("{} shards on {hosts} hosts placed in {ms:.1} ms", placed.len());
        assert!(ms < 200.0, "{ms} ms");
    }
}
