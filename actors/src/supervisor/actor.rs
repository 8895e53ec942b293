//! The supervisor's shell: a ractor actor that feeds events to the state and carries its commands out.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use asterism_plan::MethodConfig;
use asterism_transport::{Link, Transport};
use ractor::{Actor, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::sync::mpsc;

use crate::{
    api::{ClusterStatus, HostStatus, JobEvent, JobRequest, JobStatus, Scheduling, SessionRequest, SessionStatus},
    error::{HostError, JobError},
    link::{self, Outbox},
    messages::HostCommand,
    metric,
    store::{Change, StateStore, StoreError},
    supervisor::{
        config::{ContextHosts, SupervisorConfig},
        prepare::ModelFront,
        state::{Command, Event, PreparedJob, SupervisorState},
    },
};

/// A running supervisor; clones talk to the same one.
#[derive(Clone)]
pub struct Supervisor {
    actor: ActorRef<Message>,
    model: Arc<ModelFront>,
    method: MethodConfig,
    context_hosts: ContextHosts,
}

/// What the actor is told.
pub enum Message {
    Connected { connection: u64, link: Arc<dyn Link>, outbox: Outbox<HostCommand> },
    Event(Event),
    Ask(Box<dyn FnOnce(&mut Shell) + Send>),
}

impl Supervisor {
    /// Starts a supervisor that listens on `transport`, with the jobs and sessions that `store` has.
    pub async fn start(
        config: SupervisorConfig,
        model: Arc<ModelFront>,
        transport: Arc<dyn Transport>,
        store: Box<dyn StateStore>,
    ) -> Result<Self, HostError> {
        let method = config.method.clone();
        let context_hosts = config.context_hosts();
        let shell = Shell::restore(config, transport, store)?;
        let (actor, _) = Actor::spawn(None, SupervisorActor, shell)
            .await
            .map_err(|error| HostError::Actor { cause: error.to_string() })?;
        Ok(Self { actor, model, method, context_hosts })
    }

    /// The model as the supervisor knows it.
    pub fn model(&self) -> &Arc<ModelFront> {
        &self.model
    }

    /// Tokenises, plans and queues a job; returns its id.
    pub async fn submit(&self, request: JobRequest) -> Result<String, JobError> {
        let session = match &request.session {
            Some(name) => {
                let name = name.clone();
                Some(self.ask(move |shell| shell.state.asked_session(&name)).await??)
            }
            None => None,
        };
        let (model, method, hosts) = (self.model.clone(), self.method.clone(), self.context_hosts);
        let prepared = tokio::task::spawn_blocking(move || model.prepare(request, &method, &hosts, session.as_ref()))
            .await
            .map_err(|_| JobError::Stopping)??;
        self.ask(move |shell| shell.submit(prepared)).await?
    }

    /// Everything that happens to a job from now on, after what it has said so far; ends with `Finished`.
    pub async fn watch(&self, id: &str) -> Result<mpsc::UnboundedReceiver<JobEvent>, JobError> {
        let id = id.to_string();
        self.ask(move |shell| shell.find(&id).map(|number| shell.watch(number))).await?
    }

    /// A job's status.
    pub async fn status(&self, id: &str) -> Result<JobStatus, JobError> {
        let id = id.to_string();
        self.ask(move |shell| {
            let number = shell.find(&id)?;
            Ok(shell.state.job_status(shell.now(), number).expect("found by its id"))
        })
        .await?
    }

    /// Every job, oldest first.
    pub async fn jobs(&self) -> Result<Vec<JobStatus>, JobError> {
        self.ask(|shell| shell.state.job_statuses(shell.now())).await
    }

    /// Cancels a job that has not ended.
    pub async fn cancel(&self, id: &str) -> Result<(), JobError> {
        let id = id.to_string();
        self.ask(move |shell| shell.cancel(&id)).await?
    }

    /// The cluster.
    pub async fn cluster(&self) -> Result<ClusterStatus, JobError> {
        self.ask(|shell| shell.cluster()).await
    }

    /// Encodes a context to be asked many times.
    pub async fn create_session(&self, request: SessionRequest) -> Result<SessionStatus, JobError> {
        let (model, method, hosts) = (self.model.clone(), self.method.clone(), self.context_hosts);
        let (name, ttl) = (request.name.clone(), request.ttl_s);
        let prepared = tokio::task::spawn_blocking(move || model.prepare_session(request, &method, &hosts))
            .await
            .map_err(|_| JobError::Stopping)??;
        self.ask(move |shell| {
            let ttl = ttl.map(Duration::from_secs_f64);
            shell.change(|state, now| state.create_session(now, &name, prepared, ttl))?;
            shell.state.session_status(shell.now(), &name)
        })
        .await?
    }

    /// Every session.
    pub async fn sessions(&self) -> Result<Vec<SessionStatus>, JobError> {
        self.ask(|shell| shell.state.session_statuses(shell.now())).await
    }

    /// One session.
    pub async fn session(&self, name: &str) -> Result<SessionStatus, JobError> {
        let name = name.to_string();
        self.ask(move |shell| shell.state.session_status(shell.now(), &name)).await?
    }

    /// Lets a session live so many seconds from now on.
    pub async fn extend_session(&self, name: &str, ttl_s: f64) -> Result<SessionStatus, JobError> {
        if !(ttl_s > 0.0 && ttl_s < 1e9) {
            let message = format!("ttl_s must be a positive number of seconds; got {ttl_s}");
            return Err(JobError::Invalid { param: "ttl_s", message });
        }
        let name = name.to_string();
        self.ask(move |shell| {
            shell.change(|state, now| state.extend_session(now, &name, Duration::from_secs_f64(ttl_s)))?;
            shell.state.session_status(shell.now(), &name)
        })
        .await?
    }

    /// Ends a session and frees its keys and values.
    pub async fn drop_session(&self, name: &str) -> Result<(), JobError> {
        let name = name.to_string();
        self.ask(move |shell| shell.change(|state, now| state.drop_session(now, &name))).await?
    }

    /// One host.
    pub async fn host(&self, name: &str) -> Result<HostStatus, JobError> {
        let name = name.to_string();
        self.ask(move |shell| shell.host(&name)).await?
    }

    /// Has a host take new work, or none, or moves what it has to others after `deadline`.
    pub async fn schedule_host(
        &self,
        name: &str,
        scheduling: Scheduling,
        deadline: Option<Duration>,
    ) -> Result<HostStatus, JobError> {
        let name = name.to_string();
        self.ask(move |shell| {
            shell.change(|state, now| state.schedule_host(now, &name, scheduling, deadline))?;
            shell.host(&name)
        })
        .await?
    }

    /// Gives the place of a host that is dead or takes no work to a spare.
    pub async fn replace_host(&self, dead: &str, spare: &str) -> Result<HostStatus, JobError> {
        let (dead, spare) = (dead.to_string(), spare.to_string());
        self.ask(move |shell| {
            shell.change(|state, now| state.replace_host(now, &dead, &spare))?;
            shell.host(&spare)
        })
        .await?
    }

    /// Tells every host to end, and ends.
    pub async fn shutdown(&self) {
        let tell =
            |shell: &mut Shell| shell.connections.values().for_each(|(_, host)| host.send(HostCommand::Shutdown));
        let _ = self.ask(tell).await;
        let _ = self.actor.stop_and_wait(None, None).await;
    }

    async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Shell) -> T + Send + 'static,
    ) -> Result<T, JobError> {
        let (answer, answered) = tokio::sync::oneshot::channel();
        let message = Message::Ask(Box::new(move |shell| drop(answer.send(question(shell)))));
        self.actor.cast(message).map_err(|_| JobError::Stopping)?;
        answered.await.map_err(|_| JobError::Stopping)
    }
}

