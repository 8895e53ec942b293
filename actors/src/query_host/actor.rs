//! The query host's shell: a ractor actor around the state, and one generation at a time on a blocking thread.

use std::{sync::Arc, time::Instant};

use asterism_kernels::Backend;
use asterism_models::ModelError;
use asterism_transport::Transport;
use ractor::{Actor, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::sync::mpsc;

use super::{
    generation,
    remote::{Arrival, RemoteContext},
    state::{Command, Event, QueryHostState},
};
use crate::{
    error::HostError,
    host::{self, HostConfig, LoadedModel, ModelLoader},
    link::{Links, Outbox},
    messages::{Generate, HostMessage, HostRole},
};

/// Runs a query host until its supervisor ends it or is gone.
pub async fn run<B: Backend>(
    config: HostConfig,
    transport: Arc<dyn Transport>,
    loader: ModelLoader<B>,
) -> Result<(), HostError> {
    let mut joined = host::join(&config, HostRole::Query, transport.as_ref()).await?;
    let model = joined.load(&config.name, loader).await?;
    let shell = Shell {
        state: QueryHostState::default(),
        started: Instant::now(),
        model: Arc::new(model),
        links: Arc::new(Links::new(transport.clone())),
        outbox: joined.outbox.clone(),
        stop: None,
    };
    let (actor, handle) = Actor::spawn(None, QueryHost(std::marker::PhantomData), shell)
        .await
        .map_err(|error| HostError::Actor { cause: error.to_string() })?;
    let ended = joined.serve(&config.name, |command| drop(actor.cast(Event::Command(command)))).await;
    actor.stop(None);
    let _ = handle.await;
    transport.close();
    transport.drained().await;
    ended
}

struct QueryHost<B>(std::marker::PhantomData<fn() -> B>);

struct Shell<B: Backend> {
    state: QueryHostState,
    started: Instant,
    model: Arc<LoadedModel<B>>,
    links: Arc<Links>,
    outbox: Outbox<HostMessage>,
    /// Where the order to stop reaches the generation running.
    stop: Option<mpsc::UnboundedSender<Arrival>>,
}

impl<B: Backend> Actor for QueryHost<B> {
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
            match command {
                Command::Generate(generate) => shell.generate(generate, myself.clone()),
                Command::Stop => shell.stop(),
                Command::Tell(message) => shell.outbox.send(message),
            }
        }
        Ok(())
    }

    async fn post_stop(&self, _: ActorRef<Event>, shell: &mut Shell<B>) -> Result<(), ActorProcessingErr> {
        shell.stop();
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
    fn stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(Err(ModelError::Cancelled));
        }
    }

    fn generate(&mut self, generate: Generate, actor: ActorRef<Event>) {
        let (model, links, outbox) = (self.model.clone(), self.links.clone(), self.outbox.clone());
        let arrivals = mpsc::unbounded_channel();
        self.stop = Some(arrivals.0.clone());
        tokio::spawn(async move {
            let job = generate.job;
            let end = match RemoteContext::open(model.decoder.clone(), &links, &generate, arrivals).await {
                Ok(context) => {
                    let work = move || generation::generate(&model, &generate, context, &outbox);
                    tokio::task::spawn_blocking(work).await.unwrap_or_else(|panic| {
                        let (code, message) = ("internal".to_string(), format!("the generation panicked: {panic}"));
                        super::state::GenerationEnd::Failed { code, message }
                    })
                }
                Err(error) => generation::failed(&error),
            };
            let _ = actor.cast(Event::Ended { job, end });
        });
    }
}
