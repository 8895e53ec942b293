//! The supervisor's shell: a ractor actor that feeds events to the state, has the journal keep its changes, and carries its
//! commands out. Decides nothing.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::AtomicBool, mpsc::TryRecvError},
    time::Duration,
};

use asterism_transport::{Link, Transport};
use ractor::{Actor, ActorProcessingErr, ActorRef, SupervisionEvent};
use ring::rand::{SecureRandom, SystemRandom};
use tokio::{
    runtime::{Handle, RuntimeFlavor},
    sync::{OwnedSemaphorePermit, Semaphore, oneshot},
    time::Instant,
};

use crate::{
    api::{ClusterStatus, JobEvent},
    cluster_event::EventId,
    error::{HostError, JobError},
    link::{self, Outbox, UNREAD},
    machine,
    messages::{HostCommand, HostMessage, MeasuredLink, Settings},
    metric,
    store::StateStore,
    supervisor::{
        command::{SupervisorCommand, SupervisorEvent},
        config::{ContextHosts, SupervisorConfig},
        shell::{
            config_metrics,
            events::{EventListener, Events},
            feed::{Feed, Listener},
            watchdog::Watchdog,
            write_queue::{BatchLimits, Journal, JournalAction, Request},
            writer::{EntriesCallback, Writer},
        },
        state::SupervisorState,
        tables::numbers::Origin,
    },
    ticket::Secret,
};

/// Things that happened and wait for the disk, before the supervisor waits for it too.
const BACKLOG: usize = 16_384;
/// Listeners at once: each holds a connection.
const MAX_LISTENERS: usize = 4096;
/// Metrics of the cluster are set so often.
const RECORDED_EVERY: Duration = Duration::from_secs(1);

/// What the actor is told.
pub enum SupervisorMessage {
    Connected {
        connection: u64,
        link: Arc<dyn Link>,
        outbox: Outbox<HostCommand>,
    },
    Event(SupervisorEvent),
    Ask(Box<dyn FnOnce(&mut SupervisorShell) + Send>),
    Change(Request),
    /// A write of the journal ended.
    Written,
}

/// The actor.
pub struct SupervisorActor;

/// The state and what it acts through.
pub struct SupervisorShell {
    state: SupervisorState,
    journal: Journal,
    /// Until the actor runs.
    store: Option<Box<dyn StateStore>>,
    writer: Option<Writer>,
    /// Notified when nothing is left to be written.
    flushed: Option<oneshot::Sender<()>>,
    /// Whether the store is at work.
    writing: Arc<AtomicBool>,
    /// Unix time at the start, and the clock that runs on from there.
    clock: (Duration, Instant),
    transport: Arc<dyn Transport>,
    connections: BTreeMap<u64, (Arc<dyn Link>, Outbox<HostCommand>)>,
    /// What jobs that have not ended said, where they said anything or somebody listens.
    feeds: BTreeMap<u64, Feed>,
    listeners: Arc<Semaphore>,
    events: Events,
    /// Who waits for what a host measures, and the host's connection.
    measuring: Option<(u64, oneshot::Sender<Vec<MeasuredLink>>)>,
    watchdog: Arc<Watchdog>,
    /// When metrics of the cluster were set last; whoever reads them has them set anew.
    recorded: Option<Duration>,
    /// What hosts and nodes were told to do otherwise since they were started, for those that come.
    settings: Option<Settings>,
}

impl Actor for SupervisorActor {
    type Msg = SupervisorMessage;
    type State = SupervisorShell;
    type Arguments = SupervisorShell;

    async fn pre_start(
        &self,
        myself: ActorRef<SupervisorMessage>,
        mut shell: SupervisorShell,
    ) -> Result<SupervisorShell, ActorProcessingErr> {
        if let Some(store) = shell.store.take() {
            let actor = myself.clone();
            let ended = move || drop(actor.cast(SupervisorMessage::Written));
            shell.writer = Some(Writer::start(store, shell.writing(), ended)?);
        }
        tokio::spawn(accept_hosts(shell.transport.clone(), myself.clone()));
        myself.send_interval(shell.state.config().liveness.heartbeat / 2, || {
            SupervisorMessage::Event(SupervisorEvent::Tick)
        });
        Ok(shell)
    }

