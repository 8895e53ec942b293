//! One authenticated peer over QUIC: its connection, and the channels over it.

use std::{
    net::SocketAddr,
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures_util::future::BoxFuture;
use quinn::{Connection, VarInt};

use super::{Settings, TRANSPORT_CLOSED, cause, channel};
use crate::{Channel, Link, Observer, PROTOCOL_VERSION, TransportError, buffers::Buffers, certificates::Member};

/// What a link and its channels share.
pub(super) struct Peer {
    pub connection: Connection,
    pub address: SocketAddr,
    /// The words of this side's `close`.
    closing: OnceLock<String>,
    pub buffers: Arc<Buffers>,
    pub observer: Arc<dyn Observer>,
}

impl Peer {
    pub fn lost(&self, error: quinn::ConnectionError) -> TransportError {
        let closing = self.closing.get().map_or(TRANSPORT_CLOSED, String::as_str);
        cause::of_loss(error, self.address, closing)
    }
}

pub(super) struct QuicLink {
    peer: Arc<Peer>,
    member: Option<Member>,
}

impl QuicLink {
    pub fn new(connection: Connection, member: Option<Member>, settings: &Settings) -> Self {
        let address = connection.remote_address();
        let (closing, buffers, observer) = (OnceLock::new(), settings.buffers.clone(), settings.observer.clone());
        Self { peer: Arc::new(Peer { connection, address, closing, buffers, observer }), member }
    }

    pub async fn await_welcome(&self) -> Result<(), TransportError> {
        let lost = |error| cause::of_handshake(error, self.peer.address);
        let mut greeting = self.peer.connection.accept_uni().await.map_err(lost)?;
        let mut version = [0; 2];
        match greeting.read_exact(&mut version).await {
            Ok(()) if u16::from_le_bytes(version) == PROTOCOL_VERSION => Ok(()),
            Ok(()) => Err(TransportError::protocol_version(self.peer.address)),
            Err(quinn::ReadExactError::ReadError(quinn::ReadError::ConnectionLost(error))) => Err(lost(error)),
            Err(error) => Err(TransportError::Handshake { peer: self.peer.address, cause: error.to_string() }),
        }
    }
}

impl Link for QuicLink {
    fn peer_address(&self) -> SocketAddr {
        self.peer.address
    }

    fn peer(&self) -> Option<&Member> {
        self.member.as_ref()
    }

    fn rtt(&self) -> Option<Duration> {
        let connection = &self.peer.connection;
        connection.close_reason().is_none().then(|| connection.rtt())
    }

    fn open(&self) -> BoxFuture<'_, Result<Channel, TransportError>> {
        Box::pin(async {
            let streams = self.peer.connection.open_bi().await.map_err(|error| self.peer.lost(error))?;
            Ok(channel::over(streams, &self.peer))
        })
    }

    fn accept(&self) -> BoxFuture<'_, Result<Channel, TransportError>> {
        Box::pin(async {
            let streams = self.peer.connection.accept_bi().await.map_err(|error| self.peer.lost(error))?;
            Ok(channel::over(streams, &self.peer))
        })
    }

    fn close(&self, reason: &str) {
        let reason = self.peer.closing.get_or_init(|| reason.to_owned());
        self.peer.connection.close(VarInt::from_u32(0), reason.as_bytes());
    }

    fn closed(&self) -> BoxFuture<'_, TransportError> {
        Box::pin(async { self.peer.lost(self.peer.connection.closed().await) })
    }
}
