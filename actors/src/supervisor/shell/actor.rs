//! The supervisor as the rest of the process talks to it: requests in, answers and events out. Decides nothing.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use asterism_models::WeightsDigest;
use asterism_plan::MethodConfig;
use asterism_transport::Transport;
use ractor::{Actor, ActorRef, ActorStatus};
use tokio::time::timeout;

use crate::{
    api::{
        AppendRequest, ClusterStatus, HostStatus, JobRequest, JobStatus, Prompt, Reuse, Scheduling, SessionRequest,
        SessionStatus, Waiting, bounds,
    },
    capacity::{Holder, SharedCapacity},
    cluster_event::EventId,
    error::{HostError, JobError},
    machine,
    messages::Settings,
    store::{Entry, StateStore},
    supervisor::{
        command::SupervisorEvent,
        config::{ContextHosts, SupervisorConfig},
        fingerprint::{Fingerprint, random},
        journal::change::Decided,
        prepare::ModelFront,
        shell::{
            admission_gate::AdmissionGate,
            event_loop::{SupervisorActor, SupervisorMessage, SupervisorShell},
            events::EventListener,
            feed::Listener,
            watchdog::Watchdog,
            write_queue::{ChangeScope, Request, Subject},
            writer::EntriesCallback,
        },
        state::SupervisorState,
        tables::{
            job::{PreparedJob, Source},
            prepared::asked_session::AskedSession,
        },
    },
};

/// Longest wait for hosts and nodes that were told to end.
const FAREWELL: Duration = Duration::from_secs(2);
/// Times that a question is prepared whose session has grown meanwhile.
const REPLACED: usize = 8;
/// Requests that are tokenised and planned at once: of one key two, so that one of another is always taken.
const PREPARED_AT_ONCE: usize = 3;
/// A longer text is prepared on a thread that others go before.
const SHORT_BYTES: usize = 64 << 10;
/// Longest wait for that.
const PREPARED_WITHIN: Duration = Duration::from_secs(20);

/// Whose request it is.
fn holder(request: &JobRequest) -> Holder {
    request.labels.get(bounds::KEY).map(|key| key.as_str().into())
}

/// A running supervisor; clones talk to the same one.
#[derive(Clone)]
pub struct Supervisor {
    actor: ActorRef<SupervisorMessage>,
    served: Arc<RwLock<Served>>,
    method: MethodConfig,
    writing: Arc<AtomicBool>,
    preparing: SharedCapacity,
    watchdog: Arc<Watchdog>,
    admission_gate: AdmissionGate,
}

/// The models that requests may name, the first of which is that of those that name none.
struct Served {
    models: Vec<Arc<ModelFront>>,
    /// What jobs of each are planned for, by its label.
    hosts: BTreeMap<String, ContextHosts>,
}

/// A model, and what jobs of it are planned for.
type Front = (Arc<ModelFront>, ContextHosts);

impl Served {
    /// The model of a label.
    fn of(&self, label: &str) -> Option<Front> {
        let model = self.models.iter().find(|model| model.label == label)?;
        Some((model.clone(), *self.hosts.get(label)?))
    }

    fn named(&self, name: Option<&str>) -> Option<&Arc<ModelFront>> {
        match name {
            Some(name) => self.models.iter().find(|model| model.name == name),
            None => self.models.first(),
        }
    }
}

impl Supervisor {
    /// Starts a supervisor that listens on `transport`, with the jobs and sessions that `store` has. `models` are those of the
    /// configuration, in its order.
    pub async fn start(
        config: SupervisorConfig,
        models: Vec<Arc<ModelFront>>,
        transport: Arc<dyn Transport>,
        store: Box<dyn StateStore>,
    ) -> Result<Self, HostError> {
        let method = config.method.clone();
        let shell = SupervisorShell::restore(config, transport, store)?;
        let served = Arc::new(RwLock::new(Served { models, hosts: shell.state().context_hosts() }));
        let (writing, watchdog) = (shell.writing(), shell.watchdog());
        let (actor, _) = Actor::spawn(None, SupervisorActor, shell)
            .await
            .map_err(|error| HostError::Actor { cause: error.to_string() })?;
        let preparing = SharedCapacity::new(PREPARED_AT_ONCE);
        Ok(Self { actor, served, method, writing, preparing, watchdog, admission_gate: AdmissionGate::default() })
    }