struct SupervisorActor;

/// The state and what it acts through.
pub struct Shell {
    state: SupervisorState,
    store: Box<dyn StateStore>,
    /// Changes that the store has not taken yet.
    unsaved: Vec<Change>,
    /// Unix time at the start, and the clock that runs on from there.
    clock: (Duration, Instant),
    transport: Arc<dyn Transport>,
    connections: HashMap<u64, (Arc<dyn Link>, Outbox<HostCommand>)>,
    watchers: HashMap<u64, Vec<mpsc::UnboundedSender<JobEvent>>>,
    /// Tokens of each job that has not ended, for watchers that come late.
    tokens: HashMap<u64, Vec<JobEvent>>,
}

impl Actor for SupervisorActor {
    type Msg = Message;
    type State = Shell;
    type Arguments = Shell;

    async fn pre_start(&self, myself: ActorRef<Message>, shell: Shell) -> Result<Shell, ActorProcessingErr> {
        tokio::spawn(accept_hosts(shell.transport.clone(), myself.clone()));
        myself.send_interval(shell.state.config().heartbeat / 2, || Message::Event(Event::Tick));
        Ok(shell)
    }

    async fn handle(
        &self,
        _myself: ActorRef<Message>,
        message: Message,
        shell: &mut Shell,
    ) -> Result<(), ActorProcessingErr> {
        shell.handle(message);
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
    fn restore(
        config: SupervisorConfig,
        transport: Arc<dyn Transport>,
        mut store: Box<dyn StateStore>,
    ) -> Result<Self, HostError> {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let fresh = unix.as_nanos() as u64 | 1;
        let state = SupervisorState::restore(config, unix, fresh, &store.load()?)?;
        Ok(Self {
            state,
            store,
            unsaved: Vec::new(),
            clock: (unix, Instant::now()),
            transport,
            connections: HashMap::new(),
            watchers: HashMap::new(),
            tokens: HashMap::new(),
        })
    }

    fn now(&self) -> Duration {
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
                if let Err(error) = self.carry_out(commands) {
                    tracing::error!(%error, "the journal lags behind; what is missing is written with the next change");
                }
                if ticked {
                    metric::record_cluster(&self.cluster());
                    metric::record_sessions(&self.state.session_statuses(self.now()));
                }
            }
            Message::Ask(question) => question(self),
        }
    }

    /// Takes a request in that is only taken when the journal has it.
    fn change(
        &mut self,
        request: impl FnOnce(&mut SupervisorState, Duration) -> Result<Vec<Command>, JobError>,
    ) -> Result<(), JobError> {
        self.save(Vec::new())?;
        let now = self.now();
        let commands = request(&mut self.state, now)?;
        Ok(self.carry_out(commands)?)
    }

    fn submit(&mut self, prepared: PreparedJob) -> Result<String, JobError> {
        self.save(Vec::new())?;
        let now = self.now();
        let (number, commands) = self.state.submit(now, prepared)?;
        if let Err(error) = self.carry_out(commands) {
            let cancelled = self.state.handle(now, Event::Cancel { job: number });
            let _ = self.carry_out(cancelled);
            return Err(error.into());
        }
        Ok(self.state.job_status(now, number).expect("just submitted").id)
    }

    fn host(&self, name: &str) -> Result<HostStatus, JobError> {
        let hosts = self.cluster().hosts;
        hosts.into_iter().find(|host| host.name == name).ok_or_else(|| JobError::NoHost { name: name.to_string() })
    }

    /// Writes changes, and those that could not be written before.
    fn save(&mut self, changes: Vec<Change>) -> Result<(), StoreError> {
        self.unsaved.extend(changes);
        if !self.unsaved.is_empty() {
            self.store.apply(&self.unsaved)?;
            self.unsaved.clear();
        }
        Ok(())
    }

    fn cluster(&self) -> ClusterStatus {
        self.state.cluster_status(self.now(), env!("CARGO_PKG_VERSION"))
    }

    fn find(&self, id: &str) -> Result<u64, JobError> {
        self.state.job_number(id).ok_or_else(|| JobError::NotFound { id: id.to_string() })
    }

    fn cancel(&mut self, id: &str) -> Result<(), JobError> {
        let (now, job) = (self.now(), self.find(id)?);
        let status = self.state.job_status(now, job).expect("found by its id");
        if status.phase.is_none() {
            return Err(JobError::Ended { id: id.to_string(), state: format!("{:?}", status.state).to_uppercase() });
        }
        let commands = self.state.handle(now, Event::Cancel { job });
        Ok(self.carry_out(commands)?)
    }

    fn watch(&mut self, job: u64) -> mpsc::UnboundedReceiver<JobEvent> {
        let (watcher, events) = mpsc::unbounded_channel();
        let status = self.state.job_status(self.now(), job).expect("found by its id");
        let phase = status.phase.map(|phase| JobEvent::Phase { phase });
        for event in phase.into_iter().chain(self.tokens.get(&job).into_iter().flatten().cloned()) {
            let _ = watcher.send(event);
        }
        match status.phase {
            None => drop(watcher.send(JobEvent::Finished { status: Box::new(status) })),
            Some(_) => self.watchers.entry(job).or_default().push(watcher),
        }
        events
    }

    /// Keeps what is to be kept, then does the rest, also when the journal fails.
    fn carry_out(&mut self, commands: Vec<Command>) -> Result<(), StoreError> {
        let mut changes = Vec::new();
        let mut others = Vec::with_capacity(commands.len());
        for command in commands {
            match command {
                Command::Persist(change) => changes.push(change),
                other => others.push(other),
            }
        }
        let saved = self.save(changes);
        others.into_iter().for_each(|command| self.act(command));
        saved
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
        }
    }

    fn publish(&mut self, job: u64, event: JobEvent) {
        let ended = matches!(event, JobEvent::Finished { .. });
        if let JobEvent::Token { .. } = &event {
            self.tokens.entry(job).or_default().push(event.clone());
        }
        if let Some(watchers) = self.watchers.get_mut(&job) {
            watchers.retain(|watcher| watcher.send(event.clone()).is_ok());
        }
        if ended {
            self.watchers.remove(&job);
            self.tokens.remove(&job);
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        self.transport.close();
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
    let peer = link.peer_address().to_string();
    let Ok(channel) = link.accept().await else { return };
    let (outbox, mut inbox) = link::control::<HostCommand>(channel, peer);
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
