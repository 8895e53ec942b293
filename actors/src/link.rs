//! Control channels as queues: an outbox that a task writes out, and typed reading; and links kept open. Decides nothing.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex as SyncMutex},
};

use asterism_transport::{Channel, FrameKind, FrameReceiver, FrameSender, Link, Transport, TransportError};
use tokio::sync::{Mutex, mpsc};

use crate::messages::WireMessage;

/// Where messages for one peer are queued; clones write to the same peer, in order. Sending never blocks, and a message
/// for a peer that is gone is dropped: its link's end is reported where it is read.
pub struct Outbox<M> {
    queue: mpsc::UnboundedSender<M>,
}

impl<M> Clone for Outbox<M> {
    fn clone(&self) -> Self {
        Self { queue: self.queue.clone() }
    }
}

impl<M: WireMessage + Send + 'static> Outbox<M> {
    /// Starts writing queued messages to `sender`.
    pub fn new(mut sender: Box<dyn FrameSender>) -> Self {
        let (queue, mut messages) = mpsc::unbounded_channel::<M>();
        tokio::spawn(async move {
            while let Some(message) = messages.recv().await {
                if let Err(error) = sender.send(message.frame()).await {
                    tracing::debug!(%error, "a control message was not sent");
                    return;
                }
            }
        });
        Self { queue }
    }

    /// Queues a message.
    pub fn send(&self, message: M) {
        let _ = self.queue.send(message);
    }
}

/// Typed messages from a peer.
pub struct Inbox {
    receiver: Box<dyn FrameReceiver>,
    peer: String,
}

impl Inbox {
    /// Reads from `receiver`; `peer` is named in errors.
    pub fn new(receiver: Box<dyn FrameReceiver>, peer: String) -> Self {
        Self { receiver, peer }
    }

    /// The next message, or why there is none.
    pub async fn receive<M: WireMessage>(&mut self) -> Result<M, String> {
        match self.receiver.receive().await {
            Ok(Some(frame)) if frame.header.kind == FrameKind::Control => {
                M::read(&frame.meta, &self.peer).map_err(|error| error.to_string())
            }
            Ok(Some(frame)) => Err(format!("{} sent a {:?} frame on a control channel", self.peer, frame.header.kind)),
            Ok(None) => Err(format!("{} closed its channel", self.peer)),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// Splits a control channel.
pub fn control<M: WireMessage + Send + 'static>(channel: Channel, peer: String) -> (Outbox<M>, Inbox) {
    (Outbox::new(channel.sender), Inbox::new(channel.receiver, peer))
}

/// A link that is open, or being opened by whoever holds the lock.
type LinkSlot = Arc<Mutex<Option<Arc<dyn Link>>>>;

/// Links to context hosts, kept between jobs. A host that does not answer keeps nobody from the others.
pub struct Links {
    transport: Arc<dyn Transport>,
    open: SyncMutex<HashMap<SocketAddr, LinkSlot>>,
}

impl Links {
    /// None open yet.
    pub fn new(transport: Arc<dyn Transport>) -> Self {
        Self { transport, open: SyncMutex::default() }
    }

    /// A channel to a context host, over the link there is or a new one.
    pub async fn channel(&self, address: SocketAddr) -> Result<Channel, TransportError> {
        let slot = self.open.lock().expect("no holder panics").entry(address).or_default().clone();
        let mut open = slot.lock().await;
        if let Some(link) = open.as_ref()
            && let Ok(channel) = link.open().await
        {
            return Ok(channel);
        }
        let link = self.transport.connect(address).await?;
        *open = Some(link.clone());
        link.open().await
    }

    /// The next channel to `address` goes over a new link. Channels that are open keep theirs.
    pub fn forget(&self, address: SocketAddr) {
        self.open.lock().expect("no holder panics").remove(&address);
    }
}