    /// Whether it waits for the disk of its journal right now, and answers when that is done.
    pub fn waits_for_disk(&self) -> bool {
        self.writing.load(Ordering::Relaxed)
    }

    /// For how long its actor has done nothing, or one thing, if that is too long. Asks the actor nothing, so that a queue
    /// before it is no silence.
    pub fn silence(&self) -> Option<Duration> {
        self.watchdog.silence()
    }

    /// Says that this process has waited for memory or a disk: silence of hosts may have been its own.
    pub fn was_starved(&self) {
        let _ = self.actor.cast(SupervisorMessage::Event(SupervisorEvent::Starved));
    }

    /// From now on the cluster is configured like this, with these models in its order, and its hosts and nodes do what `settings` say.
    ///
    /// # Errors
    /// When the supervisor is shutting down, or busy.
    pub async fn reconfigure(
        &self,
        (config, models): (SupervisorConfig, Vec<Arc<ModelFront>>),
        settings: Settings,
    ) -> Result<(), JobError> {
        let hosts = self.ask(move |shell| shell.reconfigure(config, settings)).await?;
        *self.served.write().unwrap_or_else(PoisonError::into_inner) = Served { models, hosts };
        Ok(())
    }

    /// The model of this name, or the first, and what jobs of it are planned for now.
    fn front(&self, name: Option<&str>) -> Result<Front, JobError> {
        let model = self.model_named(name)?;
        let hosts = self.served.read().unwrap_or_else(PoisonError::into_inner).hosts.get(&model.label).copied();
        hosts.map(|hosts| (model, hosts)).ok_or(JobError::Busy)
    }

    /// The model of a session, which is the one that a request names if it names one.
    fn front_of(&self, session: &AskedSession, asked: Option<&str>) -> Result<Front, JobError> {
        let front = self.served.read().unwrap_or_else(PoisonError::into_inner).of(session.model());
        let Some(front) = front else { return Err(self.no_model(session.model())) };
        match asked.filter(|asked| *asked != front.0.name) {
            Some(asked) => Err(JobError::Invalid {
                param: "model",
                message: format!(
                    "the session was encoded by model '{}', and '{}' is asked for; leave model out, or ask a session of that",
                    front.0.name,
                    bounds::shown(asked)
                ),
            }),
            None => Ok(front),
        }
    }

    fn no_model(&self, asked: &str) -> JobError {
        let known = self.models().iter().map(|model| format!("'{}'", model.name)).collect();
        JobError::NoModel { asked: bounds::shown(asked), known }
    }

    /// Says what the weights of the supervisor's own model of a label hash to, or why that cannot be told. No host of it is ready
    /// before it is.
    pub fn weights_are(&self, model: &str, weights: Result<WeightsDigest, String>) {
        let event = SupervisorEvent::Weights { model: model.to_owned(), weights };
        let _ = self.actor.cast(SupervisorMessage::Event(event));
    }

    /// Whether its actor is gone.
    pub fn has_ended(&self) -> bool {
        self.actor.get_status() == ActorStatus::Stopped
    }

    /// What decides whether it takes new work.
    pub fn admission_gate(&self) -> &AdmissionGate {
        &self.admission_gate
    }

    /// The model of requests that name none, as the supervisor knows it.
    pub fn model(&self) -> Arc<ModelFront> {
        self.served.read().unwrap_or_else(PoisonError::into_inner).models[0].clone()
    }

    /// All models, in the order of the cluster file.
    pub fn models(&self) -> Vec<Arc<ModelFront>> {
        self.served.read().unwrap_or_else(PoisonError::into_inner).models.clone()
    }

