//! What a QUIC transport is made with. Opens nothing.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use quinn::TransportConfig;

use crate::certificates::Credentials;

/// Whom a host trusts.
#[derive(Clone, Debug)]
pub enum Security {
    /// Peers with a certificate of the same CA.
    Mutual(Credentials),
    /// Everybody: encrypted, but with whom is unknown. For trusted networks and experiments.
    Insecure,
}

/// How a host listens, whom it trusts, and how patient it is.
#[derive(Clone, Debug)]
pub struct QuicConfig {
    /// Where to listen; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Whom to trust.
    pub security: Security,
    /// A silent link is probed this often.
    pub keep_alive: Duration,
    /// A peer silent for this long is lost. The smaller of both sides' values counts.
    pub idle_timeout: Duration,
    /// Longest wait for `connect`.
    pub connect_timeout: Duration,
    /// Bytes a peer may send ahead of the reader, per channel and per link.
    pub receive_window: u32,
    /// Largest datagram, up to which paths between machines are probed. Within a machine datagrams are as large as IP packets.
    pub max_mtu: u16,
    /// Further sockets, each with a thread of its own, over which large payloads are spread where the peer has some too.
    pub lanes: usize,
}

impl QuicConfig {
    /// The defaults, listening at `listen`.
    pub fn new(listen: SocketAddr, security: Security) -> Self {
        Self {
            listen,
            security,
            keep_alive: Duration::from_secs(1),
            idle_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(5),
            receive_window: 64 << 20,
            max_mtu: 8952,
            lanes: 0,
        }
    }
}

/// QUIC's numbers by kind of path.
pub(crate) struct Paths {
    /// Of whoever connects, and of whoever is connected to.
    pub(crate) loopback: [Arc<TransportConfig>; 2],
    pub(crate) network: [Arc<TransportConfig>; 2],
}
