//! The supervisor's shell: a ractor actor that feeds events to the state, keeps its changes in the journal, and carries its
//! commands out. Decides nothing.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use asterism_transport::{Link, Transport};
use ractor::{Actor, ActorProcessingErr, ActorRef, SupervisionEvent};
use ring::rand::{SecureRandom, SystemRandom};
use tokio::{
    runtime::{Handle, RuntimeFlavor},
    sync::Semaphore,
};

use crate::{
    api::{ClusterStatus, HostStatus, JobEvent, SessionStatus},
    error::{HostError, JobError},
    link::{self, Outbox, UNREAD},
    messages::HostCommand,
    metric,
    store::{Change, StateStore, StoreError},
    supervisor::{
        change::Decided,
        config::SupervisorConfig,
        context::PreparedContext,
        feed::{Feed, Listener},
        state::{Command, Event, Origin, PreparedJob, SupervisorState},
    },
    ticket::Secret,
};

/// An actor that does nothing for so long hangs.
const ALIVE_WITHIN: Duration = Duration::from_secs(1);
/// Listeners to jobs at once: each holds a connection.
const MAX_LISTENERS: usize = 4096;

/// What the actor is told.
pub enum Message {
    Connected { connection: u64, link: Arc<dyn Link>, outbox: Outbox<HostCommand> },
    Event(Event),
    Ask(Box<dyn FnOnce(&mut Shell) + Send>),
}

/// The actor.
pub struct SupervisorActor;

/// The state and what it acts through.
pub struct Shell {
    state: SupervisorState,
    store: Box<dyn StateStore>,
    /// Changes that the store has not taken yet.
    unsaved: Vec<Change>,
    /// Whether the store is at work, which on a slow disk takes seconds in which nobody else is answered.
    writing: Arc<AtomicBool>,
    /// Unix time at the start, and the clock that runs on from there.
    clock: (Duration, Instant),
    transport: Arc<dyn Transport>,
    connections: HashMap<u64, (Arc<dyn Link>, Outbox<HostCommand>)>,
    /// What jobs that have not ended said, where they said anything or somebody listens.
    feeds: HashMap<u64, Feed>,
    listeners: Arc<Semaphore>,
    pulse: Arc<Pulse>,
}

/// When the actor last did something: it is told the time often, so that it is never long idle.
pub struct Pulse {
    origin: Instant,
    /// The longest that it is idle while it goes on.
    limit: Duration,
    /// Milliseconds from the origin.
    last: AtomicU64,
}