    async fn handle(
        &self,
        _myself: ActorRef<SupervisorMessage>,
        message: SupervisorMessage,
        shell: &mut SupervisorShell,
    ) -> Result<(), ActorProcessingErr> {
        shell.handle(message);
        let written = shell.write(shell.journal.backlog() > BACKLOG);
        shell.watchdog.beat();
        written
    }

    async fn handle_supervisor_evt(
        &self,
        _myself: ActorRef<SupervisorMessage>,
        event: SupervisionEvent,
        _shell: &mut SupervisorShell,
    ) -> Result<(), ActorProcessingErr> {
        tracing::debug!(?event, "supervision");
        Ok(())
    }
}

impl SupervisorShell {
    /// With what `store` has, before any host connected.
    pub fn restore(
        config: SupervisorConfig,
        transport: Arc<dyn Transport>,
        mut store: Box<dyn StateStore>,
    ) -> Result<Self, HostError> {
        let unix = machine::unix_time();
        let watchdog = Watchdog::of(config.liveness.heartbeat);
        let mut secret = [0; 32];
        SystemRandom::new()
            .fill(&mut secret)
            .map_err(|_| HostError::Actor { cause: "the system gives no random numbers".into() })?;
        let fresh = Origin { cluster: unix.as_nanos() as u64 | 1, secret: Secret::new(secret) };
        let mut state = SupervisorState::restore(config, unix, fresh, &store.load()?)?;
        let mut journal = Journal::new(BatchLimits::default());
        // Nothing but changes to be kept: nobody is connected.
        journal.follow(state.reconcile(unix));
        Ok(Self {
            state,
            journal,
            store: Some(store),
            writer: None,
            flushed: None,
            writing: Arc::default(),
            clock: (unix, Instant::now()),
            transport,
            connections: BTreeMap::new(),
            feeds: BTreeMap::new(),
            listeners: Arc::new(Semaphore::new(MAX_LISTENERS)),
            events: Events::of(unix.as_micros() as u64),
            measuring: None,
            watchdog: Arc::new(watchdog),
            recorded: None,
            settings: None,
        })
    }

    /// Set while the store is at work.
    pub fn writing(&self) -> Arc<AtomicBool> {
        self.writing.clone()
    }

    /// When it last did something.
    pub fn watchdog(&self) -> Arc<Watchdog> {
        self.watchdog.clone()
    }

    /// The state, to look at.
    pub fn state(&self) -> &SupervisorState {
        &self.state
    }

    /// Tells every host and node to end. Returns their links, which they close then.
    pub fn end_hosts(&mut self) -> Vec<Arc<dyn Link>> {
        let commands = self.state.end_hosts();
        let acts = self.journal.follow(commands);
        self.perform(acts);
        let notify = |(link, host): &(Arc<dyn Link>, Outbox<HostCommand>)| {
            host.send(HostCommand::Shutdown);
            link.clone()
        };
        self.connections.values().map(notify).collect()
    }

    /// Unix time at the start, running on with a clock that does not jump.
    pub fn now(&self) -> Duration {
        self.clock.0 + self.clock.1.elapsed()
    }

    fn handle(&mut self, message: SupervisorMessage) {
        match message {
            SupervisorMessage::Connected { connection, link, outbox } => {
                let protocol = link.version();
                self.connections.insert(connection, (link, outbox));
                // It asks for nothing to be done.
                self.state.handle(self.now(), SupervisorEvent::Connected { connection, protocol });
            }
            SupervisorMessage::Event(SupervisorEvent::Message {
                connection,
                message: HostMessage::Measured { links },
            }) => {
                if let Some((_, answer)) = self.measuring.take_if(|(asked, _)| *asked == connection) {
                    let _ = answer.send(links);
                }
            }
            SupervisorMessage::Event(event) => {
                if let SupervisorEvent::Disconnected { connection, .. } = &event {
                    self.connections.remove(connection);
                }
                let ticked = matches!(event, SupervisorEvent::Tick);
                let commands = self.state.handle(self.now(), event);
                let acts = self.journal.follow(commands);
                self.perform(acts);
                let now = self.now();
                if ticked && self.recorded.is_none_or(|at| now.saturating_sub(at) >= RECORDED_EVERY) {
                    self.recorded = Some(now);
                    metric::record_cluster(&self.cluster());
                    metric::record_sessions(&self.state.session_counts(), self.state.pinned_bytes());
                }
            }
            SupervisorMessage::Ask(question) => question(self),
            SupervisorMessage::Change(request) => self.journal.ask(request),
            SupervisorMessage::Written => {}
        }
    }

