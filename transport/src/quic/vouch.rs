//! QUIC connections that carry no frames but vouch for a link of UCX: over them both sides learn who the other is and what
//! they need to meet, and with them the link ends. Reads nothing of what is said on them.

use std::sync::{Mutex, PoisonError};

use quinn::{Connection, crypto::rustls::HandshakeData};
use tokio::sync::mpsc;

use super::{cause, trust::Known};

/// The TLS application protocol of such connections.
pub(super) const PROTOCOL: &[u8] = b"asterism-ucx/4";

/// A connection whose peer has shaken hands.
pub(crate) struct Vouched {
    pub connection: Connection,
    /// Who the peer is; nobody where there are no certificates.
    #[cfg_attr(not(feature = "ucx"), expect(dead_code, reason = "only UCX asks"))]
    pub known: Option<Known>,
}

/// Where peers that ask for UCX are sent.
#[derive(Default)]
pub(super) struct Desk {
    taker: Mutex<Option<mpsc::Sender<Vouched>>>,
}

impl Desk {
    /// Gives the connection to whoever takes such, or closes it with the reason why nobody does.
    pub async fn hand_over(&self, connection: Connection, known: Option<Known>) {
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

#[cfg(feature = "ucx")]
mod taking {
    use std::{net::SocketAddr, sync::Arc};

    use super::*;
    use crate::{
        TransportError,
        quic::{QuicTransport, trust::Revocable},
    };

    /// Peers that have shaken hands but wait to be taken.
    const WAITING: usize = 256;

    impl QuicTransport {
        /// From now on peers that ask for UCX come out here; none where somebody takes them already.
        pub(crate) fn take_vouched(&self) -> Option<mpsc::Receiver<Vouched>> {
            let mut taker = self.settings.vouched.taker.lock().unwrap_or_else(PoisonError::into_inner);
            if taker.as_ref().is_some_and(|taker| !taker.is_closed()) {
                return None;
            }
            let (sender, receiver) = mpsc::channel(WAITING);
            *taker = Some(sender);
            Some(receiver)
        }

        /// A connection of this kind to a peer.
        pub(crate) async fn connect_vouched(&self, address: SocketAddr) -> Result<Vouched, TransportError> {
            let trust = self.settings.trust();
            let connected = self.shake_hands(address, &trust, &trust.sides(address).vouching).await;
            let (connection, known) = connected.map_err(|error| match error {
                TransportError::ProtocolVersion { peer, .. } => {
                    TransportError::NoUcx { peer, cause: "it does not know this version of asterism's UCX".into() }
                }
                other => other,
            })?;
            Ok(Vouched { connection, known })
        }

        /// Ends a link once the certificate of its peer is revoked.
        pub(crate) fn watch_revoked(&self, serial: &str, link: &Arc<impl Revocable + 'static>) {
            self.settings.revoked.watch(serial, link);
        }
    }
}
