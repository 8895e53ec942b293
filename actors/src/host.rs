//! A host process: joins the supervisor, loads the model, does what it is told, and comes back to a supervisor it lost.

mod actor;
pub(crate) mod joining;
mod process;

use std::{sync::Arc, time::Duration};

use asterism_kernels::{Backend, KernelError};
use asterism_models::{Decoder, HeadsFiles, ModelDigest, ModelError, Tokenizer};
use asterism_transport::{DataPlane, Endpoint, PlacePort, Transport};
use ractor::ActorRef;
use tokio::{
    sync::{oneshot, watch},
    task::JoinHandle,
    time::Instant,
};

use crate::{
    context_host::PIECE_BYTES,
    cores::Cores,
    error::HostError,
    machine,
    messages::{Hello, HostCommand, HostMessage, HostRole},
    tally::Tally,
};
use actor::HostActorMessage;
use joining::{Backoff, Joined};

/// How long a host works on without its supervisor, unless told otherwise. It ends with the agent that started it anyway; and one that
/// starts the supervisor again may take minutes where the machine is short of memory.
pub const SUPERVISOR_TIMEOUT: Duration = Duration::from_secs(600);

/// How long a host that is asked to end may take to give its work away, unless told otherwise.
pub const LEAVE_GRACE: Duration = Duration::from_secs(8);

/// Longest wait for the actor to end.
const STOP_DEADLINE: Duration = Duration::from_secs(2);

/// Who a process is and where its supervisor listens.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// Name, as the cluster file has it: the host's, or the node's.
    pub name: String,
    /// What it is started as.
    pub role: HostRole,
    /// Whether it encodes shards and answers queries over them.
    pub encodes: bool,
    /// Whether it generates; the model it loads needs its head then.
    pub generates: bool,
    /// Where the supervisor listens.
    pub supervisor: PlacePort,
    /// The node's number of this process: larger at each start of this host.
    pub start: u64,
    /// How long a host that lost its supervisor works on and tries to reach it.
    pub patience: Duration,
    /// Most bytes of what shards pass each other in one frame.
    pub piece_bytes: usize,
    /// What it hands hosts of its process as it lies on its device; none: as suits that.
    pub hands_over: Option<DeviceHandover>,
    /// What goes together through the layers.
    pub batching: Batching,
    /// What its process counts; none where another host of the process tells it.
    pub tally: Option<Arc<Tally>>,
    /// Becomes true when its process is asked to end: it then gives its work away first. None: nobody asks.
    pub leave: Option<watch::Receiver<bool>>,
    /// How long that may take.
    pub grace: Duration,
}

/// How a host ended that did what it was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostEnd {
    /// Its supervisor told it to end, and wants no other process in its place.
    Ended,
    /// It was asked to end, has given its work away as far as there was time, and is to be started again.
    Left,
}

impl HostConfig {
    /// What the role needs: a context host encodes, a query host generates, a spare does both.
    pub fn new(name: &str, role: HostRole, supervisor: impl Into<PlacePort>, start: u64) -> Self {
        let (encodes, generates) = match role {
            HostRole::Context => (true, false),
            HostRole::Query => (false, true),
            HostRole::Spare => (true, true),
            HostRole::Node => (false, false),
        };
        let (name, patience, piece_bytes, tally) = (name.into(), SUPERVISOR_TIMEOUT, PIECE_BYTES, Some(Arc::default()));
        let (hands_over, batching, leave, grace) = (None, Batching::default(), None, LEAVE_GRACE);
        Self {
            name,
            role,
            encodes,
            generates,
            supervisor: supervisor.into(),
            start,
            patience,
            piece_bytes,
            hands_over,
            batching,
            tally,
            leave,
            grace,
        }
    }

    pub(crate) fn hello(&self, endpoints: Vec<Endpoint>) -> Hello {
        Hello {
            name: self.name.clone(),
            role: self.role,
            start: self.start,
            pid: std::process::id(),
            endpoints,
            ..Hello::default()
        }
    }
}

/// What goes together through the layers of a host; what is not said is as suits its device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Batching {
    /// How long a step of what it generates may take.
    pub token_interval: Option<Duration>,
    /// Rows of short contexts that are encoded together, at most; 0: each alone.
    pub pack_rows: Option<usize>,
}

