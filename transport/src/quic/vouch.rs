//! QUIC connections that carry no frames but vouch for a link of UCX: over them both sides learn who the other is and what
//! they need to meet, and with them the link ends. Reads nothing of what is said on them.

#[cfg(feature = "ucx")]
mod taking;

use std::sync::{Mutex, PoisonError};

use quinn::{Connection, crypto::rustls::HandshakeData};
use tokio::sync::mpsc;

use super::{cause, trust::KnownPeer};
use crate::quic::tls::PROTOCOL;

/// A connection whose peer has shaken hands.
pub(crate) struct Vouched {
    pub connection: Connection,
    /// Who the peer is; nobody where there are no certificates.
    #[cfg_attr(not(feature = "ucx"), expect(dead_code, reason = "only UCX asks"))]
    pub known: Option<KnownPeer>,
}

/// Where peers that ask for UCX are sent.
#[derive(Default)]
pub(super) struct VouchService {
    taker: Mutex<Option<mpsc::Sender<Vouched>>>,
}

impl VouchService {
    /// Gives the connection to whoever takes such, or closes it with the reason why nobody does.
    pub async fn hand_over(&self, connection: Connection, known: Option<KnownPeer>) {
        let taker = self.taker.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let refused = match taker {
            Some(taker) => taker.send(Vouched { connection, known }).await.err().map(|vouched| vouched.0.connection),
            None => Some(connection),
        };
        if let Some(connection) = refused {
            let built = if cfg!(feature = "ucx") { "UCX is switched off there" } else { "it was built without UCX" };
            tracing::info!(peer = %connection.remote_address(), built, "a peer asked for UCX");
            connection.close(cause::NO_UCX, built.as_bytes());
        }
    }
}

/// Whether the peer wants UCX rather than frames over this connection.
pub(super) fn is_asked_of(connection: &Connection) -> bool {
    let data = connection.handshake_data().and_then(|data| data.downcast::<HandshakeData>().ok());
    data.is_some_and(|data| data.protocol.as_deref() == Some(PROTOCOL))
}
