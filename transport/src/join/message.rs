//! What a joining node and the listener say to each other: one rkyv archive each way, validated before it is read.

// The archived twins that rkyv derives carry no docs of their own.
#![allow(missing_docs)]

use rkyv::{Archive, Deserialize, Serialize, rancor, util::AlignedVec};

/// Longest request or answer, in bytes.
pub const MAX_JOIN_BYTES: usize = 64 << 10;
/// Most hosts of one request.
pub const MAX_JOIN_HOSTS: usize = 32;

/// What a node asks.
#[derive(Clone, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct JoinRequest {
    /// The token's secret.
    pub secret: [u8; 32],
    /// The node's name, as the cluster file has it.
    pub node: String,
    /// The hosts that are to run on it.
    pub hosts: Vec<WantedHost>,
}

/// What a node asks whose hosts the cluster does not know yet. Since it has an application protocol of its own, who knows nothing of it
/// refuses it in the handshake.
#[derive(Clone, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct JoinOffer {
    /// As for a node that is known.
    pub request: JoinRequest,
    /// What it offers, in words that the transport does not read.
    pub offer: String,
}

/// What a node asks that has certificates already; which node it is, the one that it shows in TLS says.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct RenewRequest {
    /// Its hosts, with new keys; without any it asks what is revoked alone.
    pub hosts: Vec<WantedHost>,
}

/// A host that wants a certificate.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct WantedHost {
    /// Host name, as the cluster file has it.
    pub name: String,
    /// Its public key: a point of P-256, uncompressed (SEC 1, section 2.3.3).
    pub public_key: Vec<u8>,
}

/// What the listener answers.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum JoinAnswer {
    /// The token was good and is spent, or the certificate shown was.
    Issued {
        /// The CA's certificate, PEM.
        ca: String,
        /// A certificate a host, PEM, in the order of the request.
        certificates: Vec<String>,
        /// Serial numbers of certificates that count no more.
        revoked: Vec<String>,
    },
    /// No certificates.
    Refused(Refusal),
}

/// Why there are no certificates.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum Refusal {
    /// No such token.
    UnknownToken,
    /// The token was used.
    SpentToken {
        /// By whom.
        node: String,
    },
    /// The token is too old.
    ExpiredToken {
        /// For how long.
        seconds: u64,
    },
    /// Not a host of this node.
    HostNotAllowed {
        /// Its name.
        host: String,
    },
    /// Neither from there nor now, or by this token.
    NotYours {
        /// Why.
        cause: String,
    },
    /// The certificate that was shown is no node's of this cluster.
    NotANode {
        /// Whose it is.
        member: String,
    },
    /// The request is not acceptable.
    Request {
        /// Why.
        cause: String,
    },
    /// The listener failed; the token is unspent.
    Unavailable {
        /// Why.
        cause: String,
    },
}

macro_rules! archived {
    ($($type:ty),+) => {$(
        impl $type {
            /// The message as it travels.
            pub fn to_bytes(&self) -> AlignedVec {
                rkyv::to_bytes::<rancor::Error>(self).expect("plain values archive without failing")
            }

            /// Reads what a peer sent, validating it first; the error says what is wrong.
            pub fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
                if bytes.len() > MAX_JOIN_BYTES {
                    return Err(format!("{} bytes, but at most {MAX_JOIN_BYTES} are read", bytes.len()));
                }
                let mut aligned = AlignedVec::<16>::with_capacity(bytes.len());
                aligned.extend_from_slice(bytes);
                rkyv::from_bytes::<Self, rancor::Error>(&aligned).map_err(|cause| cause.to_string())
            }
        }
    )+};
}

archived!(JoinRequest, JoinOffer, RenewRequest, JoinAnswer);
