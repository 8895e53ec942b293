//! A supervisor without rules that tests drive by hand, the hosts that join it, and golden cases as orders.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use asterism_actors::{
    DeviceHandover, HostConfig, HostError, LoadedModel, Transports,
    cores::OwnDevice,
    host::{self, HostEnd},
    messages::{
        ContextIds, EncodeShards, Generate, Hello, HostCommand, HostMessage, HostRole, RefreshOrder, ShardHolder,
        TokenChoice, WireMessage,
    },
    ticket::{Secret, Ticket},
};
use asterism_kernels::{Cpu, CpuOptions, DType, KvFormat};
use asterism_models::{Checkpoint, Decoder, DecoderParts, ModelError, Tokenizer};
use asterism_plan::{Exchange, Method, MethodConfig, Plan, PlanRequest, Refresh};
use asterism_transport::{
    Channel, Endpoint, Link, MAX_PAYLOAD_BYTES, NoObserver, Observer, Transport, local::LocalNetwork,
};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::cases;

const MODEL: &str = "tiny-llama";
/// What its retaining heads are called.
const HEADS: &str = "trained";
/// Nothing here takes so long, whatever else the machine does.
pub const DEADLINE: Duration = Duration::from_secs(120);
pub const CONTEXT: u64 = 7;
pub const JOB: u64 = 3;

pub fn golden() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/golden")
}

pub fn load(parts: DecoderParts, kept: KvFormat) -> Result<LoadedModel<Cpu>, ModelError> {
    let checkpoint = Checkpoint::open(&golden().join("models").join(MODEL))?;
    let backend = Arc::new(Cpu::new(CpuOptions { kept, threads: Some(1), ..CpuOptions::default() })?);
    let decoder = Arc::new(Decoder::load(backend, &checkpoint, parts)?);
    let heads = golden().join("models").join(MODEL).join("retaining_heads.safetensors");
    let heads = [(HEADS.to_string(), heads)].into();
    let (tokenizer, digest) = (Tokenizer::from_checkpoint(&checkpoint)?, checkpoint.digest(Path::new(""))?);
    Ok(LoadedModel { decoder, tokenizer, digest, heads, cores: Arc::new(OwnDevice) })
}

/// What opens the context.
pub fn ticket() -> Ticket {
    Secret::new([5; 32]).ticket(CONTEXT)
}

/// A golden case with its plan.
pub struct Case {
    pub case: Value,
    pub plan: Plan,
    /// The ids that it numbers.
    pub ids: Vec<u32>,
}

impl Case {
    /// The first case of a method with so many shards.
    pub fn of(method: &str, shards: usize) -> Self {
        let text = std::fs::read_to_string(golden().join("public/goldens.json")).expect("the fixtures");
        let all: Value = serde_json::from_str(&text).expect("JSON");
        let wanted = |case: &&Value| case["model"] == MODEL && case["method"] == method && case["kind"] == "model";
        let cases = all["cases"].as_array().expect("cases").iter().filter(wanted);
        let mut planned = cases.map(|case| Self::plan(case.clone()));
        planned.find(|case| case.plan.shards.len() == shards).expect("a case of so many shards")
    }

    pub fn plan(case: Value) -> Self {
        let folder = golden().join("models").join(MODEL);
        let ids = |key: &str| serde_json::from_value::<Vec<u32>>(case[key].clone()).expect("token ids");
        let (context, query) = (ids("context_ids"), ids("query_ids"));
        let name = case["method"].as_str().expect("a name");
        let (method, hosts) = cases::method(name, &case["params"], context.len(), HEADS);
        let shape = Checkpoint::open(&folder).expect("a model").config().shape(DType::F32);
        let asked =
            PlanRequest { context: &context, query: &query, hosts, one_device: false, shape: &shape, speeds: None };
        let plan = method.plan(&asked).expect("a plan");
        Self { ids: plan.numbered_ids(&context), plan, case }
    }

    /// Its context as a session's, whose questions get some tokens anew.
    pub fn session(&self, tokens: usize) -> Self {
        let context = &self.ids[..self.plan.context_tokens];
        let method: MethodConfig = serde_json::from_value(
            json!({"pulsar": {"block_tokens": context.len().div_ceil(4), "refresh_tokens": tokens}}),
        )
        .expect("a method");
        let shape = Checkpoint::open(&golden().join("models").join(MODEL)).expect("a model").config().shape(DType::F32);
        let asked = PlanRequest { context, query: &[], hosts: 4, one_device: false, shape: &shape, speeds: None };
        Self { case: self.case.clone(), plan: method.plan(&asked).expect("a plan"), ids: context.to_vec() }
    }

    fn encode(&self, attempt: u32, blocks: &[usize], peers: &[ShardHolder]) -> HostCommand {
        HostCommand::Encode(EncodeShards {
            context: CONTEXT,
            tenant: 0,
            attempt,
            shards: blocks.iter().map(|block| self.plan.shards[*block].clone()).collect(),
            blocks: self.plan.shards.len() as u32,
            exchange: self.plan.exchange.clone(),
            peers: peers.to_vec(),
            ticket: ticket(),
            room: None,
            trace: None,
            identities: Vec::new(),
        })
    }

