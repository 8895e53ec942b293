//! What both working roles share: joining the supervisor, heartbeats, loading the model, the command loop.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use asterism_kernels::Backend;
use asterism_models::{Decoder, ModelError, Tokenizer};
use asterism_transport::{Link, Transport};
use tokio::sync::watch;

use crate::{
    error::HostError,
    link::{self, Inbox, Outbox},
    messages::{Hello, HostCommand, HostMessage, HostRole},
};

/// Who a host process is and where its supervisor listens.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// Host name, as the cluster file has it.
    pub name: String,
    /// Where the supervisor listens.
    pub supervisor: SocketAddr,
    /// Larger at each start of this host.
    pub incarnation: u64,
}

/// A loaded model: the layers a role needs, and the tokenizer.
pub struct LoadedModel<B: Backend> {
    /// The decoder.
    pub decoder: Arc<Decoder<B>>,
    /// The tokenizer.
    pub tokenizer: Tokenizer,
}

/// Loads a model; runs on a thread of its own after the host has joined.
pub type ModelLoader<B> = Box<dyn FnOnce() -> Result<LoadedModel<B>, ModelError> + Send>;

/// A host that has joined its supervisor.
pub(crate) struct Joined {
    pub outbox: Outbox<HostMessage>,
    pub inbox: Inbox,
    pub kv_bytes: watch::Sender<u64>,
    link: Arc<dyn Link>,
}

/// Says hello and starts heartbeats.
pub(crate) async fn join(config: &HostConfig, role: HostRole, transport: &dyn Transport) -> Result<Joined, HostError> {
    let unreachable =
        |cause| HostError::Supervisor { host: config.name.clone(), address: config.supervisor.to_string(), cause };
    let link = transport.connect(config.supervisor).await.map_err(unreachable)?;
    let channel = link.open().await.map_err(unreachable)?;
    let (outbox, mut inbox) = link::control(channel, "the supervisor".to_string());
    outbox.send(HostMessage::Hello(Hello {
        name: config.name.clone(),
        role,
        incarnation: config.incarnation,
        pid: std::process::id(),
        address: transport.local_address().to_string(),
    }));
    let heartbeat = match inbox.receive().await {
        Ok(HostCommand::Welcome { heartbeat_ms }) => Duration::from_millis(heartbeat_ms.max(1)),
        Ok(HostCommand::Refuse { reason }) => return Err(HostError::Refused { host: config.name.clone(), reason }),
        Ok(other) => {
            let reason = format!("it answered hello with {other:?}");
            return Err(HostError::Refused { host: config.name.clone(), reason });
        }
        Err(cause) => return Err(HostError::Lost { host: config.name.clone(), cause }),
    };
    let (kv_bytes, held) = watch::channel(0);
    tokio::spawn(beat(heartbeat, outbox.clone(), held));
    Ok(Joined { outbox, inbox, kv_bytes, link })
}

async fn beat(every: Duration, outbox: Outbox<HostMessage>, held: watch::Receiver<u64>) {
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while outbox.is_open() && held.has_changed().is_ok() {
        ticks.tick().await;
        outbox.send(HostMessage::Heartbeat { kv_bytes: *held.borrow() });
    }
}

impl Joined {
    /// Loads the model off the event loop; a failure is told to the supervisor, with its cause.
    pub async fn load<B: Backend>(&mut self, name: &str, loader: ModelLoader<B>) -> Result<LoadedModel<B>, HostError> {
        let loaded = tokio::task::spawn_blocking(loader)
            .await
            .unwrap_or_else(|panic| Err(ModelError::Host { host: name.to_string(), cause: panic.to_string() }));
        match loaded {
            Ok(model) => Ok(model),
            Err(cause) => {
                self.outbox.send(HostMessage::Unfit { cause: cause.to_string() });
                // The supervisor closes the link once it has read the message above.
                let _ = tokio::time::timeout(Duration::from_secs(2), self.link.closed()).await;
                Err(HostError::Model { host: name.to_string(), cause })
            }
        }
    }

    /// Hands commands to `act` until the supervisor ends the host or is gone.
    pub async fn serve(mut self, name: &str, mut act: impl FnMut(HostCommand)) -> Result<(), HostError> {
        self.outbox.send(HostMessage::Ready);
        loop {
            match self.inbox.receive().await {
                Ok(HostCommand::Shutdown) => return Ok(()),
                Ok(command) => act(command),
                Err(cause) => return Err(HostError::Lost { host: name.to_string(), cause }),
            }
        }
    }
}
