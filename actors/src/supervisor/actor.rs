//! The supervisor's shell: a ractor actor that feeds events to the state and carries its commands out.

use std::{collections::HashMap, sync::Arc, time::Instant};

use asterism_plan::MethodConfig;
use asterism_transport::{Link, Transport};
use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort, SupervisionEvent};
use tokio::sync::mpsc;

use crate::{
    api::{ClusterStatus, JobEvent, JobRequest, JobStatus},
    error::{HostError, JobError},
    link::{self, Outbox},
    messages::HostCommand,
    metric,
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
    Submit(Box<PreparedJob>, RpcReplyPort<Result<String, JobError>>),
    Watch(String, RpcReplyPort<Result<mpsc::UnboundedReceiver<JobEvent>, JobError>>),
    Status(String, RpcReplyPort<Result<JobStatus, JobError>>),
    Jobs(RpcReplyPort<Vec<JobStatus>>),
    Cancel(String, RpcReplyPort<Result<(), JobError>>),
    Cluster(RpcReplyPort<ClusterStatus>),
    Shutdown(RpcReplyPort<()>),
}

impl Supervisor {
    /// Starts a supervisor that listens on `transport`.
    pub async fn start(
        config: SupervisorConfig,
        model: Arc<ModelFront>,
        transport: Arc<dyn Transport>,
    ) -> Result<Self, HostError> {
        let method = config.method.clone();
        let context_hosts = config.context_hosts();
        let (actor, _) = Actor::spawn(None, SupervisorActor, (config, transport))
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
        let (model, method, hosts) = (self.model.clone(), self.method.clone(), self.context_hosts);
        let prepared = tokio::task::spawn_blocking(move || model.prepare(request, &method, &hosts))
            .await
            .map_err(|_| JobError::Stopping)??;
        self.ask(|reply| Message::Submit(Box::new(prepared), reply)).await?
    }

    /// Everything that happens to a job from now on, after what it has said so far; ends with `Finished`.
    pub async fn watch(&self, id: &str) -> Result<mpsc::UnboundedReceiver<JobEvent>, JobError> {
        self.ask(|reply| Message::Watch(id.to_string(), reply)).await?
    }

    /// A job's status.
    pub async fn status(&self, id: &str) -> Result<JobStatus, JobError> {
        self.ask(|reply| Message::Status(id.to_string(), reply)).await?
    }

    /// Every job, oldest first.
    pub async fn jobs(&self) -> Result<Vec<JobStatus>, JobError> {
        self.ask(Message::Jobs).await
    }

    /// Cancels a job that has not ended.
    pub async fn cancel(&self, id: &str) -> Result<(), JobError> {
        self.ask(|reply| Message::Cancel(id.to_string(), reply)).await?
    }

    /// The cluster.
    pub async fn cluster(&self) -> Result<ClusterStatus, JobError> {
        self.ask(Message::Cluster).await
    }

    /// Tells that a host process ended, by whoever started it: sooner than any heartbeat can.
    pub fn host_exited(&self, host: &str, cause: &str) {
        let event = Event::Exited { host: host.to_string(), cause: cause.to_string() };
        let _ = self.actor.cast(Message::Event(event));
    }

    /// Tells every host to end, and ends.
    pub async fn shutdown(&self) {
        let _ = self.ask(Message::Shutdown).await;
        let _ = self.actor.stop_and_wait(None, None).await;
    }

    async fn ask<T: Send + 'static>(&self, message: impl FnOnce(RpcReplyPort<T>) -> Message) -> Result<T, JobError> {
        match self.actor.call(message, None).await {
            Ok(ractor::rpc::CallResult::Success(answer)) => Ok(answer),
            _ => Err(JobError::Stopping),
        }
    }
}

struct SupervisorActor;

struct Shell {
    state: SupervisorState,
    started: Instant,
    transport: Arc<dyn Transport>,
    connections: HashMap<u64, (Arc<dyn Link>, Outbox<HostCommand>)>,
    watchers: HashMap<u64, Vec<mpsc::UnboundedSender<JobEvent>>>,
    /// Tokens of each job that has not ended, for watchers that come late.
    tokens: HashMap<u64, Vec<JobEvent>>,
}

impl Actor for SupervisorActor {
    type Msg = Message;
    type State = Shell;
    type Arguments = (SupervisorConfig, Arc<dyn Transport>);

    async fn pre_start(
        &self,
        myself: ActorRef<Message>,
        (config, transport): Self::Arguments,
    ) -> Result<Shell, ActorProcessingErr> {
        tokio::spawn(accept_hosts(transport.clone(), myself.clone()));
        myself.send_interval(config.heartbeat / 2, || Message::Event(Event::Tick));
        Ok(Shell {
            state: SupervisorState::new(config),
            started: Instant::now(),
            transport,
            connections: HashMap::new(),
            watchers: HashMap::new(),
            tokens: HashMap::new(),
        })
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
    fn handle(&mut self, message: Message) {
        let now = self.started.elapsed();
        match message {
            Message::Connected { connection, link, outbox } => {
                self.connections.insert(connection, (link, outbox));
            }
            Message::Event(event) => {
                if let Event::Disconnected { connection, .. } = &event {
                    self.connections.remove(connection);
                }
                let ticked = matches!(event, Event::Tick);
                let commands = self.state.handle(now, event);
                self.carry_out(commands);
                if ticked {
                    metric::record_cluster(&self.cluster());
                }
            }
            Message::Submit(prepared, reply) => {
                let submitted = self.state.submit(now, *prepared).map(|(number, commands)| {
                    self.carry_out(commands);
                    self.state.job_status(now, number).expect("just submitted").id
                });
                let _ = reply.send(submitted);
            }
            Message::Watch(id, reply) => {
                let _ = reply.send(self.find(&id).map(|number| self.watch(number)));
            }
            Message::Status(id, reply) => {
                let status = |number| self.state.job_status(now, number).expect("found by its id");
                let _ = reply.send(self.find(&id).map(status));
            }
            Message::Jobs(reply) => {
                let _ = reply.send(self.state.job_statuses(now));
            }
            Message::Cancel(id, reply) => {
                let _ = reply.send(self.cancel(&id));
            }
            Message::Cluster(reply) => {
                let _ = reply.send(self.cluster());
            }
            Message::Shutdown(reply) => {
                for (_, outbox) in self.connections.values() {
                    outbox.send(HostCommand::Shutdown);
                }
                let _ = reply.send(());
            }
        }
    }

    fn cluster(&self) -> ClusterStatus {
        self.state.cluster_status(self.started.elapsed(), env!("CARGO_PKG_VERSION"))
    }

    fn find(&self, id: &str) -> Result<u64, JobError> {
        self.state.job_number(id).ok_or_else(|| JobError::NotFound { id: id.to_string() })
    }

    fn cancel(&mut self, id: &str) -> Result<(), JobError> {
        let (now, job) = (self.started.elapsed(), self.find(id)?);
        let status = self.state.job_status(now, job).expect("found by its id");
        if status.phase.is_none() {
            return Err(JobError::Ended { id: id.to_string(), state: format!("{:?}", status.state).to_uppercase() });
        }
        let commands = self.state.handle(now, Event::Cancel { job });
        self.carry_out(commands);
        Ok(())
    }

    fn watch(&mut self, job: u64) -> mpsc::UnboundedReceiver<JobEvent> {
        let (watcher, events) = mpsc::unbounded_channel();
        let status = self.state.job_status(self.started.elapsed(), job).expect("found by its id");
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

    fn carry_out(&mut self, commands: Vec<Command>) {
        for command in commands {
            match command {
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
