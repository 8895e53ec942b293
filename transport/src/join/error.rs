//! Why a node cannot join, or nobody can. It retries nothing.

use std::net::SocketAddr;

use thiserror::Error;

use super::message::Refusal;
use crate::certificates::CertificateError;

/// Why a node got no certificates, or a listener cannot give any.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum JoinError {
    /// The text is not a token.
    #[error("this is not a join token: {cause}; copy it whole, as it was printed")]
    Malformed {
        /// What is wrong with it.
        cause: &'static str,
    },
    /// The peer cannot prove that it has the key of the CA that the token names, or that the node trusts.
    #[error(
        "{address} does not prove that it is of this cluster, with the CA certificate of SHA-256 {expected}: {cause}; check \
         the address and this machine's clock, and that the token is of the cluster's present CA"
    )]
    WrongAuthority {
        /// The address asked.
        address: SocketAddr,
        /// Hash that was expected, hexadecimal.
        expected: String,
        /// What TLS objected to.
        cause: String,
    },
    /// No such token was made, or it was forgotten since.
    #[error("{address} does not know this token; make a new one where the CA's key is")]
    UnknownToken {
        /// The address asked.
        address: SocketAddr,
    },
    /// The listener does not take the certificate that the node showed.
    #[error(
        "{address} does not renew certificates of node {node:?}: {cause}; join with a new token, made where the CA's key is"
    )]
    CertificateRefused {
        /// The address asked.
        address: SocketAddr,
        /// The name in the certificate.
        node: String,
        /// What TLS objected to.
        cause: String,
    },
    /// The token was used before.
    #[error("this token was spent by node {node:?}; tokens work once: make a new one where the CA's key is")]
    SpentToken {
        /// Who used it.
        node: String,
    },
    /// The token is too old.
    #[error("this token expired {seconds} s ago; make a new one where the CA's key is")]
    ExpiredToken {
        /// For how long, by the listener's clock.
        seconds: u64,
    },
    /// The cluster's policy does not have the host on this node.
    #[error(
        "node {node:?} may not be host {host:?}; list the host under this node in the cluster file, or ask for less"
    )]
    HostNotAllowed {
        /// The node that asked.
        node: String,
        /// The host it asked for.
        host: String,
    },
    /// The node asks from elsewhere, for a name in use, or with another node's token.
    #[error("node {node:?} gets no certificates: {cause}")]
    NotYours {
        /// The node that asked.
        node: String,
        /// What stands against it.
        cause: String,
    },
    /// The request holds what no listener accepts.
    #[error("the join request is not acceptable: {cause}; run the same version of asterism on every node")]
    Request {
        /// What is wrong with it.
        cause: String,
    },
    /// The listener could not do its part; the token is unspent.
    #[error("the listener could not issue certificates: {cause}; mend that, then use the token again")]
    Unavailable {
        /// What failed there.
        cause: String,
    },
    /// Nobody answers, or not in time.
    #[error(
        "{address} cannot be reached for joining: {cause}; check the address, the firewall, and that it accepts joins"
    )]
    Unreachable {
        /// The address asked.
        address: SocketAddr,
        /// What was observed.
        cause: String,
    },
    /// The peer's answer is not one.
    #[error("{address} answered what is no join answer: {cause}; run the same version of asterism on every node")]
    Answer {
        /// The address asked.
        address: SocketAddr,
        /// What is wrong with it.
        cause: String,
    },
    /// The address to listen on cannot be had.
    #[error("cannot listen for joins on {address}: {cause}; choose a free address of this machine")]
    Bind {
        /// The address asked for.
        address: SocketAddr,
        /// The system's words.
        cause: String,
    },
    /// Tokens could not be stored.
    #[error("cannot store join tokens: {cause}")]
    Store {
        /// The caller's words.
        cause: String,
    },
    /// A certificate or key is not usable.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
}

impl JoinError {
    /// A stable word for metric labels and messages.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Malformed { .. } => "join_token_malformed",
            Self::WrongAuthority { .. } => "join_wrong_authority",
            Self::UnknownToken { .. } => "join_token_unknown",
            Self::CertificateRefused { .. } => "join_certificate_refused",
            Self::SpentToken { .. } => "join_token_spent",
            Self::ExpiredToken { .. } => "join_token_expired",
            Self::HostNotAllowed { .. } => "join_host_not_allowed",
            Self::NotYours { .. } => "join_not_yours",
            Self::Request { .. } => "join_request",
            Self::Unavailable { .. } => "join_unavailable",
            Self::Unreachable { .. } => "join_unreachable",
            Self::Answer { .. } => "join_answer",
            Self::Bind { .. } => "bind",
            Self::Store { .. } => "join_store",
            Self::Certificate(error) => error.code(),
        }
    }

    pub(super) fn refused(refusal: Refusal, address: SocketAddr, node: &str) -> Self {
        match refusal {
            Refusal::UnknownToken => Self::UnknownToken { address },
            Refusal::SpentToken { node } => Self::SpentToken { node },
            Refusal::ExpiredToken { seconds } => Self::ExpiredToken { seconds },
            Refusal::NotYours { cause } => Self::NotYours { node: node.into(), cause },
            Refusal::HostNotAllowed { host } => Self::HostNotAllowed { node: node.into(), host },
            Refusal::NotANode { member } => {
                let cause = format!("it showed the certificate of {member}, expected a node's of this cluster");
                Self::CertificateRefused { address, node: node.into(), cause }
            }
            Refusal::Request { cause } => Self::Request { cause },
            Refusal::Unavailable { cause } => Self::Unavailable { cause },
        }
    }
}
