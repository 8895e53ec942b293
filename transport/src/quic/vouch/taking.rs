//! How UCX takes the connections that vouch for its links, and makes such. Reads nothing of them.

use std::{
    net::SocketAddr,
    sync::{Arc, PoisonError},
};

use tokio::sync::mpsc;

use crate::{
    TransportError,
    quic::{QuicTransport, trust::Revocable, vouch::Vouched},
};

/// Peers that have shaken hands but wait to be taken.
const VOUCHED_WAITING: usize = 256;

impl QuicTransport {
    /// From now on peers that ask for UCX come out here; none where somebody takes them already.
    pub(crate) fn take_vouched(&self) -> Option<mpsc::Receiver<Vouched>> {
        let mut taker = self.settings.vouched.taker.lock().unwrap_or_else(PoisonError::into_inner);
        if taker.as_ref().is_some_and(|taker| !taker.is_closed()) {
            return None;
        }
        let (sender, receiver) = mpsc::channel(VOUCHED_WAITING);
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
