//! A transport whose owner reads an id of a context wrong, once it is told to: nothing of that is seen on the wire.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use asterism_actors::messages::{HostCommand, WireMessage};
use asterism_transport::{
    Channel, Frame, FrameKind, FrameReceiver, Link, Transport, TransportError, certificates::Member,
};
use futures_util::future::BoxFuture;

/// Whether the next ids that come are read wrong.
pub type Misreads = Arc<AtomicBool>;

/// A transport, and whether its owner misreads.
pub struct Misreading {
    pub inner: Arc<dyn Transport>,
    pub misreads: Misreads,
}

struct MisreadingLink(Arc<dyn Link>, Misreads);

struct MisreadingReceiver(Box<dyn FrameReceiver>, Misreads);

impl Transport for Misreading {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn local_address(&self) -> SocketAddr {
        self.inner.local_address()
    }

    fn connect(&self, address: SocketAddr) -> BoxFuture<'_, Result<Arc<dyn Link>, TransportError>> {
        Box::pin(async move {
            let link = self.inner.connect(address).await?;
            Ok(Arc::new(MisreadingLink(link, self.misreads.clone())) as Arc<dyn Link>)
        })
    }

    fn accept(&self) -> BoxFuture<'_, Option<Arc<dyn Link>>> {
        self.inner.accept()
    }

    fn close(&self) {
        self.inner.close();
    }

    fn drained(&self) -> BoxFuture<'_, ()> {
        self.inner.drained()
    }
}

impl Link for MisreadingLink {
    fn peer_address(&self) -> SocketAddr {
        self.0.peer_address()
    }

    fn peer(&self) -> Option<&Member> {
        self.0.peer()
    }

    fn rtt(&self) -> Option<Duration> {
        self.0.rtt()
    }

    fn open(&self) -> BoxFuture<'_, Result<Channel, TransportError>> {
        Box::pin(async {
            let Channel { sender, receiver } = self.0.open().await?;
            Ok(Channel { sender, receiver: Box::new(MisreadingReceiver(receiver, self.1.clone())) })
        })
    }

    fn accept(&self) -> BoxFuture<'_, Result<Channel, TransportError>> {
        self.0.accept()
    }

    fn close(&self, reason: &str) {
        self.0.close(reason);
    }

    fn closed(&self) -> BoxFuture<'_, TransportError> {
        self.0.closed()
    }
}

impl FrameReceiver for MisreadingReceiver {
    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Frame>, TransportError>> {
        self.0.poll_receive(context).map_ok(|frame| frame.map(|frame| self.read(frame)))
    }
}

impl MisreadingReceiver {
    fn read(&self, frame: Frame) -> Frame {
        if frame.header.kind != FrameKind::Control || !self.1.load(Ordering::Relaxed) {
            return frame;
        }
        match HostCommand::read(&frame.meta, "the supervisor") {
            Ok(HostCommand::Ids(mut ids)) if !ids.ids.is_empty() => {
                self.1.store(false, Ordering::Relaxed);
                let at = ids.ids.len() / 2;
                ids.ids[at] ^= 1;
                HostCommand::Ids(ids).frame()
            }
            _ => frame,
        }
    }
}
