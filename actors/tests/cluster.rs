//! A whole cluster in one process: real actors over the in-process transport, held to the golden cases.

#[path = "../../tests/golden/cases.rs"]
mod cases;
#[path = "cluster/disk.rs"]
mod disk;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use asterism_actors::{
    HostConfig, LoadedModel, Transports,
    api::{JobEvent, JobRequest, JobState, JobStatus, PlacementPolicy, Prompt, Role, SessionRequest, SessionState},
    cores::OwnDevice,
    host,
    messages::HostRole,
    store::{MemoryStore, StateStore},
    supervisor::{HostSpec, Liveness, ModelFront, Recovery, ServedModel, SessionLimits, Supervisor, SupervisorConfig},
};
use asterism_kernels::{Cpu, CpuOptions, DType};
use asterism_models::{Checkpoint, Decoder, DecoderParts, HeadsFiles, ModelError, TemplateSource, Tokenizer};
use asterism_plan::{Cost, Method, MethodConfig, PlanRequest};
use asterism_transport::{NoObserver, Transport, local::LocalNetwork};
use serde_json::{Value, json};

/// What retaining heads are called here.
const HEADS: &str = "trained";

fn golden() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/golden")
}

fn ephemeral() -> SocketAddr {
    "127.0.0.1:0".parse().expect("an address")
}

fn load(model: &str, parts: DecoderParts) -> Result<LoadedModel<Cpu>, ModelError> {
    let checkpoint = Checkpoint::open(&golden().join("models").join(model))?;
    let backend = Arc::new(Cpu::new(CpuOptions { threads: Some(1), ..CpuOptions::default() })?);
    let decoder = Arc::new(Decoder::load(backend, &checkpoint, parts)?);
    Ok(LoadedModel {
        decoder,
        tokenizer: Tokenizer::from_checkpoint(&checkpoint)?,
        digest: checkpoint.digest(Path::new(""))?,
        heads: heads(model),
        cores: Arc::new(OwnDevice),
    })
}

/// The model's retaining heads by the name that requests use.
fn heads(model: &str) -> HeadsFiles {
    [(HEADS.to_string(), golden().join("models").join(model).join("retaining_heads.safetensors"))].into()
}

/// Starts a supervisor, `contexts` context hosts and a query host. Returns the supervisor and each host's transport.
async fn start(model: &'static str, contexts: usize) -> (Supervisor, Vec<Arc<dyn Transport>>) {
    start_on(Box::new(MemoryStore::default()), model, contexts).await
}