impl Batching {
    /// How long a step may take on a device.
    pub(crate) fn interval<B: Backend>(self, backend: &B) -> Duration {
        self.token_interval.unwrap_or(if backend.queues() { STEP_OF_QUEUE } else { STEP_OF_CPU })
    }

    /// Rows that are encoded together on a device, which may like fewer at once.
    pub(crate) fn rows<B: Backend>(self, backend: &B) -> usize {
        self.pack_rows.unwrap_or(backend.linear_rows().min(MOST_PACKED_ROWS))
    }
}

/// How long a step takes on CPUs, where rows cost the most of it, and on devices that work off a queue.
const STEP_OF_CPU: Duration = Duration::from_millis(25);
const STEP_OF_QUEUE: Duration = Duration::from_millis(50);
/// More rows together would make a work that is not short.
const MOST_PACKED_ROWS: usize = 2048;

/// Which tensors go to a host of the same process as they lie on their device, where the link can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceHandover {
    /// None: their bytes do.
    Nothing,
    /// What shards pass each other.
    Parcels,
    /// The queries of phase 2 and their answers, too.
    Everything,
}

impl DeviceHandover {
    /// What suits a device: values of one that queues its work have to be waited for.
    pub(crate) fn of<B: Backend>(backend: &B) -> Self {
        if backend.queues() { Self::Everything } else { Self::Parcels }
    }
}

/// How often a device that is full is asked again, and how long after: a context that does not fit leaves it soon.
pub(crate) const CROWDED: usize = 40;
pub(crate) const ROOM_AFTER: Duration = Duration::from_millis(100);
/// How often a host looks whether its device still computes.
const CHECKED: Duration = Duration::from_secs(1);

/// What a host process talks through.
#[derive(Clone)]
pub struct Transports {
    /// To the supervisor.
    pub control: Arc<dyn Transport>,
    /// To other hosts.
    pub data: Arc<DataPlane>,
}

impl Transports {
    /// One for all.
    pub fn one(transport: Arc<dyn Transport>) -> Self {
        Self { data: DataPlane::of(transport.clone()), control: transport }
    }

    async fn close(&self) {
        self.data.close();
        self.control.close();
        self.data.drained().await;
        self.control.drained().await;
    }
}

/// A loaded model: the layers a role needs, and the tokenizer.
pub struct LoadedModel<B: Backend> {
    /// The decoder.
    pub decoder: Arc<Decoder<B>>,
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// Which model it is.
    pub digest: ModelDigest,
    /// Where this host finds retaining heads, by the names that orders use.
    pub heads: HeadsFiles,
    /// What it computes with.
    pub cores: Arc<dyn Cores>,
}

/// Loads a model; runs on a thread of its own after the host has joined.
pub type ModelLoader<B> = Box<dyn FnOnce() -> Result<LoadedModel<B>, ModelError> + Send>;

/// Where a side of the host reports what happens; may be called from any thread.
pub(crate) type ReportSink<E> = Arc<dyn Fn(E) + Send + Sync>;

/// Runs a host until its supervisor ends it, refuses it, or is gone for longer than the host's patience. Dropping the future
/// ends the host as well, as if its process were killed; what it says until then is for whoever closes the transports.
///
/// # Errors
/// [`HostError::Supervisor`] when the supervisor cannot be reached at the start, [`HostError::Refused`] when it does not
/// want this host, [`HostError::Model`] when the model does not load,
/// [`HostError::OtherModel`] when it is not the supervisor's, [`HostError::Lost`] when patience ends.
pub async fn run<B: Backend>(
    config: HostConfig,
    transports: Transports,
    loader: ModelLoader<B>,
) -> Result<HostEnd, HostError> {
    let hello = config.hello(transports.data.endpoints());
    let joining = joining::join(hello, &config.supervisor, transports.control.as_ref()).await;
    let first = match joining {
        Ok(joined) => joined,
        Err(error) => {
            // Whoever was refused here is to hear why.
            let _ = tokio::time::timeout(STOP_DEADLINE, transports.close()).await;
            return Err(error);
        }
    };
    let (actor, ended) = actor::spawn(&config, transports.clone()).await?;
    let _running = RunningActor(actor.clone());
    let host =
        Host { config, transports: transports.clone(), actor: actor.clone(), life: (first.cluster, first.incarnation) };
    let result = tokio::select! {
        biased;
        result = host.live(first, loader) => result,
        _ = ended => Err(HostError::Actor { cause: "it ended before its host did".into() }),
    };
    let _ = actor.stop_and_wait(None, Some(STOP_DEADLINE)).await;
    transports.close().await;
    result
}

