//! The shell of a host: a ractor actor that hands each event to the side it belongs to, and sends their messages.

use std::{sync::Arc, time::Duration};

use asterism_kernels::Backend;
use asterism_transport::{Link, Reached};
use ractor::{Actor, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::{sync::oneshot, task::JoinHandle, time::Instant};

use super::{
    config::{HostConfig, Transports},
    process,
};
use crate::{
    compute::{DeviceHandover, LoadedModel, ReportSink},
    context_host::{self, ContextSide},
    cores::Cores,
    error::HostError,
    link::{LinkBook, Outbox},
    machine,
    messages::{EncodeShards, Generate, HostCommand, HostMessage, LinkPeer},
    probe,
    query_host::{self, QuerySide},
    readings::{LinkReport, ProcessReading},
    ticket::Ticket,
};

/// The supervisor's name among peers.
const SUPERVISOR_PEER: &str = "supervisor";
/// What a host measures of its links goes with a heartbeat, once in so long and so many of them: it costs a supervisor more than a
/// heartbeat does, and of a thousand hosts each beats less often.
const LINKS_REPORTED_EVERY: (Duration, u32) = (Duration::from_secs(1), 4);

/// Contexts that a host has shards of, and jobs that it generates for with what opens their contexts.
pub type HeldWork = (Vec<u64>, Vec<(u64, Ticket)>);

/// What reaches the actor.
pub enum HostActorMessage<B: Backend> {
    /// The model is there; work can begin.
    Loaded(LoadedModel<B>),
    /// A supervisor listens here.
    Linked(Outbox<HostMessage>, Arc<dyn Link>),
    /// Nobody listens.
    Unlinked,
    /// The supervisor wants something.
    Command(HostCommand),
    /// Something happened on the context host's side.
    Context(context_host::ContextHostEvent),
    /// Something happened on the query host's side.
    Query(query_host::QueryHostEvent),
    /// Time for a heartbeat.
    Beat(oneshot::Sender<()>),
    /// Somebody wants to know which contexts and which jobs are here.
    Introduce(oneshot::Sender<HeldWork>),
}

/// Starts the actor; the handle completes when it ends.
pub async fn spawn<B: Backend>(
    config: &HostConfig,
    transports: Transports,
) -> Result<(ActorRef<HostActorMessage<B>>, JoinHandle<()>), HostError> {
    let shell = HostShell {
        config: config.clone(),
        transports,
        started: Instant::now(),
        context: None,
        query: None,
        cores: None,
        outbox: None,
        supervisor: LinkBook::default(),
        links_reported: None,
    };
    Actor::spawn(None, HostActor(std::marker::PhantomData), shell)
        .await
        .map_err(|error| HostError::Actor { cause: error.to_string() })
}

/// The actor.
pub struct HostActor<B>(std::marker::PhantomData<fn() -> B>);

/// Its state.
pub struct HostShell<B: Backend> {
    config: HostConfig,
    transports: Transports,
    started: Instant,
    context: Option<ContextSide<B>>,
    query: Option<QuerySide>,
    /// Once the model is loaded.
    cores: Option<Arc<dyn Cores>>,
    outbox: Option<Outbox<HostMessage>>,
    /// The link to the supervisor.
    supervisor: LinkBook,
    /// When this supervisor was last told of links, and heartbeats since.
    links_reported: Option<(Instant, u32)>,
}

impl<B: Backend> Actor for HostActor<B> {
    type Msg = HostActorMessage<B>;
    type State = HostShell<B>;
    type Arguments = HostShell<B>;

    async fn pre_start(
        &self,
        _: ActorRef<HostActorMessage<B>>,
        shell: HostShell<B>,
    ) -> Result<HostShell<B>, ActorProcessingErr> {
        Ok(shell)
    }

    async fn handle(
        &self,
        myself: ActorRef<HostActorMessage<B>>,
        message: HostActorMessage<B>,
        shell: &mut HostShell<B>,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            HostActorMessage::Loaded(model) => shell.loaded(model, &myself),
            HostActorMessage::Linked(outbox, link) => {
                let (transport, why) = (shell.transports.control.name(), String::new());
                shell.supervisor.opened(SUPERVISOR_PEER, &Reached { link, transport, why });
                (shell.outbox, shell.links_reported) = (Some(outbox), None);
            }
            HostActorMessage::Unlinked => shell.outbox = None,
            HostActorMessage::Command(command) => shell.command(command),
            HostActorMessage::Context(event) => shell.context(event),
            HostActorMessage::Query(event) => shell.query(event),
            HostActorMessage::Beat(handled) => {
                shell.context(context_host::ContextHostEvent::Beat);
                let (kv_bytes, idle_bytes) = shell.context.as_ref().map_or((0, 0), |side| side.state.kv_bytes());
                shell.report(HostMessage::Heartbeat { kv_bytes, idle_bytes });
                shell.report_links();
                let _ = handled.send(());
            }
            HostActorMessage::Introduce(reply) => {
                let contexts = shell.context.as_ref().map(|side| side.state.contexts());
                let jobs = shell.query.as_ref().map(|side| side.state.jobs());
                let _ = reply.send((contexts.unwrap_or_default(), jobs.unwrap_or_default()));
            }
        }
        Ok(())
    }

    async fn post_stop(
        &self,
        _: ActorRef<HostActorMessage<B>>,
        shell: &mut HostShell<B>,
    ) -> Result<(), ActorProcessingErr> {
        (shell.context, shell.query) = (None, None);
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        _: ActorRef<HostActorMessage<B>>,
        event: SupervisionEvent,
        _: &mut HostShell<B>,
    ) -> Result<(), ActorProcessingErr> {
        tracing::debug!(?event, "supervision");
        Ok(())
    }
}

