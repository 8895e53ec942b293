//! What can go wrong between two hosts, each with its cause and remedy. It decides nothing about recovery.

use std::net::SocketAddr;

use thiserror::Error;

use crate::{SpokenVersions, certificates::CertificateError, frame::FrameError};

/// Why a transport, link or channel cannot go on. Cheap to clone: every channel of a lost link reports the same cause.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TransportError {
    /// The address to listen on cannot be had.
    #[error("cannot listen on {address}: {cause}; choose a free address of this machine")]
    Bind {
        /// The address asked for.
        address: SocketAddr,
        /// The system's words.
        cause: String,
    },
    /// One side does not trust the other's certificate.
    #[error(
        "{peer} and this host do not trust each other's certificates: {cause}; both need certificates of the same \
         cluster's CA (`asterism cert init`)"
    )]
    Certificate {
        /// The peer.
        peer: SocketAddr,
        /// What TLS objected to.
        cause: String,
    },
    /// The peer speaks another version of the protocol.
    #[error(
        "{peer} speaks no protocol version of {expected}, which this build speaks; run versions of asterism on both that follow each other"
    )]
    ProtocolVersion {
        /// The peer.
        peer: SocketAddr,
        /// The versions spoken here.
        expected: SpokenVersions,
    },
    /// The handshake failed for a reason other than certificates and version.
    #[error("handshake with {peer} failed: {cause}; check that it is an asterism host of this cluster")]
    Handshake {
        /// The peer.
        peer: SocketAddr,
        /// The protocol's words.
        cause: String,
    },
    /// Nobody answers at the address.
    #[error(
        "{address} cannot be reached: {cause}; check that the host runs and that the address and firewall are right"
    )]
    Unreachable {
        /// The address asked for.
        address: SocketAddr,
        /// What was observed.
        cause: String,
    },
    /// A name has no address, or none can be asked for.
    #[error("the name {name} has no address: {cause}; check the name, and what this machine resolves names by")]
    NoAddress {
        /// The name.
        name: String,
        /// The system's words.
        cause: String,
    },
    /// A peer and this host have no transport in common.
    #[error("the peer offers {offered} and this host has {own}; set [transport] data so that they have one in common")]
    NoWay {
        /// What the peer offers.
        offered: String,
        /// What there is here.
        own: String,
    },
    /// A peer that was connected fell silent for longer than the idle timeout.
    #[error("{peer} fell silent for longer than the idle timeout; it or its network is down")]
    TimedOut {
        /// The peer.
        peer: SocketAddr,
    },
    /// One side closed the link, or the peer's process ended in good order.
    #[error("link to {peer} closed: {reason}")]
    Closed {
        /// The peer.
        peer: SocketAddr,
        /// The words given to `close`.
        reason: String,
    },
    /// The peer dropped its half of this channel; the link lives on.
    #[error("{peer} gave up this channel; the link is intact, open another")]
    ChannelClosed {
        /// The peer.
        peer: SocketAddr,
    },
    /// The transport itself was closed.
    #[error("this transport is closed; bind a new one")]
    TransportClosed,
    /// UCX cannot be used on this host as it is configured.
    #[error("UCX cannot be used here: {cause}; {remedy}")]
    Ucx {
        /// What is wrong.
        cause: String,
        /// What to do.
        remedy: String,
    },
    /// The peer is reached over QUIC but speaks no UCX.
    #[error("{peer} speaks no UCX: {cause}; use QUIC with it, or have both hosts use UCX")]
    NoUcx {
        /// The peer.
        peer: SocketAddr,
        /// The peer's words.
        cause: String,
    },
    /// The peer runs another version of UCX.
    #[error("{peer} runs UCX {theirs}, this host {ours}; use QUIC with it, or build both with the same UCX")]
    UcxVersion {
        /// The peer.
        peer: SocketAddr,
        /// The peer's version.
        theirs: String,
        /// The version of this host.
        ours: String,
    },
    /// The path of UCX to the peer broke or never came about, whether or not the peer lives.
    #[error(
        "the UCX path to {peer} is gone: {cause}; see that the peer runs and that the interfaces and ports of UCX are open, \
         or use QUIC"
    )]
    UcxLost {
        /// The peer.
        peer: SocketAddr,
        /// UCX's words.
        cause: String,
    },
    /// A frame was refused, on its way out or in.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// This host's own certificates are not usable.
    #[error(transparent)]
    Credentials(#[from] CertificateError),
}

impl TransportError {
    /// A stable word for metric labels and messages.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Bind { .. } => "bind",
            Self::Certificate { .. } => "certificate",
            Self::ProtocolVersion { .. } => "protocol_version",
            Self::Handshake { .. } => "handshake",
            Self::Unreachable { .. } => "unreachable",
            Self::NoAddress { .. } => "no_address",
            Self::NoWay { .. } => "no_way",
            Self::TimedOut { .. } => "timed_out",
            Self::Closed { .. } => "closed",
            Self::ChannelClosed { .. } => "channel_closed",
            Self::TransportClosed => "transport_closed",
            Self::Ucx { .. } => "ucx",
            Self::NoUcx { .. } => "no_ucx",
            Self::UcxVersion { .. } => "ucx_version",
            Self::UcxLost { .. } => "ucx_lost",
            Self::Frame(error) => error.code(),
            Self::Credentials(error) => error.code(),
        }
    }

    pub(crate) fn protocol_version(peer: SocketAddr) -> Self {
        Self::ProtocolVersion { peer, expected: SpokenVersions }
    }
}