/// An actor that ends with whoever runs it.
struct RunningActor<B: Backend>(ActorRef<HostActorMessage<B>>);

impl<B: Backend> Drop for RunningActor<B> {
    fn drop(&mut self) {
        self.0.kill();
    }
}

struct Host<B: Backend> {
    config: HostConfig,
    transports: Transports,
    actor: ActorRef<HostActorMessage<B>>,
    /// Cluster and incarnation, as the welcome said.
    life: (u64, u64),
}

impl<B: Backend> Host<B> {
    async fn live(self, first: Joined, loader: ModelLoader<B>) -> Result<HostEnd, HostError> {
        let mut joined = first;
        let beats = self.linked(&joined);
        let mut leave = self.config.leave.clone();
        let loaded = tokio::select! {
            biased;
            // What is not ready has nothing to give away.
            () = asked(&mut leave) => return Ok(HostEnd::Left),
            loaded = self.load(&mut joined, loader) => loaded,
        };
        let mut model = loaded?;
        let decoder = model.decoder.clone();
        let numerics = decoder.backend().numerics();
        let ready = HostMessage::Ready { numerics, model: Box::new(std::mem::take(&mut model.digest).into()) };
        self.report(HostActorMessage::Loaded(model));
        let host = self.config.name.clone();
        tokio::select! {
            biased;
            cause = failure(|| decoder.backend().health()), if decoder.backend().queues() => Err(HostError::Device { host, cause }),
            result = self.serve(joined, beats, ready) => result,
        }
    }

    async fn serve(
        mut self,
        mut joined: Joined,
        mut beats: JoinHandle<()>,
        ready: HostMessage,
    ) -> Result<HostEnd, HostError> {
        let (mut again, mut leave, mut leaves) = (false, self.config.leave.clone(), None);
        loop {
            joined.outbox.send(ready.clone());
            let cause = loop {
                let received = tokio::select! {
                    received = joined.inbox.receive() => received,
                    () = asked(&mut leave), if leaves.is_none() => {
                        let grace = self.config.grace;
                        tracing::info!(host = %self.config.name, grace_s = grace.as_secs_f64(), "asked to end: gives its work away");
                        joined.outbox.send(HostMessage::Leaving { grace_ms: grace.as_millis() as u64 });
                        leaves = Some(Instant::now() + grace);
                        continue;
                    }
                    () = until(leaves) => {
                        tracing::warn!(host = %self.config.name, "ends with what it could not give away in time");
                        return Ok(HostEnd::Left);
                    }
                };
                match received {
                    Ok(HostCommand::Shutdown) => return Ok(HostEnd::Ended),
                    Ok(HostCommand::Leave) => return Ok(HostEnd::Left),
                    // What it loaded is not the cluster's model any more; a process started now may load another.
                    Ok(HostCommand::Refuse { reason }) if again => {
                        return Err(HostError::Refused { host: self.config.name.clone(), reason });
                    }
                    Ok(HostCommand::Refuse { reason }) => return Err(HostError::OtherModel { reason }),
                    Ok(command) => self.report(HostActorMessage::Command(command)),
                    Err(cause) => break cause,
                }
            };
            beats.abort();
            self.report(HostActorMessage::Unlinked);
            if leaves.is_some() {
                tracing::warn!(host = %self.config.name, %cause, "ends: there is nobody who could give its work to others");
                return Ok(HostEnd::Left);
            }
            tracing::warn!(host = %self.config.name, %cause, "the supervisor is lost; work goes on");
            joined = tokio::select! {
                biased;
                () = asked(&mut leave) => return Ok(HostEnd::Left),
                joined = self.rejoin(cause.to_string()) => joined?,
            };
            again = true;
            self.life = (joined.cluster, joined.incarnation);
            tracing::info!(host = %self.config.name, "the supervisor is back");
            beats = self.linked(&joined);
        }
    }

    fn report(&self, message: HostActorMessage<B>) {
        // An actor that ended ends the host too.
        let _ = self.actor.cast(message);
    }