    /// The model of a name, or the first.
    ///
    /// # Errors
    /// [`JobError::NoModel`] with those there are.
    pub fn model_named(&self, name: Option<&str>) -> Result<Arc<ModelFront>, JobError> {
        let found = self.served.read().unwrap_or_else(PoisonError::into_inner).named(name).cloned();
        found.ok_or_else(|| self.no_model(name.unwrap_or_default()))
    }

    /// Tokenises, plans and queues a job; returns its id. The same request with the same id is the same job.
    pub async fn submit(&self, request: JobRequest) -> Result<String, JobError> {
        self.admission_gate.check()?;
        self.take(request, false).await
    }

    /// The same for the cluster's own test, which decides on admission.
    pub async fn submit_canary(&self, request: JobRequest) -> Result<String, JobError> {
        self.take(request, true).await
    }

    /// Has what was accepted before, and is not one of the cluster's own test, wait from now on, or go on.
    pub fn hold_back(&self, held: bool) {
        // One that has ended holds nothing.
        let _ = self.actor.cast(SupervisorMessage::Ask(Box::new(move |shell| shell.hold_back(held))));
    }

    async fn take(&self, mut request: JobRequest, canary: bool) -> Result<String, JobError> {
        let holder = holder(&request);
        let (id, fingerprint) = match request.id.take() {
            Some(id) => {
                let id = bounds::client_id(&id)?;
                let (print, back) =
                    self.prepared((&holder, request.bytes()), move || Ok((Fingerprint::of(&request), request))).await?;
                request = back;
                let asked = id.clone();
                if self.ask(move |shell| shell.state().repeated(&asked, Some(print))).await??.is_some() {
                    return Ok(id);
                }
                (id, Some(print))
            }
            None => (bounds::drawn_id(random()), None),
        };
        if let Some(session) = &request.session {
            bounds::name("session", session)?;
        }
        let Some(name) = request.session.clone() else {
            return self.enqueue_reusable((request, canary), (id, fingerprint)).await;
        };
        let mut tries = REPLACED;
        loop {
            let asked = name.clone();
            let session = self.ask(move |shell| shell.state().asked_session(&asked)).await??;
            tries -= 1;
            match self.enqueue((request.clone(), canary), (id.clone(), fingerprint), Some(session)).await {
                Err(JobError::SessionReplaced { .. }) if tries > 0 => {}
                answer => return answer,
            }
        }
    }

    /// A job about a context of its own. One that may come again is encoded on one host where the method is exact: where none has the
    /// room for that, it is encoded for this question alone.
    async fn enqueue_reusable(
        &self,
        (request, canary): (JobRequest, bool),
        (id, fingerprint): (String, Option<Fingerprint>),
    ) -> Result<String, JobError> {
        if request.reuse != Reuse::Likely {
            return self.enqueue((request, canary), (id, fingerprint), None).await;
        }
        let once = JobRequest { reuse: Reuse::None, ..request.clone() };
        match self.enqueue((request, canary), (id.clone(), fingerprint), None).await {
            Err(JobError::Placement(_)) => self.enqueue((once, canary), (id, fingerprint), None).await,
            answer => answer,
        }
    }

    async fn enqueue(
        &self,
        (request, canary): (JobRequest, bool),
        (id, fingerprint): (String, Option<Fingerprint>),
        session: Option<AskedSession>,
    ) -> Result<String, JobError> {
        let asked = request.model.as_deref();
        let (model, hosts) = match &session {
            Some(session) => self.front_of(session, asked)?,
            None => self.front(asked)?,
        };
        let method = self.method.clone();
        let template_date = Some(model.date(request.template_date, machine::unix_time()));
        let (key, request) = (holder(&request), JobRequest { template_date, ..request });
        let asked = (&key, request.bytes());
        let prepared = self.prepared(asked, move || model.prepare(request, &method, &hosts, session.as_ref())).await?;
        let mut prepared = PreparedJob { id: id.clone(), fingerprint, ..prepared };
        prepared.question.canary = canary;
        if let (true, Source::Context(context)) = (canary, &mut prepared.source) {
            // What is tried is computed: a canary before it would answer with what it left.
            context.identities = Arc::default();
        }
        let asks = match &prepared.source {
            Source::Session(name) => Some(Subject::Session(name.clone())),
            Source::Context(_) => None,
        };
        let scope =
            ChangeScope { asks, bytes: prepared.bytes(), key, ..ChangeScope::of(vec![Subject::Job(id.clone())]) };
        let decide = move |state: &mut SupervisorState, now| {
            let number = state.number();
            state.submit(now, number, prepared).map(|(_, decided)| decided)
        };
        self.change(scope, decide, |_, _| Ok(id)).await
    }