impl<B: Backend> HostShell<B> {
    fn loaded(&mut self, model: LoadedModel<B>, myself: &ActorRef<HostActorMessage<B>>) {
        self.cores = Some(model.cores.clone());
        let hands_over = self.config.hands_over.unwrap_or_else(|| DeviceHandover::of(model.decoder.backend()));
        if self.config.encodes {
            let actor = myself.clone();
            let post: ReportSink<_> = Arc::new(move |event| drop(actor.cast(HostActorMessage::Context(event))));
            self.context = Some(ContextSide::start(
                self.transports.data.clone(),
                &model,
                (self.config.piece_bytes, hands_over),
                self.config.batching,
                post,
            ));
        }
        if self.config.generates {
            let actor = myself.clone();
            let post: ReportSink<_> = Arc::new(move |event| drop(actor.cast(HostActorMessage::Query(event))));
            let settings = (hands_over, self.config.batching.interval(model.decoder.backend()));
            self.query = Some(QuerySide::start(self.transports.data.clone(), Arc::new(model), settings, post));
        }
    }

    /// Orders go to the side that they are for; all else concerns whom it concerns.
    fn command(&mut self, command: HostCommand) {
        match command {
            HostCommand::Encode(order) if self.context.is_none() => self.cannot_encode(&order),
            HostCommand::Generate(order) if self.query.is_none() => self.cannot_generate(&order),
            HostCommand::Ids(_) | HostCommand::Encode(_) | HostCommand::Release { .. } => {
                self.context(context_host::ContextHostEvent::Command(command));
            }
            HostCommand::Generate(_) | HostCommand::Holders { .. } | HostCommand::Stop { .. } => {
                self.query(query_host::QueryHostEvent::Command(command));
            }
            HostCommand::Measure { peers } => self.measure(peers),
            HostCommand::Welcome { .. }
            | HostCommand::Refuse { .. }
            | HostCommand::Kill { .. }
            | HostCommand::Start { .. }
            | HostCommand::Configure { .. }
            | HostCommand::Leave
            | HostCommand::Shutdown => tracing::warn!(?command, "a command that is not for a working host"),
        }
    }

    /// Measures over the links that its questions take, if it asks any, else over those of its parcels.
    fn measure(&self, peers: Vec<LinkPeer>) {
        let asking = self.query.as_ref().map(|side| side.links().clone());
        let links = asking.or_else(|| self.context.as_ref().map(|side| side.links().clone()));
        let outbox = self.outbox.clone();
        machine::spawn(move || {
            let links = links.map(|links| machine::block_on(probe::measure(links, peers))).unwrap_or_default();
            send(&outbox, HostMessage::Measured { links });
        });
    }

    fn context(&mut self, event: context_host::ContextHostEvent) {
        let (now, outbox) = (self.started.elapsed(), &self.outbox);
        if let Some(side) = &mut self.context {
            side.handle(now, event, &mut |message| send(outbox, message));
        }
    }

    fn query(&mut self, event: query_host::QueryHostEvent) {
        let (now, outbox) = (self.started.elapsed(), &self.outbox);
        if let Some(side) = &mut self.query {
            side.handle(now, event, &mut |message| send(outbox, message));
        }
    }

    fn report_links(&mut self) {
        let (now, (every, beats)) = (Instant::now(), LINKS_REPORTED_EVERY);
        match &mut self.links_reported {
            Some((at, since)) if now - *at < every || *since + 1 < beats => *since += 1,
            reported => {
                *reported = Some((now, 0));
                self.report(HostMessage::Links(self.links()));
            }
        }
    }

    fn links(&self) -> LinkReport {
        let computing = self.cores.as_ref().map_or(0, |cores| cores.threads() as u64);
        let gpu = self.cores.as_ref().and_then(|cores| cores.gpu_memory());
        // What is the process's is told once, by one host of it.
        let tally = self.config.tally.as_ref();
        let process = ProcessReading { computing, gpu, ..tally.map(|_| process::reading()).unwrap_or_default() };
        let traffic = tally.map(|tally| tally.traffic()).unwrap_or_default();
        let unix_s = machine::unix_time().as_secs_f64();
        let mut report = LinkReport { unix_s, process, traffic, ..LinkReport::default() };
        self.supervisor.report(&mut report);
        self.query.iter().for_each(|side| side.report(&mut report));
        self.context.iter().for_each(|side| side.report(&mut report));
        report
    }

    fn report(&self, message: HostMessage) {
        send(&self.outbox, message);
    }

    fn cannot_encode(&self, order: &EncodeShards) {
        let (context, attempt, peer_lost) = (order.context, order.attempt, false);
        let (code, message) = self.wrong_role("encode");
        self.report(HostMessage::NotEncoded { context, attempt, peer_lost, code, message });
    }

    fn cannot_generate(&self, order: &Generate) {
        let (code, message) = self.wrong_role("generate");
        self.report(HostMessage::Failed { job: order.job, code, message });
    }

    fn wrong_role(&self, what: &str) -> (String, String) {
        let HostConfig { name, role, .. } = &self.config;
        ("wrong_role".into(), format!("host {name} was started as {role:?} and does not {what}; ask another host"))
    }
}

/// What nobody receives is not kept: what matters is sent again when the supervisor repeats its orders.
fn send(outbox: &Option<Outbox<HostMessage>>, message: HostMessage) {
    if let Some(outbox) = outbox {
        outbox.send(message);
    }
}
