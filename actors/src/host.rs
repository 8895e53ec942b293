//! A host process: joins the supervisor, loads the model, carries out its orders, and comes back to a supervisor it lost.

mod actor;
mod config;
pub(crate) mod joining;
mod process;

use std::time::Duration;

use asterism_kernels::{Backend, KernelError};
use asterism_models::ModelError;
use ractor::ActorRef;
use tokio::{
    sync::{oneshot, watch},
    task::JoinHandle,
    time::Instant,
};

use crate::{
    compute::{LoadedModel, ModelLoader},
    error::HostError,
    machine,
    messages::{Hello, HostCommand, HostMessage, Settings},
};
use actor::HostActorMessage;
pub use config::{HostConfig, LEAVE_GRACE, SUPERVISOR_TIMEOUT, Transports};
use joining::{Backoff, Joined};

/// Longest wait for the actor to end.
const STOP_DEADLINE: Duration = Duration::from_secs(2);

/// How a host ended that carried out its orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostEnd {
    /// Its supervisor told it to end, and wants no other process in its place.
    Ended,
    /// It was asked to end, has given its work away as far as there was time, and is to be started again.
    Left,
}

/// How often a host looks whether its device still computes.
const CHECKED: Duration = Duration::from_secs(1);

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
            // Whoever was refused here is to receive the reason.
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
                    Ok(HostCommand::Configure { settings }) => self.configure(&settings),
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

    fn configure(&self, settings: &str) {
        match Settings::read(settings) {
            Ok(settings) => {
                if let Some(known) = &self.config.settings {
                    known.send_modify(|known| known.add(settings));
                }
            }
            Err(cause) => tracing::warn!(host = %self.config.name, cause, "what it is to change cannot be read"),
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
