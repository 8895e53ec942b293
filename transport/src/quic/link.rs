//! One authenticated peer over QUIC: its connection, its lanes, and the channels between.

use std::{
    net::SocketAddr,
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures_util::future::BoxFuture;
use quinn::{Connection, ReadError, ReadExactError};
use tokio::sync::Mutex as AsyncMutex;

use super::{
    Settings, TRANSPORT_CLOSED, cause, channel,
    lanes::{Announced, CLOSED},
    stripes::Stripes,
    trust::{Known, Revocable},
};
use crate::{Channel, Link, Observer, PROTOCOL_VERSION, TransportError, buffers::Buffers, certificates::Member};

/// What a link and its channels share.
pub(super) struct Peer {
    pub connection: Connection,
    pub address: SocketAddr,
    /// Who it is, by its certificate.
    pub member: Option<Member>,
    /// The words of this side's `close`.
    closing: OnceLock<String>,
    pub stripes: Arc<Stripes>,
    pub buffers: Arc<Buffers>,
    pub observer: Arc<dyn Observer>,
}

impl Peer {
    /// Ends the link and its lanes. The first reason stands.
    pub fn close(&self, reason: &str) {
        let reason = self.closing.get_or_init(|| reason.to_owned());
        self.connection.close(CLOSED, reason.as_bytes());
        self.stripes.close(CLOSED, reason.as_bytes());
    }

    /// A part of a frame did not go over its lane, which takes the link with it, if that is not gone before.
    pub fn lost_lane(&self, error: quinn::ConnectionError) -> TransportError {
        let lost = self.connection.close_reason();
        lost.map_or_else(
            || TransportError::Closed {
                peer: self.address,
                reason: format!("a lane was lost: {}", cause::words(error)),
            },
            |error| self.lost(error),
        )
    }

    pub fn lost(&self, error: quinn::ConnectionError) -> TransportError {
        let closing = self.closing.get().map_or(TRANSPORT_CLOSED, String::as_str);
        cause::of_loss(error, self.address, closing)
    }
}

impl Revocable for Peer {
    fn revoke(&self, words: &str) {
        self.close(words);
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.stripes.close(CLOSED, b"");
    }
}

pub(super) struct QuicLink {
    pub peer: Arc<Peer>,
    /// Channels begin in the order in which the peer opened them.
    accepting: AsyncMutex<()>,
}

impl QuicLink {
    pub fn new(connection: Connection, known: Option<Known>, settings: &Settings) -> Self {
        let address = connection.remote_address();
        let (closing, stripes) = Default::default();
        let (buffers, observer) = (settings.buffers.clone(), settings.observer.clone());
        let member = known.as_ref().map(|known| known.member.clone());
        let peer = Arc::new(Peer { connection, address, member, closing, stripes, buffers, observer });
        known.iter().for_each(|known| settings.revoked.watch(&known.serial, &peer));
        Self { peer, accepting: AsyncMutex::default() }
    }

    /// What the peer tells of its lanes, once it has let this side in.
    pub async fn await_welcome(&self) -> Result<Option<Announced>, TransportError> {
        let lost = |error| cause::of_handshake(error, self.peer.address);
        let mut greeting = self.peer.connection.accept_uni().await.map_err(lost)?;
        let mut version = [0; 2];
        let read = match greeting.read_exact(&mut version).await {
            Ok(()) if u16::from_le_bytes(version) == PROTOCOL_VERSION => Announced::read(&mut greeting).await,
            Ok(()) => return Err(TransportError::protocol_version(self.peer.address)),
            Err(error) => Err(error),
        };
        read.map_err(|error| match error {
            ReadExactError::ReadError(ReadError::ConnectionLost(error)) => lost(error),
            error => TransportError::Handshake { peer: self.peer.address, cause: error.to_string() },
        })
    }
}

impl Link for QuicLink {
    fn peer_address(&self) -> SocketAddr {
        self.peer.address
    }

    fn peer(&self) -> Option<&Member> {
        self.peer.member.as_ref()
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
            let _turn = self.accepting.lock().await;
            let streams = self.peer.connection.accept_bi().await.map_err(|error| self.peer.lost(error))?;
            Ok(channel::over(streams, &self.peer))
        })
    }

    fn close(&self, reason: &str) {
        self.peer.close(reason);
    }

    fn closed(&self) -> BoxFuture<'_, TransportError> {
        Box::pin(async { self.peer.lost(self.peer.connection.closed().await) })
    }
}
