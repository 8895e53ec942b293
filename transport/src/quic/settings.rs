//! What every handshake of a transport needs, and whom it turns away. Listens nowhere.

use std::{
    net::SocketAddr,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use quinn::{Connecting, Connection, Incoming};

use crate::{
    Observer,
    frame::buffers::Buffers,
    quic::{
        admission::{AdmissionGuard, HalfOpen, Received},
        cause,
        config::Paths,
        lanes::Lanes,
        trust::{KnownPeer, Revoked, Trust},
        tuning, vouch,
    },
};

/// What every handshake of a transport needs.
pub(super) struct HandshakeSettings {
    pub(super) paths: Paths,
    pub(super) trust: RwLock<Arc<Trust>>,
    pub(super) connect_timeout: Duration,
    pub(super) idle_timeout: Duration,
    pub(super) buffers: Arc<Buffers>,
    pub(super) lanes: Lanes,
    pub(super) observer: Arc<dyn Observer>,
    pub(super) vouched: vouch::VouchService,
    pub(super) reception: Arc<AdmissionGuard>,
    pub(super) revoked: Revoked,
}

impl HandshakeSettings {
    pub(super) fn trust(&self) -> Arc<Trust> {
        // Nothing panics while holding this lock.
        self.trust.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The handshake of a peer that came, if it has a place. What waits for its end holds no packet: a task is as large as its
    /// largest moment.
    pub(super) fn receive(&self, incoming: Incoming) -> Option<(Connecting, HalfOpen)> {
        let peer = incoming.remote_address();
        let begun = match self.reception.receive(incoming) {
            Received::Shake(incoming, place) => {
                let server = self.trust().sides(peer).server.clone();
                (*incoming).accept_with(server).map(|connecting| (connecting, place)).map_err(Rejected::from)
            }
            Received::Later => return None,
            Received::Dropped(reason) => Err(Rejected { reason, cause: "too many handshakes are under way".into() }),
        };
        begun.inspect_err(|rejected| self.refused(peer, rejected)).ok()
    }

    /// A connection whose peer has shown a certificate of this cluster, in the time that this may take, and who it is.
    pub(super) async fn shaken(
        &self,
        (connecting, place): (Connecting, HalfOpen),
    ) -> Result<(Connection, Option<KnownPeer>), Rejected> {
        let limit = self.connect_timeout;
        let connection = tokio::time::timeout(limit, connecting).await.map_err(|_| Rejected {
            reason: cause::HANDSHAKE,
            cause: format!("it showed no certificate within {limit:?}"),
        })??;
        let peer = self.identify(&connection, &self.trust());
        let peer = peer.map_err(|cause| Rejected { reason: cause::IDENTITY, cause })?;
        place.prove();
        tuning::open_up(&connection);
        Ok((connection, peer))
    }

    /// Who a peer is whose certificate TLS has verified, if it is one of this cluster and not revoked; else the connection is
    /// closed, and the error says why.
    pub(super) fn identify(&self, connection: &Connection, trust: &Trust) -> Result<Option<KnownPeer>, String> {
        let shown = trust.shown(connection).and_then(|shown| match &shown {
            Some((_, info)) if self.revoked.holds(&info.serial) => {
                Err(format!("the certificate {} of {:?} is revoked", info.serial, info.name))
            }
            _ => Ok(shown),
        });
        let shown = shown.inspect_err(|cause| connection.close(cause::WRONG_IDENTITY, cause.as_bytes()))?;
        Ok(shown.map(|(member, info)| {
            self.observer.shown(&member, info.validity.not_after.into());
            KnownPeer { member, serial: info.serial }
        }))
    }

    pub(super) fn refused(&self, peer: SocketAddr, Rejected { reason, cause }: &Rejected) {
        self.observer.rejected(reason);
        self.observer.turned_away(peer, cause);
        self.reception.log_refusal(peer, reason, cause);
    }
}

/// A peer that does not get a link.
pub(super) struct Rejected {
    pub(super) reason: &'static str,
    pub(super) cause: String,
}

impl From<quinn::ConnectionError> for Rejected {
    fn from(error: quinn::ConnectionError) -> Self {
        Self { reason: cause::rejection(&error), cause: error.to_string() }
    }
}