    /// Does what takes long on a thread of its own, few at a time.
    async fn prepared<T: Send + 'static>(
        &self,
        (holder, bytes): (&Holder, usize),
        work: impl FnOnce() -> Result<T, JobError> + Send + 'static,
    ) -> Result<T, JobError> {
        let place = timeout(PREPARED_WITHIN, self.preparing.take(holder, 1)).await.map_err(|_| JobError::Busy)?;
        // Its place goes with the work, whether anybody waits for it or not.
        let work = move || {
            let _place = place;
            work()
        };
        let done = if bytes > SHORT_BYTES { machine::spawn_behind(work) } else { machine::spawn(work) };
        done.await.map_err(|panic| JobError::Internal { cause: panic.to_string() })?
    }

    /// Everything that happens to a job from now on, after what it has said so far; ends with `Finished`.
    pub async fn watch(&self, id: &str) -> Result<Listener, JobError> {
        let id = bounds::name("id", id)?;
        self.ask(move |shell| shell.find(&id).and_then(|number| shell.watch(number))).await?
    }

    /// Everything that happens in the cluster behind an event, or from the oldest that is kept; without end.
    pub async fn events(&self, after: Option<EventId>) -> Result<EventListener, JobError> {
        self.ask(move |shell| shell.events(after)).await?
    }

    /// A job's status.
    pub async fn status(&self, id: &str) -> Result<JobStatus, JobError> {
        let id = bounds::name("id", id)?;
        self.ask(move |shell| {
            let number = shell.find(&id)?;
            Ok(shell.state().job_status(shell.now(), number).expect("found by its id"))
        })
        .await?
    }

    /// What a job waits for, while nobody works on it.
    pub async fn waiting(&self, id: &str) -> Result<Option<Waiting>, JobError> {
        let id = bounds::name("id", id)?;
        self.ask(move |shell| shell.find(&id).map(|number| shell.state().waits_for(shell.now(), number))).await?
    }

    /// Cancels a job that has not ended.
    pub async fn cancel(&self, id: &str) -> Result<(), JobError> {
        let id = bounds::name("id", id)?;
        let scope = ChangeScope::of(vec![Subject::Job(id.clone())]);
        self.change(scope, move |state, now| state.cancel(now, &id), |_, _| Ok(())).await
    }

    /// The cluster.
    pub async fn cluster(&self) -> Result<ClusterStatus, JobError> {
        self.ask(|shell| shell.cluster()).await
    }

    /// Encodes a context to be asked many times.
    pub async fn create_session(&self, request: SessionRequest) -> Result<SessionStatus, JobError> {
        self.admission_gate.check()?;
        let ((model, hosts), method) = (self.front(request.model.as_deref())?, self.method.clone());
        let (name, ttl) = (request.name.clone(), request.ttl_s);
        let name = bounds::name("name", &name)?;
        let ttl = ttl.map(|ttl| bounds::seconds("ttl_s", ttl)).transpose()?;
        let template_date = Some(model.date(request.template_date, machine::unix_time()));
        let request = SessionRequest { template_date, ..request };
        let prepared = self
            .prepared((&None, request.context.bytes()), move || model.prepare_session(request, &method, &hosts))
            .await?;
        let changes = vec![Subject::Session(name.clone()), Subject::Room];
        let scope = ChangeScope { bytes: prepared.bytes(), ..ChangeScope::of(changes) };
        let created = name.clone();
        let decide = move |state: &mut SupervisorState, now| {
            let number = state.number();
            state.create_session((now, number), &created, prepared, ttl)
        };
        self.change(scope, decide, move |state, now| state.session_status(now, &name)).await
    }

    /// One session.
    pub async fn session(&self, name: &str) -> Result<SessionStatus, JobError> {
        let name = bounds::name("name", name)?;
        self.ask(move |shell| shell.state().session_status(shell.now(), &name)).await?
    }

    /// Lets a session live so many seconds from now on.
    pub async fn extend_session(&self, name: &str, ttl_s: f64) -> Result<SessionStatus, JobError> {
        let (name, ttl) = (bounds::name("name", name)?, bounds::seconds("ttl_s", ttl_s)?);
        let (scope, extended) = (ChangeScope::of(vec![Subject::Session(name.clone())]), name.clone());
        let decide = move |state: &mut SupervisorState, now| state.extend_session(now, &extended, ttl);
        self.change(scope, decide, move |state, now| state.session_status(now, &name)).await
    }

    /// Appends to a session, for questions that come when that is encoded; until then they see nothing of it.
    pub async fn append_session(&self, name: &str, request: AppendRequest) -> Result<SessionStatus, JobError> {
        self.admission_gate.check()?;
        let name = bounds::name("name", name)?;
        let job = request.job.as_deref().map(|job| bounds::name("job", job)).transpose()?;
        let grown = name.clone();
        let found = self.ask(move |shell| shell.state().grown_session(&grown, job.as_deref())).await?;
        let (session, asked) = found?;
        let ((model, hosts), base) = (self.front_of(&session, None)?, session.context);
        let bytes = request.context.as_ref().map_or(0, Prompt::bytes);
        let prepared =
            self.prepared((&None, bytes), move || model.prepare_append(request, (&session, asked), &hosts)).await?;
        let changes = vec![Subject::Session(name.clone()), Subject::Room];
        let scope = ChangeScope { bytes: prepared.bytes(), ..ChangeScope::of(changes) };
        let grown = name.clone();
        let decide = move |state: &mut SupervisorState, now| {
            let number = state.number();
            state.append_session((now, number), (&grown, base), prepared)
        };
        self.change(scope, decide, move |state, now| state.session_status(now, &name)).await
    }

    /// Ends a session and frees its keys and values.
    pub async fn drop_session(&self, name: &str) -> Result<(), JobError> {
        let name = bounds::name("name", name)?;
        let scope = ChangeScope::of(vec![Subject::Session(name.clone())]);
        self.change(scope, move |state, now| state.drop_session(now, &name), |_, _| Ok(())).await
    }

    /// One host.
    pub async fn host(&self, name: &str) -> Result<HostStatus, JobError> {
        let name = bounds::name("name", name)?;
        self.ask(move |shell| shell.state().host_named(shell.now(), &name)).await?
    }

    /// Has a host take new work, or none, or moves what it has to others after `deadline`.
    pub async fn schedule_host(
        &self,
        name: &str,
        scheduling: Scheduling,
        deadline: Option<Duration>,
    ) -> Result<HostStatus, JobError> {
        let name = bounds::name("name", name)?;
        let scheduled = name.clone();
        let decide = move |state: &mut SupervisorState, now| state.schedule_host(now, &scheduled, scheduling, deadline);
        self.change(ChangeScope::of(vec![Subject::Hosts]), decide, move |state, now| state.host_named(now, &name)).await
    }

    /// Has a host give its work away, for `deadline` at most, end, and be started again by its node; starts one that is not there.
    pub async fn restart_host(&self, name: &str, deadline: Duration) -> Result<HostStatus, JobError> {
        let name = bounds::name("name", name)?;
        let restarted = name.clone();
        let decide = move |state: &mut SupervisorState, now| state.restart_host(now, &restarted, deadline);
        self.change(ChangeScope::of(vec![Subject::Hosts]), decide, move |state, now| state.host_named(now, &name)).await
    }

    /// What its journal has, as it is between two changes.
    ///
    /// # Errors
    /// When it cannot be read, or several others are reading it.
    pub async fn journal_entries(&self) -> Result<Vec<Entry>, JobError> {
        let (answer, answered) = tokio::sync::oneshot::channel();
        let heard: EntriesCallback = Box::new(move |entries| drop(answer.send(entries)));
        if !self.ask(move |shell| shell.read_journal(heard)).await? {
            return Err(JobError::Busy);
        }
        let entries = answered.await.map_err(|_| JobError::Stopping)?;
        entries.map_err(|error| JobError::Internal { cause: error.to_string() })
    }

    /// Gives the place of a host that is dead or takes no work to a spare.
    pub async fn replace_host(&self, dead: &str, spare: &str) -> Result<HostStatus, JobError> {
        let (dead, spare) = (bounds::name("name", dead)?, bounds::name("spare", spare)?);
        let migration_target = spare.clone();
        let decide = move |state: &mut SupervisorState, now| state.replace_host(now, &dead, &migration_target);
        self.change(ChangeScope::of(vec![Subject::Hosts]), decide, move |state, now| state.host_named(now, &spare))
            .await
    }

    /// Ends in order and leaves hosts and nodes as they are: they hold what they have, and look for the supervisor that comes
    /// after this one.
    pub async fn stop(&self) {
        self.flush().await;
        let _ = self.actor.stop_and_wait(None, None).await;
    }

    /// Tells every host to end, and ends.
    pub async fn shutdown(&self) {
        // Who hears the close before the order would wait for a supervisor that does not come back.
        if let Ok(links) = self.ask_anyway(|shell| shell.end_hosts()).await {
            let ended = async {
                for link in links {
                    link.closed().await;
                }
            };
            let _ = timeout(FAREWELL, ended).await;
        }
        self.stop().await;
    }

    /// Waits until the journal has what it can have.
    async fn flush(&self) {
        let (flushed, flushing) = tokio::sync::oneshot::channel();
        if self.actor.cast(SupervisorMessage::Ask(Box::new(move |shell| shell.flush(flushed)))).is_ok() {
            let _ = flushing.await;
        }
    }

    /// Ends at once, as a process that is killed: nothing is said or kept any more. Whoever calls this closes the transport.
    pub fn kill(&self) {
        self.actor.kill();
    }

    /// Has a change decided, kept and brought into force.
    async fn change<T: Send + 'static>(
        &self,
        scope: ChangeScope,
        decide: impl FnOnce(&mut SupervisorState, Duration) -> Result<Decided, JobError> + Send + 'static,
        then: impl FnOnce(&SupervisorState, Duration) -> Result<T, JobError> + Send + 'static,
    ) -> Result<T, JobError> {
        let (answer, answered) = tokio::sync::oneshot::channel();
        let heard = move |result: Result<(&SupervisorState, Duration), JobError>| {
            let _ = answer.send(result.and_then(|(state, now)| then(state, now)));
        };
        let request = Request { scope, decide: Box::new(decide), answer: Box::new(heard) };
        self.actor.cast(SupervisorMessage::Change(request)).map_err(|_| JobError::Stopping)?;
        answered.await.map_err(|_| JobError::Stopping)?
    }

    /// Asks, unless many others wait for what their answers rest on.
    pub(in crate::supervisor) async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut SupervisorShell) -> T + Send + 'static,
    ) -> Result<T, JobError> {
        let question = move |shell: &mut SupervisorShell| (!shell.is_crowded()).then(|| question(shell));
        self.ask_anyway(question).await?.ok_or(JobError::Busy)
    }

    async fn ask_anyway<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut SupervisorShell) -> T + Send + 'static,
    ) -> Result<T, JobError> {
        let (answer, answered) = tokio::sync::oneshot::channel();
        let message = SupervisorMessage::Ask(Box::new(move |shell| {
            let found = question(shell);
            shell.notify(move || drop(answer.send(found)));
        }));
        self.actor.cast(message).map_err(|_| JobError::Stopping)?;
        answered.await.map_err(|_| JobError::Stopping)
    }
}