    pub fn generate(&self, holders: &[ShardHolder], max_tokens: u32, temperature: f32) -> Generate {
        let query: Vec<u32> = cases::list(&self.case["query_ids"]);
        let kept = self.plan.kept_shards();
        let refresh = self.plan.refresh(&self.ids, &query);
        let shards = refresh.as_ref().map_or(kept.clone(), |refresh| refresh.left_of(kept));
        let refresh_order = refresh.map(|Refresh { shard, hidden }| {
            let ids = shard.input(&self.ids[..]).expect("ids of the context").ids;
            Box::new(RefreshOrder { shard, ids, hidden })
        });
        Generate {
            job: JOB,
            tenant: 0,
            context: CONTEXT,
            query_ids: query,
            generated: Vec::new(),
            query_start: self.plan.query_start,
            shards,
            refresh_order,
            lookup: None,
            fan_in: self.plan.fan_in,
            view: self.plan.view,
            holders: holders.to_vec(),
            choice: Box::new(TokenChoice {
                max_tokens,
                temperature,
                top_p: 0.95,
                seed: 11,
                ignore_eos: true,
                ..TokenChoice::default()
            }),
            ticket: ticket(),
            trace: None,
        }
    }

    /// Bytes of what a shard of ring attention passes on in a layer.
    pub fn passed_bytes(&self, block: usize) -> usize {
        let shape = Checkpoint::open(&golden().join("models").join(MODEL)).expect("a model").config().shape(DType::F32);
        self.plan.shards[block].rows() * shape.kv_bytes_per_token() as usize / shape.layers
    }

    pub fn golden_tokens(&self) -> Vec<u32> {
        cases::list(&self.case["expected"]["greedy_tokens"])
    }
}

/// The supervisor's side of a link.
pub struct Line {
    pub hello: Hello,
    pub channel: Channel,
    pub link: Arc<dyn Link>,
}

impl Line {
    /// Orders some shards of a case, whose ids go before.
    pub async fn encode(&mut self, case: &Case, attempt: u32, blocks: &[usize], peers: &[ShardHolder]) {
        for ids in ContextIds::of(CONTEXT, &case.ids, std::iter::once(0..case.ids.len() as u64)) {
            self.order(HostCommand::Ids(ids)).await;
        }
        self.order(case.encode(attempt, blocks, peers)).await;
    }

    pub async fn order(&mut self, command: HostCommand) {
        self.channel.sender.send(command.frame()).await.expect("the host listens");
    }

    pub async fn next(&mut self) -> HostMessage {
        let frame = tokio::time::timeout(DEADLINE, self.channel.receiver.receive()).await;
        let frame = frame.expect("a message in time").expect("a link").expect("an open channel");
        HostMessage::read(&frame.meta, "host").expect("a message")
    }

    /// The next message that `wanted` makes something of.
    pub async fn receive<T>(&mut self, wanted: impl Fn(HostMessage) -> Option<T>) -> T {
        loop {
            if let Some(heard) = wanted(self.next().await) {
                return heard;
            }
        }
    }

    pub async fn ready(&mut self) {
        self.receive(|message| matches!(message, HostMessage::Ready { .. }).then_some(())).await;
    }

    /// Waits until all these blocks are encoded.
    pub async fn encoded(&mut self, blocks: &[usize]) {
        for _ in blocks {
            let block = self.receive(|message| match message {
                HostMessage::Encoded(encoded) => Some(encoded.block as usize),
                HostMessage::NotEncoded { message, .. } => panic!("{message}"),
                _ => None,
            });
            assert!(blocks.contains(&block.await));
        }
    }

    /// Waits for the token of this index.
    pub async fn token(&mut self, wanted: u32) -> u32 {
        self.receive(|message| match message {
            HostMessage::Token { index, id, .. } => {
                assert!(index <= wanted, "token {index} before {wanted}");
                (index == wanted).then_some(id)
            }
            HostMessage::Failed { message, .. } => panic!("{message}"),
            _ => None,
        })
        .await
    }

    /// Tokens from `first` to the end.
    pub async fn tokens(&mut self, first: u32) -> Vec<u32> {
        let mut tokens = Vec::new();
        loop {
            let next = first + tokens.len() as u32;
            let heard = self.receive(|message| match message {
                HostMessage::Token { index, id, .. } => {
                    assert_eq!(index, next);
                    Some(Some(id))
                }
                HostMessage::Generated { tokens, .. } => {
                    assert_eq!(tokens, next);
                    Some(None)
                }
                HostMessage::Failed { message, .. } => panic!("{message}"),
                _ => None,
            });
            match heard.await {
                Some(id) => tokens.push(id),
                None => return tokens,
            }
        }
    }
}

/// A supervisor without rules, and the hosts that have joined it.
pub struct Bench {
    pub network: LocalNetwork,
    pub transport: Arc<dyn Transport>,
    pub lines: BTreeMap<String, Line>,
    pub transports: BTreeMap<String, Arc<dyn Transport>>,
    pub hosts: BTreeMap<String, JoinHandle<Result<HostEnd, HostError>>>,
    settings: (usize, Option<DeviceHandover>),
    kept: KvFormat,
    /// Bytes of frames that were sent.
    pub sent: Arc<AtomicUsize>,
}