    /// Messages go to this supervisor from now on, heartbeats first.
    fn linked(&self, joined: &Joined) -> JoinHandle<()> {
        self.report(HostActorMessage::Linked(joined.outbox.clone(), joined.link.clone()));
        tokio::spawn(beat(self.actor.clone(), joined.heartbeat))
    }

    /// Loads the model off the event loop; a failure is told to the supervisor, with its cause.
    async fn load(&self, joined: &mut Joined, loader: ModelLoader<B>) -> Result<LoadedModel<B>, HostError> {
        let host = &self.config.name;
        let loaded = machine::spawn(loader)
            .await
            .unwrap_or_else(|panic| Err(ModelError::Host { host: host.clone(), cause: panic.to_string() }));
        match loaded {
            Ok(model) => Ok(model),
            Err(cause) => {
                joined.outbox.send(HostMessage::Unfit { cause: cause.to_string() });
                // The supervisor closes the link once it has read the message above.
                let _ = tokio::time::timeout(Duration::from_secs(2), joined.link.closed()).await;
                Err(HostError::Model { host: host.clone(), cause })
            }
        }
    }

    /// Tries to reach the supervisor again until it is there or patience ends.
    async fn rejoin(&self, mut cause: String) -> Result<Joined, HostError> {
        let (lost, patience, mut backoff) = (Instant::now(), self.config.patience, Backoff::default());
        loop {
            let wait = backoff.next();
            let Some(left) = patience.checked_sub(lost.elapsed() + wait) else {
                let cause = format!("{cause}; it did not come back in {} s", patience.as_secs_f64());
                return Err(HostError::Lost { host: self.config.name.clone(), cause });
            };
            tokio::time::sleep(wait).await;
            let joining = joining::join(self.hello().await, &self.config.supervisor, self.transports.control.as_ref());
            match tokio::time::timeout(left, joining).await {
                Ok(Ok(joined)) => return Ok(joined),
                Ok(Err(error)) if joining::is_final(&error) => return Err(error),
                Ok(Err(error)) => cause = error.to_string(),
                Err(_) => cause = "it accepts no host".into(),
            }
        }
    }

    /// Who this host is and what it has by now.
    async fn hello(&self) -> Hello {
        let (reply, held) = oneshot::channel();
        self.report(HostActorMessage::Introduce(reply));
        let (contexts, jobs) = held.await.unwrap_or_default();
        let (cluster, incarnation) = self.life;
        Hello { cluster, incarnation, contexts, jobs, ..self.config.hello(self.transports.data.endpoints()) }
    }
}

/// Completes when the process is asked to end.
async fn asked(leave: &mut Option<watch::Receiver<bool>>) {
    if let Some(leave) = leave
        && leave.wait_for(|asked| *asked).await.is_ok()
    {
        return;
    }
    std::future::pending().await
}

/// Completes at a moment; never where there is none.
async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// Waits until a device fails for good.
async fn failure(health: impl Fn() -> Result<(), KernelError>) -> KernelError {
    let mut ticks = tokio::time::interval(CHECKED);
    loop {
        ticks.tick().await;
        if let Err(cause) = health() {
            return cause;
        }
    }
}

/// Has the actor send heartbeats: they stop when it does. The next is due only after the last was handled.
async fn beat<B: Backend>(actor: ActorRef<HostActorMessage<B>>, every: Duration) {
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let (beaten, handled) = oneshot::channel();
        if actor.cast(HostActorMessage::Beat(beaten)).is_err() || handled.await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_device_that_fails_is_seen_within_a_second() {
        let (began, broken) = (Instant::now(), Cell::new(false));
        let health = || match broken.get() {
            true => Err(KernelError::Device { operation: "health", cause: "an illegal address".into() }),
            false => Ok(()),
        };
        let breaks = async {
            tokio::time::sleep(Duration::from_millis(7_300)).await;
            broken.set(true);
            std::future::pending::<()>().await;
        };
        let cause = tokio::select! {
            cause = failure(health) => cause,
            () = breaks => unreachable!("it waits for ever"),
        };
        assert!(cause.to_string().contains("an illegal address"), "{cause}");
        assert_eq!(began.elapsed(), Duration::from_secs(8));
    }
}
