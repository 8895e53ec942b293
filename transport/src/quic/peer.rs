//! What a link and its channels share. Opens nothing.

pub(super) mod stripes;

use std::{
    net::SocketAddr,
    sync::{Arc, OnceLock},
};

use quinn::Connection;

use crate::{
    Observer, TransportError,
    certificates::Member,
    frame::buffers::Buffers,
    quic::{
        cause::{self, LANE_CLOSED, TRANSPORT_CLOSED},
        trust::Revocable,
    },
};
use stripes::Stripes;

/// What a link and its channels share.
pub(super) struct Peer {
    pub connection: Connection,
    pub address: SocketAddr,
    /// Who it is, by its certificate.
    pub member: Option<Member>,
    /// The words of this side's `close`.
    pub(super) closing: OnceLock<String>,
    pub stripes: Arc<Stripes>,
    pub buffers: Arc<Buffers>,
    pub observer: Arc<dyn Observer>,
}

impl Peer {
    /// Ends the link and its lanes. The first reason stands.
    pub fn close(&self, reason: &str) {
        let reason = self.closing.get_or_init(|| reason.to_owned());
        self.connection.close(LANE_CLOSED, reason.as_bytes());
        self.stripes.close(LANE_CLOSED, reason.as_bytes());
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
        self.stripes.close(LANE_CLOSED, b"");
    }
}