    /// From now on the cluster is configured like this, and hosts and nodes do what `settings` say. Returns what jobs are planned for then.
    pub fn reconfigure(&mut self, config: SupervisorConfig, settings: Settings) -> BTreeMap<String, ContextHosts> {
        let commands = self.state.reconfigure(self.now(), config);
        let acts = self.journal.follow(commands);
        self.perform(acts);
        config_metrics::record_config(self.state.config());
        for (connection, (_, outbox)) in &self.connections {
            outbox.send(settings_of(&settings, self.state.is_node(*connection)));
        }
        self.settings = Some(settings);
        self.state.context_hosts()
    }

    /// Has accepted work wait for a self-test, or go on.
    pub fn hold_back(&mut self, held: bool) {
        self.state.hold_back(held);
        self.handle(SupervisorMessage::Event(SupervisorEvent::Tick));
    }

    /// Tells the host on a connection to measure; what it measured comes out at the end.
    pub fn measure(&mut self, connection: u64, order: HostCommand) -> oneshot::Receiver<Vec<MeasuredLink>> {
        let (answer, answered) = oneshot::channel();
        self.measuring = Some((connection, answer));
        self.act(SupervisorCommand::Send { connection, command: order });
        answered
    }

    /// The cluster.
    pub fn cluster(&self) -> ClusterStatus {
        self.state.cluster_status(self.now(), env!("CARGO_PKG_VERSION"))
    }

    /// A job's number.
    pub fn find(&self, id: &str) -> Result<u64, JobError> {
        self.state.job_number(id).ok_or_else(|| JobError::NotFound { id: id.to_string() })
    }

    /// What a job has said so far and will say.
    pub fn watch(&mut self, job: u64) -> Result<Listener, JobError> {
        let place = self.place()?;
        let status = self.state.job_status(self.now(), job).expect("found by its id");
        if status.phase.is_none() {
            let feed = Feed::default();
            let listener = feed.listen(None, place);
            feed.publish(JobEvent::Finished { status: Box::new(status) });
            return Ok(listener);
        }
        self.state.set_watched(job, true);
        Ok(self.feeds.entry(job).or_default().listen(status.phase, place))
    }

    /// What has happened behind an event, or lately, and will happen.
    pub fn events(&self, after: Option<EventId>) -> Result<EventListener, JobError> {
        Ok(self.events.listen(after, self.place()?))
    }

    fn place(&self) -> Result<OwnedSemaphorePermit, JobError> {
        let place = self.listeners.clone().try_acquire_owned();
        place.map_err(|_| JobError::Crowded { listeners: MAX_LISTENERS })
    }

    /// Begins the next write, if there is one, and takes in the end of the last. `wait`: not before that ended.
    fn write(&mut self, wait: bool) -> Result<(), ActorProcessingErr> {
        while self.journal.is_writing() {
            let Some(writer) = &self.writer else { break };
            let ended = match wait {
                true => beside_others(|| writer.result().map_err(|_| TryRecvError::Disconnected)),
                false => writer.try_result(),
            };
            match ended {
                Ok(result) => {
                    let now = self.now();
                    let acts = self.journal.written(&mut self.state, now, result);
                    self.perform(acts);
                }
                Err(TryRecvError::Empty) => {
                    let acts = self.journal.overtake(self.now());
                    self.perform(acts);
                    return Ok(());
                }
                Err(TryRecvError::Disconnected) => return Err("the journal's thread is gone".into()),
            }
        }
        let now = self.now();
        if let Some(changes) = self.journal.begin(&mut self.state, now) {
            self.writer.as_ref().ok_or("the journal's thread is not there")?.write(changes);
        } else if let Some(flushed) = self.flushed.take() {
            let _ = flushed.send(());
        }
        Ok(())
    }

    /// Tells somebody when the journal has what it can have.
    pub fn flush(&mut self, flushed: oneshot::Sender<()>) {
        self.journal.hurry();
        self.flushed = Some(flushed);
    }