/// The same with a journal that is given.
async fn start_on(
    store: Box<dyn StateStore>,
    model: &'static str,
    contexts: usize,
) -> (Supervisor, Vec<Arc<dyn Transport>>) {
    let network = LocalNetwork::new();
    let bind = || -> Arc<dyn Transport> { Arc::new(network.bind(ephemeral(), Arc::new(NoObserver)).expect("a port")) };
    let names = (0..contexts).map(|i| (format!("c{i}"), Role::Context)).chain([("q".to_string(), Role::Query)]);
    let hosts: Vec<HostSpec> = names
        .map(|(name, role)| HostSpec {
            name,
            role,
            device: "cpu".into(),
            node: "here".into(),
            memory_limit: None,
            weight_bytes: 0,
            labels: Default::default(),
        })
        .collect();
    let checkpoint = Checkpoint::open(&golden().join("models").join(model)).expect("a model");
    let digest = checkpoint.digest(Path::new("")).expect("readable weights");
    let config = SupervisorConfig {
        cluster: "test".into(),
        models: vec![ServedModel {
            label: String::new(),
            name: model.into(),
            digest: digest.front,
            weights: Some(digest.weights),
            kv: DType::F32.into(),
            speeds: None,
        }],
        hosts: hosts.clone(),
        method: serde_json::from_value(json!({"dense": {}})).expect("a method"),
        liveness: Liveness {
            heartbeat: Duration::from_millis(200),
            suspect_after: 3,
            dead_after: Duration::from_secs(2),
            rejoin: Duration::from_secs(1),
        },
        max_running: 2,
        encode_ahead: Duration::ZERO,
        max_generating: 32,
        speculates: true,
        max_queue: 64,
        max_queue_bytes: 64 << 20,
        recovery: Recovery::Redistribute,
        rebalance: true,
        avoid_stragglers: false,
        ready_when: Default::default(),
        patience: Duration::from_secs(30),
        mixed_numerics: Default::default(),
        sessions: SessionLimits { default_ttl: Duration::from_secs(60), max_pinned_bytes: None },
    };
    let transport = bind();
    let address = transport.local_address();
    let front = ModelFront::load(&checkpoint, None, TemplateSource::in_process);
    let front = Arc::new(front.and_then(|front| front.with_heads(&heads(model))).expect("a tokenizer and heads"));
    let supervisor = Supervisor::start(config, vec![front], transport, store).await.expect("a supervisor");
    let mut transports = Vec::new();
    for host in hosts {
        let transport = bind();
        transports.push(transport.clone());
        let role = if host.role == Role::Context { HostRole::Context } else { HostRole::Query };
        let config = HostConfig { encodes: true, generates: true, ..HostConfig::new(&host.name, role, address, 1) };
        tokio::spawn(host::run(config, Transports::one(transport), Box::new(move || load(model, DecoderParts::All))));
    }
    (supervisor, transports)
}

fn request(case: &Value, method: Value) -> JobRequest {
    let ids = |key: &str| serde_json::from_value(case[key].clone()).map(Prompt::Tokens).expect("token ids");
    JobRequest {
        method: Some(serde_json::from_value(method).expect("a method")),
        max_tokens: case["max_new_tokens"].as_u64().expect("a number") as usize,
        ignore_eos: true,
        chat_template: false,
        allow_idle_hosts: true,
        timeout_s: Some(120.0),
        ..JobRequest::new(Some(ids("context_ids")), ids("query_ids"))
    }
}

async fn finish(supervisor: &Supervisor, request: JobRequest) -> JobStatus {
    let id = supervisor.submit(request).await.expect("taken");
    let mut events = supervisor.watch(&id).await.expect("known");
    while let Some(event) = events.next().await {
        if let JobEvent::Finished { status } = event {
            return *status;
        }
    }
    panic!("the events of job {id} ended before it did");
}

fn golden_cases(model: &str, method: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(golden().join("public/goldens.json")).expect("the fixtures");
    let all: Value = serde_json::from_str(&text).expect("JSON");
    let wanted = |case: &&Value| case["model"] == model && case["method"] == method && case["kind"] == "model";
    all["cases"].as_array().expect("cases").iter().filter(wanted).cloned().collect()
}

/// A case's method as clients write it, and the hosts its plan is for.
fn method(case: &Value) -> (Value, usize) {
    let context = case["context_ids"].as_array().unwrap().len();
    let name = case["method"].as_str().unwrap();
    let (method, hosts) = cases::method(name, &case["params"], context, HEADS);
    (serde_json::to_value(method).unwrap(), hosts)
}

#[tokio::test(flavor = "multi_thread")]
async fn star_gives_the_golden_tokens_on_any_number_of_context_hosts() {
    for contexts in [1, 2, 3, 5] {
        let (supervisor, _transports) = start("tiny-llama", contexts).await;
        for case in &golden_cases("tiny-llama", "star") {
            let status = finish(&supervisor, request(case, method(case).0)).await;
            assert_eq!(status.state, JobState::Succeeded, "{}: {:?}", case["id"], status.error);
            assert_eq!(json!(status.tokens), case["expected"]["greedy_tokens"], "{} on {contexts} hosts", case["id"]);
        }
        supervisor.shutdown().await;
    }
}

