//! The context host's shell: a ractor actor around the state, the encoder on a blocking thread, and the answering tasks.

use std::{
    collections::HashMap,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use asterism_kernels::Backend;
use asterism_models::{EncodedShard, ModelError, Phase1, RetainingHeads, Watch};
use asterism_transport::Transport;
use ractor::{Actor, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::{runtime::Handle, sync::watch};

use super::{
    answer::{self, Desk},
    passing::{Office, RemotePeers},
    state::{Command, ContextHostState, Event},
    store::ShardStore,
};
use crate::{
    error::HostError,
    host::{self, HostConfig, ModelLoader},
    link::{Links, Outbox},
    messages::{EncodeShards, Encoded, HostMessage, HostRole},
};

/// Runs a context host until its supervisor ends it or is gone.
pub async fn run<B: Backend>(
    config: HostConfig,
    transport: Arc<dyn Transport>,
    loader: ModelLoader<B>,
) -> Result<(), HostError> {
    let mut joined = host::join(&config, HostRole::Context, transport.as_ref()).await?;
    let decoder = joined.load(&config.name, loader).await?.decoder;
    let desk = Desk { decoder, store: ShardStore::default(), mailroom: Arc::default() };
    tokio::spawn(answer::serve(transport.clone(), desk.clone()));
    let shell = Shell {
        state: ContextHostState::default(),
        started: Instant::now(),
        desk,
        links: Arc::new(Links::new(transport.clone())),
        heads: Arc::default(),
        outbox: joined.outbox.clone(),
        held: joined.kv_bytes.clone(),
        stop: Arc::default(),
    };
    let (actor, handle) = Actor::spawn(None, ContextHost(std::marker::PhantomData), shell)
        .await
        .map_err(|error| HostError::Actor { cause: error.to_string() })?;
    let ended = joined.serve(&config.name, |command| drop(actor.cast(Event::Command(command)))).await;
    actor.stop(None);
    let _ = handle.await;
    transport.close();
    transport.drained().await;
    ended
}

struct ContextHost<B>(std::marker::PhantomData<fn() -> B>);

/// The retaining heads used last, with their file.
type HeadsCache<B> = Arc<Mutex<Option<(String, Arc<RetainingHeads<B>>)>>>;

struct Shell<B: Backend> {
    state: ContextHostState,
    started: Instant,
    desk: Desk<B>,
    links: Arc<Links>,
    heads: HeadsCache<B>,
    outbox: Outbox<HostMessage>,
    held: watch::Sender<u64>,
    stop: Arc<AtomicBool>,
}

impl<B: Backend> Actor for ContextHost<B> {
    type Msg = Event;
    type State = Shell<B>;
    type Arguments = Shell<B>;

    async fn pre_start(&self, _: ActorRef<Event>, shell: Shell<B>) -> Result<Shell<B>, ActorProcessingErr> {
        Ok(shell)
    }

    async fn handle(
        &self,
        myself: ActorRef<Event>,
        event: Event,
        shell: &mut Shell<B>,
    ) -> Result<(), ActorProcessingErr> {
        for command in shell.state.handle(shell.started.elapsed(), event) {
            shell.carry_out(command, &myself);
        }
        Ok(())
    }

    async fn post_stop(&self, _: ActorRef<Event>, shell: &mut Shell<B>) -> Result<(), ActorProcessingErr> {
        shell.stop.store(true, Ordering::Relaxed);
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        _: ActorRef<Event>,
        event: SupervisionEvent,
        _: &mut Shell<B>,
    ) -> Result<(), ActorProcessingErr> {
        tracing::debug!(?event, "supervision");
        Ok(())
    }
}

impl<B: Backend> Shell<B> {
    fn carry_out(&mut self, command: Command, actor: &ActorRef<Event>) {
        match command {
            Command::Encode(order) => self.encode(order, actor.clone()),
            Command::Stop => self.stop.store(true, Ordering::Relaxed),
            Command::Forget { job } => {
                self.desk.store.forget(job);
                self.desk.mailroom.forget(job);
            }
            Command::Tell(message) => self.outbox.send(message),
            Command::Held { bytes } => drop(self.held.send_replace(bytes)),
        }
    }

    fn encode(&mut self, order: EncodeShards, actor: ActorRef<Event>) {
        self.stop = Arc::default();
        let work = Work {
            office: Office {
                decoder: self.desk.decoder.clone(),
                links: self.links.clone(),
                mailroom: self.desk.mailroom.clone(),
                stop: self.stop.clone(),
                runtime: Handle::current(),
            },
            store: self.desk.store.clone(),
            heads: self.heads.clone(),
            actor,
        };
        tokio::task::spawn_blocking(move || work.run(&order));
    }
}

/// One order on its way through the encoder.
struct Work<B: Backend> {
    office: Office<B>,
    store: ShardStore<B>,
    heads: HeadsCache<B>,
    actor: ActorRef<Event>,
}

impl<B: Backend> Work<B> {
    fn run(self, order: &EncodeShards) {
        let (actor, job) = (self.actor.clone(), order.job);
        let event = match self.encode(order) {
            Ok(encoded) => Event::Encoded { job, encoded },
            Err(ModelError::Cancelled) => Event::Stopped { job, error: None },
            Err(error) => Event::Stopped { job, error: Some((error.code().to_string(), error.to_string())) },
        };
        let _ = actor.cast(event);
    }

    fn encode(self, order: &EncodeShards) -> Result<Vec<Encoded>, ModelError> {
        let (started, decoder) = (Instant::now(), self.office.decoder.clone());
        let heads = self.heads(order)?;
        let mut watch = Reporter {
            job: order.job,
            of: decoder.config().layers as u32,
            actor: self.actor,
            stop: self.office.stop.clone(),
            pairs: HashMap::new(),
        };
        let mut peers = RemotePeers::new(self.office, order);
        let phase = Phase1 {
            decoder: &decoder,
            shards: &order.shards,
            blocks: order.blocks as usize,
            exchange: &order.exchange,
            heads: heads.as_deref(),
        };
        let encoded = phase.encode(&mut peers, &mut watch)?;
        let seconds = started.elapsed().as_secs_f64() / encoded.len() as f64;
        let mut exchange_bytes = peers.received_bytes();
        let report = |shard: EncodedShard<B>| {
            let report = Encoded {
                job: order.job,
                block: shard.block as u32,
                kept_tokens: shard.tokens as u64,
                kv_bytes: shard.bytes(decoder.backend()) as u64,
                seconds,
                pairs: watch.pairs.get(&shard.block).copied().unwrap_or(0),
                exchange_bytes: std::mem::take(&mut exchange_bytes),
            };
            self.store.insert(order.job, shard);
            report
        };
        Ok(encoded.into_iter().map(report).collect())
    }

    /// The retaining heads that the exchange scores by, read once for as long as jobs name the same file.
    fn heads(&self, order: &EncodeShards) -> Result<Option<Arc<RetainingHeads<B>>>, ModelError> {
        let Some(path) = order.exchange.retaining_heads() else { return Ok(None) };
        let mut cached = self.heads.lock().expect("no holder panics");
        if let Some((_, heads)) = cached.as_ref().filter(|(file, _)| file == path) {
            return Ok(Some(heads.clone()));
        }
        let decoder = &self.office.decoder;
        let heads = Arc::new(RetainingHeads::load(decoder.backend(), Path::new(path), decoder.config())?);
        *cached = Some((path.to_owned(), heads.clone()));
        Ok(Some(heads))
    }
}

/// Reports layers to the actor, counts pairs and hears the order to stop.
struct Reporter {
    job: u64,
    of: u32,
    actor: ActorRef<Event>,
    stop: Arc<AtomicBool>,
    pairs: HashMap<usize, u64>,
}

impl Watch for Reporter {
    fn layer(&mut self, block: usize, done: usize) -> bool {
        let (job, of) = (self.job, self.of);
        let _ = self.actor.cast(Event::Layer { job, block: block as u32, layers: done as u32, of });
        !self.stop.load(Ordering::Relaxed)
    }

    fn pairs(&mut self, block: usize, pairs: u64) {
        *self.pairs.entry(block).or_default() += pairs;
    }
}
