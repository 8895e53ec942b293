//! The context host's shell: a ractor actor around the state, the encoder on a blocking thread, and the answering tasks.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use asterism_kernels::Backend;
use asterism_models::{Decoder, ModelError, encode_shard};
use asterism_plan::{LocalAttention, Shard};
use asterism_transport::Transport;
use ractor::{Actor, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::sync::watch;

use super::{
    answer,
    state::{Command, ContextHostState, Event},
    store::ShardStore,
};
use crate::{
    error::HostError,
    host::{self, HostConfig, ModelLoader},
    link::Outbox,
    messages::{EncodeShard, Encoded, HostMessage, HostRole, ShardAttention},
};

/// Runs a context host until its supervisor ends it or is gone.
pub async fn run<B: Backend>(
    config: HostConfig,
    transport: Arc<dyn Transport>,
    loader: ModelLoader<B>,
) -> Result<(), HostError> {
    let mut joined = host::join(&config, HostRole::Context, transport.as_ref()).await?;
    let decoder = joined.load(&config.name, loader).await?.decoder;
    let store = ShardStore::default();
    tokio::spawn(answer::serve(transport.clone(), decoder.clone(), store.clone()));
    let shell = Shell {
        state: ContextHostState::default(),
        started: Instant::now(),
        decoder,
        store,
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

struct Shell<B: Backend> {
    state: ContextHostState,
    started: Instant,
    decoder: Arc<Decoder<B>>,
    store: ShardStore<B>,
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
            Command::Encode(shard) => self.encode(shard, actor.clone()),
            Command::Stop => self.stop.store(true, Ordering::Relaxed),
            Command::Forget { job } => self.store.forget(job),
            Command::Tell(message) => self.outbox.send(message),
            Command::Held { bytes } => drop(self.held.send_replace(bytes)),
        }
    }

    fn encode(&mut self, shard: EncodeShard, actor: ActorRef<Event>) {
        self.stop = Arc::default();
        let (decoder, store, stop) = (self.decoder.clone(), self.store.clone(), self.stop.clone());
        tokio::task::spawn_blocking(move || {
            let (job, block) = (shard.job, shard.block);
            let of = decoder.config().layers as u32;
            let started = Instant::now();
            let encoded = encode_shard(&decoder, &planned(shard), |layers| {
                let _ = actor.cast(Event::Layer { job, block, layers: layers as u32, of });
                !stop.load(Ordering::Relaxed)
            });
            let event = match encoded {
                Ok(encoded) => {
                    let (kept_tokens, kv_bytes) = (encoded.tokens as u64, encoded.bytes(decoder.backend()) as u64);
                    store.insert(job, encoded);
                    let seconds = started.elapsed().as_secs_f64();
                    Event::Encoded(Encoded { job, block, kept_tokens, kv_bytes, seconds })
                }
                Err(ModelError::Cancelled) => Event::Stopped { job, error: None },
                Err(error) => Event::Stopped { job, error: Some((error.code().to_string(), error.to_string())) },
            };
            let _ = actor.cast(event);
        });
    }
}

fn planned(shard: EncodeShard) -> Shard {
    Shard {
        block: shard.block as usize,
        host: 0,
        input_ids: shard.input_ids,
        position_ids: shard.position_ids,
        keep_from: shard.keep_from as usize,
        attention: match shard.attention {
            ShardAttention::Causal => LocalAttention::Causal,
        },
    }
}