/// What each host did is what the plan's cost says it does.
fn assert_cost(case: &Value, status: &JobStatus, hosts: usize) {
    let folder = golden().join("models").join(case["model"].as_str().unwrap());
    let shape = Checkpoint::open(&folder).unwrap().config().shape(DType::F32);
    let ids = |key: &str| serde_json::from_value::<Vec<u32>>(case[key].clone()).unwrap();
    let (context, query) = (ids("context_ids"), ids("query_ids"));
    let asked = PlanRequest { context: &context, query: &query, hosts, one_device: true, shape: &shape, speeds: None };
    let method: MethodConfig = serde_json::from_value(method(case).0).unwrap();
    let cost = Cost::of(&method.plan(&asked).unwrap(), &shape);
    if !cost.at_most {
        let sparsity = status.attention_sparsity.expect("every shard was encoded");
        assert!((sparsity - cost.sparsity()).abs() < 1e-9, "{}: {sparsity} {}", case["id"], cost.sparsity());
    }
    let mut planned: Vec<_> = cost.hosts.iter().filter(|host| host.shards > 0).collect();
    let mut done = status.timings.hosts.clone();
    assert_eq!(done.len(), planned.len(), "{}", case["id"]);
    if planned.len() == 1 {
        done[0].host = "c0".into();
    }
    planned.sort_by_key(|host| host.host);
    done.sort_by(|a, b| a.host.cmp(&b.host));
    for (planned, done) in planned.iter().zip(&done) {
        let id = format!("{} {}: {planned:?} {done:?}", case["id"], done.host);
        assert_eq!(planned.linear_tokens, done.encoded_tokens as u64, "{id}");
        assert_eq!(planned.kept_tokens, done.kept_tokens as u64, "{id}");
        assert_eq!(planned.kv_bytes, done.kv_bytes, "{id}");
        assert_eq!(planned.exchange_bytes, done.exchange_bytes, "{id}");
        match cost.at_most {
            true => assert!(planned.attention_pairs >= done.attention_pairs && done.attention_pairs > 0, "{id}"),
            false => assert_eq!(planned.attention_pairs, done.attention_pairs, "{id}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_method_gives_the_golden_tokens_at_the_planned_cost() {
    let mut seen = std::collections::BTreeSet::new();
    for model in ["tiny-llama", "tiny-qwen2"] {
        for contexts in 1..=5 {
            let (supervisor, _transports) = start(model, contexts).await;
            for name in ["dense", "star", "pulsar", "apb", "anchor", "streaming", "ring", "ulysses"] {
                for case in golden_cases(model, name).iter().filter(|case| method(case).1 == contexts) {
                    let status = finish(&supervisor, request(case, method(case).0)).await;
                    assert_eq!(status.state, JobState::Succeeded, "{}: {:?}", case["id"], status.error);
                    assert_eq!(json!(status.tokens), case["expected"]["greedy_tokens"], "{}", case["id"]);
                    assert_cost(case, &status, contexts);
                    seen.insert(name);
                }
            }
            supervisor.shutdown().await;
        }
    }
    assert_eq!(seen.len(), 8, "{seen:?}");
}

/// One after the other and all at once: the same tokens.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_that_pass_keys_run_side_by_side() {
    let (supervisor, _transports) = start("tiny-llama", 4).await;
    let cases: Vec<Value> = ["ring", "ulysses", "apb", "star", "pulsar"]
        .iter()
        .flat_map(|name| golden_cases("tiny-llama", name))
        .filter(|case| method(case).1 == 4)
        .collect();
    let jobs = cases.iter().map(|case| finish(&supervisor, request(case, method(case).0)));
    for (case, status) in cases.iter().zip(futures_util::future::join_all(jobs).await) {
        assert_eq!(json!(status.tokens), case["expected"]["greedy_tokens"], "{}", case["id"]);
    }
    supervisor.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dense_gives_the_golden_tokens_with_biases_and_tied_heads() {
    let (supervisor, _transports) = start("tiny-qwen2", 2).await;
    for case in &golden_cases("tiny-qwen2", "dense") {
        let status = finish(&supervisor, request(case, json!({"dense": {}}))).await;
        assert_eq!(json!(status.tokens), case["expected"]["greedy_tokens"], "{}", case["id"]);
    }
    supervisor.shutdown().await;
}

/// Runs a job and closes the transport of a host once as many tokens have come.
async fn lose(supervisor: &Supervisor, request: JobRequest, victim: &Arc<dyn Transport>, tokens: usize) -> JobStatus {
    let id = supervisor.submit(request).await.expect("taken");
    let mut events = supervisor.watch(&id).await.expect("known");
    let mut heard = 0;
    while let Some(event) = events.next().await {
        match event {
            JobEvent::Token { .. } => {
                heard += 1;
                if heard == tokens {
                    victim.close();
                }
            }
            JobEvent::Finished { status } => return *status,
            _ => {}
        }
    }
    panic!("the events of job {id} ended before it did");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_host_costs_no_token_with_any_exchange() {
    for name in ["star", "pulsar", "apb", "ring", "ulysses"] {
        let case = &golden_cases("tiny-llama", name).into_iter().find(|case| method(case).1 == 4).expect("four hosts");
        let mut long = request(case, method(case).0);
        long.max_tokens = 300;
        for victim in [1, 4] {
            let (supervisor, transports) = start("tiny-llama", 4).await;
            let whole = finish(&supervisor, long.clone()).await;
            let broken = lose(&supervisor, long.clone(), &transports[victim], 5).await;
            assert_eq!(broken.state, JobState::Succeeded, "{name} without {victim}: {:?}", broken.error);
            assert_eq!(broken.tokens, whole.tokens, "{name} without {victim}");
            let [recovery] = &broken.recoveries[..] else { panic!("{name}: {:?}", broken.recoveries) };
            assert!(recovery.recovered_s.is_some(), "{recovery:?}");
            let again = finish(&supervisor, request(case, method(case).0)).await;
            assert_eq!(json!(again.tokens), case["expected"]["greedy_tokens"], "{name} afterwards");
            supervisor.shutdown().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_answers_as_a_job_does_and_survives_a_lost_host() {
    let (supervisor, transports) = start("tiny-llama", 3).await;
    let case = &golden_cases("tiny-llama", "star")[0];
    let job = request(case, method(case).0);
    let session = SessionRequest {
        name: "book".into(),
        context: job.context.clone().expect("a context"),
        model: None,
        method: job.method.clone(),
        allow_idle_hosts: true,
        chat_template: false,
        query_separator: None,
        template_date: None,
        ttl_s: None,
        placement: PlacementPolicy::default(),
    };
    supervisor.create_session(session.clone()).await.expect("a new name");
    assert_eq!(supervisor.create_session(session).await.expect_err("taken").code(), "session_exists");
    let question = JobRequest { context: None, session: Some("book".into()), method: None, ..job };
    let asked = (0..6).map(|_| finish(&supervisor, question.clone()));
    for status in futures_util::future::join_all(asked).await {
        assert_eq!(json!(status.tokens), case["expected"]["greedy_tokens"], "{:?}", status.error);
    }
    transports[0].close();
    for _ in 0..3 {
        let status = finish(&supervisor, question.clone()).await;
        assert_eq!(json!(status.tokens), case["expected"]["greedy_tokens"], "{:?}", status.error);
    }
    let status = supervisor.session("book").await.expect("there");
    assert_eq!((status.state, status.hits), (SessionState::Ready, 9));
    supervisor.drop_session("book").await.expect("there");
    assert_eq!(supervisor.submit(question).await.expect_err("gone").code(), "session_not_found");
    supervisor.shutdown().await;
}
