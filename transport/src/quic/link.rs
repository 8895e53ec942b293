//! One authenticated peer over QUIC: its connection, its lanes, and the channels between.

pub(crate) mod channel;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use quinn::{Connection, ReadError, ReadExactError, crypto::rustls::HandshakeData};
use tokio::sync::Mutex as AsyncMutex;

use super::{cause, lanes::AnnouncedLanes, settings::HandshakeSettings, trust::KnownPeer};
use crate::{Channel, Link, OLDEST_PROTOCOL, TransportError, certificates::Member, frame::version, quic::peer::Peer};

pub(super) struct QuicLink {
    pub peer: Arc<Peer>,
    /// What TLS settled on.
    version: u16,
    /// Channels begin in the order in which the peer opened them.
    accepting: AsyncMutex<()>,
}

impl QuicLink {
    pub fn new(connection: Connection, known: Option<KnownPeer>, settings: &HandshakeSettings) -> Self {
        let address = connection.remote_address();
        let data = connection.handshake_data().and_then(|data| data.downcast::<HandshakeData>().ok());
        let protocol = data.and_then(|data| data.protocol);
        let version = protocol.and_then(|protocol| version::settled(&protocol)).unwrap_or(OLDEST_PROTOCOL);
        let (closing, stripes) = Default::default();
        let (buffers, observer) = (settings.buffers.clone(), settings.observer.clone());
        let member = known.as_ref().map(|known| known.member.clone());
        let peer = Arc::new(Peer { connection, address, member, closing, stripes, buffers, observer });
        known.iter().for_each(|known| settings.revoked.watch(&known.serial, &peer));
        Self { peer, version, accepting: AsyncMutex::default() }
    }

    /// What the peer tells of its lanes, once it has let this side in.
    pub async fn await_welcome(&self) -> Result<Option<AnnouncedLanes>, TransportError> {
        let lost = |error| cause::of_handshake(error, self.peer.address);
        let mut greeting = self.peer.connection.accept_uni().await.map_err(lost)?;
        let mut version = [0; 2];
        let read = match greeting.read_exact(&mut version).await {
            Ok(()) if u16::from_le_bytes(version) == self.version => AnnouncedLanes::read(&mut greeting).await,
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

    fn version(&self) -> u16 {
        self.version
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