    /// Has somebody hear what the journal has between two writes; false where that cannot be now.
    pub fn read_journal(&self, heard: EntriesCallback) -> bool {
        self.writer.as_ref().is_some_and(|writer| writer.read(heard))
    }

    /// Whether a slow disk holds up as many answers as there may be.
    pub fn is_crowded(&self) -> bool {
        self.journal.is_crowded()
    }

    /// Tells somebody something when the journal has all that it rests on.
    pub fn notify(&mut self, callback: impl FnOnce() + Send + 'static) {
        let acts = self.journal.notify(callback);
        self.perform(acts);
    }

    fn perform(&mut self, acts: Vec<JournalAction>) {
        for act in acts {
            match act {
                JournalAction::Do(command) => self.act(*command),
                JournalAction::Notify(callback) => callback(&self.state, self.now()),
            }
        }
    }

    fn act(&mut self, command: SupervisorCommand) {
        match command {
            SupervisorCommand::Persist(_) | SupervisorCommand::Note(_) => {}
            SupervisorCommand::Send { connection, command } => {
                if let Some((_, outbox)) = self.connections.get(&connection) {
                    let welcomed = matches!(command, HostCommand::Welcome { .. });
                    outbox.send(command);
                    if let Some(settings) = self.settings.as_ref().filter(|_| welcomed) {
                        outbox.send(settings_of(settings, self.state.is_node(connection)));
                    }
                }
            }
            SupervisorCommand::Disconnect { connection, reason } => {
                if let Some((link, _)) = self.connections.remove(&connection) {
                    link.close(&reason);
                }
            }
            SupervisorCommand::Publish { job, event } => self.publish(job, event),
            SupervisorCommand::Observe(observation) => observation.record(),
            SupervisorCommand::Notify(update) => self.events.publish(self.now(), update),
        }
    }

    fn publish(&mut self, job: u64, event: JobEvent) {
        let (ended, progress) =
            (matches!(event, JobEvent::Finished { .. }), matches!(event, JobEvent::Progress { .. }));
        let feed = match ended || progress {
            true => self.feeds.get(&job),
            false => Some(&*self.feeds.entry(job).or_default()),
        };
        if progress && !feed.is_some_and(Feed::has_listeners) {
            return self.state.set_watched(job, false);
        }
        feed.into_iter().for_each(|feed| feed.publish(event.clone()));
        if ended {
            self.feeds.remove(&job);
        }
    }
}

impl Drop for SupervisorShell {
    fn drop(&mut self) {
        self.transport.close();
        let writer = self.writer.take();
        beside_others(|| drop(writer));
    }
}

/// Runs what blocks without holding up what else this thread would run, where the runtime can do that.
fn beside_others<T>(blocking: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|handle| handle.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(blocking),
        _ => blocking(),
    }
}

/// What of the settings a host or a node is told: cluster files are for nodes.
fn settings_of(settings: &Settings, to_node: bool) -> HostCommand {
    let cluster_file = settings.cluster_file.clone().filter(|_| to_node);
    Settings { cluster_file, ..settings.clone() }.command()
}

/// Takes host connections in and turns what they say into events.
async fn accept_hosts(transport: Arc<dyn Transport>, actor: ActorRef<SupervisorMessage>) {
    let mut connection = 0;
    while let Some(link) = transport.accept().await {
        connection += 1;
        tokio::spawn(serve_host(connection, link, actor.clone()));
    }
}

async fn serve_host(connection: u64, link: Arc<dyn Link>, actor: ActorRef<SupervisorMessage>) {
    let Ok(channel) = link.accept().await else { return };
    let (outbox, mut inbox) = link::control::<HostCommand>(channel, &link);
    let outbox = outbox.bounded(&link, UNREAD);
    let _ = actor.cast(SupervisorMessage::Connected { connection, link: link.clone(), outbox });
    let cause = loop {
        match inbox.receive().await {
            Ok(message) => {
                if actor.cast(SupervisorMessage::Event(SupervisorEvent::Message { connection, message })).is_err() {
                    break "the supervisor ended".to_string();
                }
            }
            Err(cause) => break cause.to_string(),
        }
    };
    link.close(&cause);
    let _ = actor.cast(SupervisorMessage::Event(SupervisorEvent::Disconnected { connection, cause }));
}
