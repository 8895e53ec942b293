//! One side of a link within a process, and what both sides share. Sends nothing.

use std::{net::SocketAddr, sync::Arc};

use crate::{Observer, TransportError, certificates::Member, signal::Signal};

pub(crate) const LINK_DROPPED: &str = "the peer dropped the link";

/// What both sides of a link share.
pub(super) struct Connection {
    /// Its place among the links of the network.
    #[cfg_attr(not(feature = "sim"), expect(dead_code, reason = "only the simulation tells links apart"))]
    pub(super) number: u64,
    pub(super) closed: Signal<Option<String>>,
}

impl Connection {
    /// The first reason stands.
    pub(super) fn close(&self, reason: &str) {
        self.closed.set_once(reason.into());
    }
}

/// One side of a link, held by the link and its channels; the link ends with its last holder.
pub(super) struct Side {
    pub(super) peer: SocketAddr,
    pub(super) member: Option<Member>,
    pub(super) connection: Arc<Connection>,
    pub(super) observer: Arc<dyn Observer>,
}

impl Side {
    pub(super) async fn closed(&self) -> TransportError {
        let reason = self.connection.closed.wait_for(Option::is_some).await;
        TransportError::Closed { peer: self.peer, reason: reason.unwrap_or_default() }
    }

    /// Why the link ended, if it has.
    pub(super) fn error(&self) -> Option<TransportError> {
        self.connection.closed.get().map(|reason| TransportError::Closed { peer: self.peer, reason })
    }

    pub(super) fn channel_closed(&self) -> TransportError {
        TransportError::ChannelClosed { peer: self.peer }
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        self.connection.close(LINK_DROPPED);
    }
}
