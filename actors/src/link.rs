//! Control channels as queues: an outbox that a task writes out, and typed reading; and links kept open. Decides nothing.

use std::{collections::HashMap, net::SocketAddr, sync::Arc};

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

    /// Whether the peer can still be written to.
    pub fn is_open(&self) -> bool {
        !self.queue.is_closed()
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

/// Links to context hosts, kept between jobs.
pub struct Links {
    transport: Arc<dyn Transport>,
    open: Mutex<HashMap<SocketAddr, Arc<dyn Link>>>,
}

impl Links {
    /// None open yet.
    pub fn new(transport: Arc<dyn Transport>) -> Self {
        Self { transport, open: Mutex::default() }
    }

    /// A channel to a context host, over the link there is or a new one.
    pub async fn channel(&self, address: SocketAddr) -> Result<Channel, TransportError> {
        let mut open = self.open.lock().await;
        if let Some(link) = open.get(&address) {
            match link.open().await {
                Ok(channel) => return Ok(channel),
                Err(_) => drop(open.remove(&address)),
            }
        }
        let link = self.transport.connect(address).await?;
        open.insert(address, link.clone());
        link.open().await
    }
}
