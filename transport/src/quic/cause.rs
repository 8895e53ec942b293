//! What a QUIC error means to a host: certificates, version, silence, or words of the peer.

use std::net::SocketAddr;

use quinn::{ConnectionError, VarInt};

use crate::TransportError;

/// Closes a connection whose peer has a good certificate that says that it is nobody of this cluster.
pub(super) const WRONG_IDENTITY: VarInt = VarInt::from_u32(2);
/// The label under which that is counted.
pub(super) const IDENTITY: &str = "identity";
/// The label of a handshake that came to nothing for no better-known reason.
pub(super) const HANDSHAKE: &str = "handshake";
/// Closes a connection that was to vouch for a link of UCX, at a host that has none; the words say why.
pub(super) const NO_UCX: VarInt = VarInt::from_u32(3);
/// Closes a connection that vouched for a link of UCX that broke; the words say how.
pub(crate) const UCX_LOST: VarInt = VarInt::from_u32(4);
/// QUIC carries a TLS alert as this plus the alert's number (RFC 9001, section 4.8).
const CRYPTO_ERROR: u64 = 0x100;
const NO_APPLICATION_PROTOCOL: u64 = 120;
/// Alerts about certificates (RFC 8446, section 6.2): bad, unsupported, revoked, expired, unknown certificate, unknown CA,
/// access denied, bad signature, certificate required.
const CERTIFICATE_ALERTS: [u64; 9] = [42, 43, 44, 45, 46, 48, 49, 51, 116];

/// Why a connection did not come about.
pub(crate) fn of_handshake(error: ConnectionError, peer: SocketAddr) -> TransportError {
    match (rejection(&error), error) {
        ("certificate", error) => TransportError::Certificate { peer, cause: words(error) },
        ("protocol_version", _) => TransportError::protocol_version(peer),
        (_, ConnectionError::TimedOut) => {
            TransportError::Unreachable { address: peer, cause: "no answer within the idle timeout".into() }
        }
        (_, ConnectionError::ApplicationClosed(close)) if close.error_code == WRONG_IDENTITY => {
            TransportError::Certificate { peer, cause: String::from_utf8_lossy(&close.reason).into_owned() }
        }
        (_, ConnectionError::ApplicationClosed(close)) if close.error_code == NO_UCX => {
            TransportError::NoUcx { peer, cause: String::from_utf8_lossy(&close.reason).into_owned() }
        }
        (_, ConnectionError::ApplicationClosed(close)) if close.error_code == UCX_LOST => {
            TransportError::UcxLost { peer, cause: String::from_utf8_lossy(&close.reason).into_owned() }
        }
        (_, ConnectionError::ApplicationClosed(close)) => {
            TransportError::Closed { peer, reason: String::from_utf8_lossy(&close.reason).into_owned() }
        }
        (_, ConnectionError::LocallyClosed) => TransportError::TransportClosed,
        (_, error) => TransportError::Handshake { peer, cause: words(error) },
    }
}

/// Why a connection ended. `closing` is what this side gave as its reason, if it closed.
pub(crate) fn of_loss(error: ConnectionError, peer: SocketAddr, closing: &str) -> TransportError {
    match error {
        ConnectionError::TimedOut => TransportError::TimedOut { peer },
        ConnectionError::LocallyClosed => TransportError::Closed { peer, reason: closing.into() },
        ConnectionError::Reset => TransportError::Closed { peer, reason: "the peer was restarted".into() },
        ConnectionError::ApplicationClosed(close) if close.reason.is_empty() => {
            TransportError::Closed { peer, reason: "the peer dropped the link".into() }
        }
        error => of_handshake(error, peer),
    }
}

/// The label under which a failed handshake is counted.
pub(crate) fn rejection(error: &ConnectionError) -> &'static str {
    match alert(error) {
        Some(NO_APPLICATION_PROTOCOL) => "protocol_version",
        Some(alert) if CERTIFICATE_ALERTS.contains(&alert) => "certificate",
        _ if *error == ConnectionError::VersionMismatch => "protocol_version",
        _ => HANDSHAKE,
    }
}

/// The TLS alert that either side raised.
fn alert(error: &ConnectionError) -> Option<u64> {
    let code = match error {
        ConnectionError::TransportError(error) => error.code,
        ConnectionError::ConnectionClosed(close) => close.error_code,
        _ => return None,
    };
    u64::from(code).checked_sub(CRYPTO_ERROR).filter(|alert| *alert < 0x100)
}

/// The part of the error that says what happened, without the codes around it.
pub(crate) fn words(error: ConnectionError) -> String {
    let stated = match &error {
        ConnectionError::TransportError(error) => error.reason.clone(),
        ConnectionError::ConnectionClosed(close) => String::from_utf8_lossy(&close.reason).into_owned(),
        _ => String::new(),
    };
    if stated.is_empty() { error.to_string() } else { stated }
}

pub(crate) const TRANSPORT_CLOSED: &str = "the transport was closed";

/// Closes a lane with its link.
pub(crate) const LANE_CLOSED: VarInt = VarInt::from_u32(0);