impl Pulse {
    fn beat(&self) {
        self.last.store(self.origin.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    /// For how long the actor has done nothing, or one thing, if that is too long.
    pub fn silence(&self) -> Option<Duration> {
        let last = Duration::from_millis(self.last.load(Ordering::Relaxed));
        Some(self.origin.elapsed().saturating_sub(last)).filter(|silence| *silence > self.limit)
    }
}

impl Actor for SupervisorActor {
    type Msg = Message;
    type State = Shell;
    type Arguments = Shell;

    async fn pre_start(&self, myself: ActorRef<Message>, shell: Shell) -> Result<Shell, ActorProcessingErr> {
        tokio::spawn(accept_hosts(shell.transport.clone(), myself.clone()));
        myself.send_interval(shell.state.config().liveness.heartbeat / 2, || Message::Event(Event::Tick));
        Ok(shell)
    }

    async fn handle(
        &self,
        _myself: ActorRef<Message>,
        message: Message,
        shell: &mut Shell,
    ) -> Result<(), ActorProcessingErr> {
        shell.handle(message);
        shell.pulse.beat();
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        _myself: ActorRef<Message>,
        event: SupervisionEvent,
        _shell: &mut Shell,
    ) -> Result<(), ActorProcessingErr> {
        tracing::debug!(?event, "supervision");
        Ok(())
    }
}

impl Shell {
    /// With what `store` has, before any host connected.
    pub fn restore(
        config: SupervisorConfig,
        transport: Arc<dyn Transport>,
        mut store: Box<dyn StateStore>,
    ) -> Result<Self, HostError> {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let limit = ALIVE_WITHIN.max(2 * config.liveness.heartbeat);
        let mut secret = [0; 32];
        SystemRandom::new()
            .fill(&mut secret)
            .map_err(|_| HostError::Actor { cause: "the system gives no random numbers".into() })?;
        let fresh = Origin { cluster: unix.as_nanos() as u64 | 1, secret: Secret::new(secret) };
        let state = SupervisorState::restore(config, unix, fresh, &store.load()?)?;
        Ok(Self {
            state,
            store,
            unsaved: Vec::new(),
            writing: Arc::default(),
            clock: (unix, Instant::now()),
            transport,
            connections: HashMap::new(),
            feeds: HashMap::new(),
            listeners: Arc::new(Semaphore::new(MAX_LISTENERS)),
            pulse: Arc::new(Pulse { origin: Instant::now(), limit, last: AtomicU64::new(0) }),
        })
    }

    /// Set while the store is at work.
    pub fn writing(&self) -> Arc<AtomicBool> {
        self.writing.clone()
    }

    /// When it last did something.
    pub fn pulse(&self) -> Arc<Pulse> {
        self.pulse.clone()
    }

    /// The state, to look at.
    pub fn state(&self) -> &SupervisorState {
        &self.state
    }

    /// Tells every host and node to end. Returns their links, which they close then.
    pub fn end_hosts(&mut self) -> Vec<Arc<dyn Link>> {
        let commands = self.state.end_hosts();
        self.carry_out(commands);
        let tell = |(link, host): &(Arc<dyn Link>, Outbox<HostCommand>)| {
            host.send(HostCommand::Shutdown);
            link.clone()
        };
        self.connections.values().map(tell).collect()
    }

    /// Unix time at the start, running on with a clock that does not jump.
    pub fn now(&self) -> Duration {
        self.clock.0 + self.clock.1.elapsed()
    }

    fn handle(&mut self, message: Message) {
        match message {
            Message::Connected { connection, link, outbox } => {
                self.connections.insert(connection, (link, outbox));
            }
            Message::Event(event) => {
                if let Event::Disconnected { connection, .. } = &event {
                    self.connections.remove(connection);
                }
                let ticked = matches!(event, Event::Tick);
                let commands = self.state.handle(self.now(), event);
                self.carry_out(commands);
                if ticked {
                    metric::record_cluster(&self.cluster());
                    metric::record_sessions(&self.state.session_counts());
                }
            }
            Message::Ask(question) => question(self),
        }
    }

    /// Brings a change that a client asks for into force once the journal has it; what the journal cannot take is not.
    pub fn change(
        &mut self,
        decide: impl FnOnce(&SupervisorState, Duration) -> Result<Decided, JobError>,
    ) -> Result<(), JobError> {
        let decided = decide(&self.state, self.now())?;
        let lagging = self.unsaved.len();
        if let Err(error) = self.save(decided.changes.iter().cloned()) {
            // A disk that failed while it confirmed may have it all the same.
            self.unsaved.truncate(lagging);
            self.unsaved.extend(self.state.restated(&decided.changes));
            return Err(error.into());
        }
        let commands = self.state.adopt(self.now(), decided);
        self.carry_out(commands);
        Ok(())
    }

    /// Takes a job in once the journal has it; returns its id.
    pub fn submit(&mut self, prepared: PreparedJob) -> Result<String, JobError> {
        let mut number = self.state.number();
        self.change(|state, now| {
            let (known, decided) = state.submit(now, number, prepared)?;
            number = known;
            Ok(decided)
        })?;
        Ok(self.state.job_status(self.now(), number).expect("just submitted").id)
    }

    /// Takes a session in once the journal has it.
    pub fn create_session(
        &mut self,
        name: &str,
        prepared: PreparedContext,
        ttl: Option<Duration>,
    ) -> Result<SessionStatus, JobError> {
        let number = self.state.number();
        self.change(|state, now| state.create_session((now, number), name, prepared, ttl))?;
        self.state.session_status(self.now(), name)
    }

    /// One host by name.
    pub fn host(&self, name: &str) -> Result<HostStatus, JobError> {
        let hosts = self.cluster().hosts;
        hosts.into_iter().find(|host| host.name == name).ok_or_else(|| JobError::NoHost { name: name.to_string() })
    }

    /// Writes changes, and those that could not be written before.
    fn save(&mut self, changes: impl IntoIterator<Item = Change>) -> Result<(), StoreError> {
        self.unsaved.extend(changes);
        if !self.unsaved.is_empty() {
            self.writing.store(true, Ordering::Relaxed);
            let applied = beside_others(|| self.store.apply(&self.unsaved));
            self.writing.store(false, Ordering::Relaxed);
            applied?;
            self.unsaved.clear();
        }
        Ok(())
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
        let place = self.listeners.clone().try_acquire_owned();
        let place = place.map_err(|_| JobError::Crowded { listeners: MAX_LISTENERS })?;
        let status = self.state.job_status(self.now(), job).expect("found by its id");
        if status.phase.is_none() {
            let feed = Feed::default();
            let listener = feed.listen(None, place);
            feed.say(JobEvent::Finished { status: Box::new(status) });
            return Ok(listener);
        }
        self.state.set_watched(job, true);
        Ok(self.feeds.entry(job).or_default().listen(status.phase, place))
    }

    /// Keeps what is to be kept, then does the rest, also when the journal fails: it lags behind then.
    fn carry_out(&mut self, commands: Vec<Command>) {
        let mut changes = Vec::new();
        let mut others = Vec::with_capacity(commands.len());
        for command in commands {
            match command {
                Command::Persist(change) => changes.push(change),
                other => others.push(other),
            }
        }
        if let Err(error) = self.save(changes) {
            tracing::error!(%error, "the journal lags behind; what is missing is written with the next change");
        }
        others.into_iter().for_each(|command| self.act(command));
    }

    fn act(&mut self, command: Command) {
        match command {
            Command::Persist(_) => {}
            Command::Send { connection, command } => {
                if let Some((_, outbox)) = self.connections.get(&connection) {
                    outbox.send(command);
                }
            }
            Command::Disconnect { connection, reason } => {
                if let Some((link, _)) = self.connections.remove(&connection) {
                    link.close(&reason);
                }
            }
            Command::Publish { job, event } => self.publish(job, event),
            Command::Observe(observation) => observation.record(),
            Command::Tell(news) => news.log(),
        }
    }

    fn publish(&mut self, job: u64, event: JobEvent) {
        let (ended, progress) =
            (matches!(event, JobEvent::Finished { .. }), matches!(event, JobEvent::Progress { .. }));
        let feed = match ended || progress {
            true => self.feeds.get(&job),
            false => Some(&*self.feeds.entry(job).or_default()),
        };
        if progress && !feed.is_some_and(Feed::is_heard) {
            return self.state.set_watched(job, false);
        }
        feed.into_iter().for_each(|feed| feed.say(event.clone()));
        if ended {
            self.feeds.remove(&job);
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        self.transport.close();
    }
}

/// Runs what blocks without holding up what else this thread would run, where the runtime can do that.
fn beside_others<T>(blocking: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|handle| handle.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(blocking),
        _ => blocking(),
    }
}

/// Takes host connections in and turns what they say into events.
async fn accept_hosts(transport: Arc<dyn Transport>, actor: ActorRef<Message>) {
    let mut connection = 0;
    while let Some(link) = transport.accept().await {
        connection += 1;
        tokio::spawn(serve_host(connection, link, actor.clone()));
    }
}

async fn serve_host(connection: u64, link: Arc<dyn Link>, actor: ActorRef<Message>) {
    let Ok(channel) = link.accept().await else { return };
    let (outbox, mut inbox) = link::control::<HostCommand>(channel, &link);
    let outbox = outbox.bounded(&link, UNREAD);
    let _ = actor.cast(Message::Connected { connection, link: link.clone(), outbox });
    let cause = loop {
        match inbox.receive().await {
            Ok(message) => {
                if actor.cast(Message::Event(Event::Message { connection, message })).is_err() {
                    break "the supervisor ended".to_string();
                }
            }
            Err(cause) => break cause,
        }
    };
    link.close(&cause);
    let _ = actor.cast(Message::Event(Event::Disconnected { connection, cause }));
}