impl Bench {
    pub async fn of(hosts: &[(&str, HostRole)]) -> Self {
        Self::with((MAX_PAYLOAD_BYTES, None), hosts).await
    }

    /// Hosts that keep keys and values so.
    pub async fn keeping(kept: KvFormat, hosts: &[(&str, HostRole)]) -> Self {
        let mut bench = Self::of(&[]).await;
        bench.kept = kept;
        for (name, role) in hosts {
            bench.start(name, *role).await;
        }
        bench
    }

    /// Hosts whose frames hold so much of what shards pass each other, and that hand over so much as it lies.
    pub async fn with(settings: (usize, Option<DeviceHandover>), hosts: &[(&str, HostRole)]) -> Self {
        let network = LocalNetwork::new();
        let transport = bind(&network);
        let (lines, transports, handles, sent) = Default::default();
        let kept = KvFormat::Computed;
        let mut bench = Self { network, transport, lines, transports, hosts: handles, settings, kept, sent };
        for (name, role) in hosts {
            bench.start(name, *role).await;
        }
        bench
    }

    pub async fn start(&mut self, name: &str, role: HostRole) {
        let transport = bind_counted(&self.network, Arc::new(Counted(self.sent.clone())));
        self.start_on(name, role, transport).await;
    }

    /// Starts a host over a transport of its own.
    pub async fn start_on(&mut self, name: &str, role: HostRole, transport: Arc<dyn Transport>) {
        let parts = if role == HostRole::Context { DecoderParts::Context } else { DecoderParts::Query };
        let mut config = HostConfig::new(name, role, self.transport.local_address(), 1);
        (config.patience, config.piece_bytes, config.hands_over) = (DEADLINE, self.settings.0, self.settings.1);
        let kept = self.kept;
        let running = host::run(config, Transports::one(transport.clone()), Box::new(move || load(parts, kept)));
        self.hosts.insert(name.into(), tokio::spawn(running));
        self.transports.insert(name.into(), transport);
        let mut line = self.accept().await;
        assert_eq!((line.hello.name.as_str(), line.hello.role, line.hello.cluster), (name, role, 0));
        line.ready().await;
        self.lines.insert(name.into(), line);
    }

    /// Welcomes whoever joins next.
    pub async fn accept(&self) -> Line {
        let joining = async {
            let link = self.transport.accept().await.expect("open");
            let mut channel = link.accept().await.expect("a channel");
            let frame = channel.receiver.receive().await.expect("a link").expect("a hello");
            let hello = match HostMessage::read(&frame.meta, "host").expect("a message") {
                HostMessage::Hello(hello) => hello,
                other => panic!("{other:?}"),
            };
            channel
                .sender
                .send(HostCommand::Welcome { heartbeat_ms: 50, cluster: 42, incarnation: 1 }.frame())
                .await
                .expect("a host");
            Line { hello, channel, link }
        };
        tokio::time::timeout(DEADLINE, joining).await.expect("somebody joins")
    }

    pub fn line(&mut self, name: &str) -> &mut Line {
        self.lines.get_mut(name).expect("it joined")
    }

    pub fn holder(&self, name: &str, blocks: &[usize]) -> ShardHolder {
        let endpoints = vec![Endpoint::of(self.transports[name].as_ref())];
        ShardHolder { host: name.into(), endpoints, blocks: blocks.iter().map(|block| *block as u32).collect() }
    }

    /// Encodes shards that pass nothing.
    pub async fn encode(&mut self, case: &Case, name: &str, blocks: &[usize]) -> ShardHolder {
        assert_eq!(case.plan.exchange, Exchange::None);
        for block in blocks {
            self.line(name).encode(case, 1, &[*block], &[]).await;
        }
        self.line(name).encoded(blocks).await;
        self.holder(name, blocks)
    }

    pub async fn generate(&mut self, name: &str, order: Generate) {
        self.line(name).order(HostCommand::Generate(order)).await;
    }

    pub async fn shutdown(mut self) {
        for (name, host) in self.hosts {
            self.lines.get_mut(&name).expect("it joined").order(HostCommand::Shutdown).await;
            let ended = tokio::time::timeout(DEADLINE, host).await.expect("it ends").expect("no panic");
            assert!(ended.is_ok(), "{name}: {ended:?}");
        }
    }
}

pub fn bind(network: &LocalNetwork) -> Arc<dyn Transport> {
    bind_counted(network, Arc::new(NoObserver))
}

fn bind_counted(network: &LocalNetwork, observer: Arc<dyn Observer>) -> Arc<dyn Transport> {
    Arc::new(network.bind("127.0.0.1:0".parse().expect("an address"), observer).expect("a port"))
}

/// Counts bytes that are sent.
struct Counted(Arc<AtomicUsize>);

impl Observer for Counted {
    fn bytes(&self, sent: bool, bytes: usize) {
        self.0.fetch_add(if sent { bytes } else { 0 }, Ordering::Relaxed);
    }
}
