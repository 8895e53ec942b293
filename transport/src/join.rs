//! How a node without certificates gets them: a one-time token, handed over by whoever set up the cluster, against
//! certificates of the cluster's CA; and how it gets new ones before those end. It decides neither who gets tokens nor which
//! hosts a node may be.
//!
//! A [`JoinToken`] names the CA by the SHA-256 of its certificate and holds a random secret. The node connects to a
//! [`JoinListener`], which proves by a certificate for [`JOIN_DNS_NAME`] that it has the CA's key; no host's certificate
//! carries that name, so a host cannot collect tokens. The node sends secret, names and public keys, and gets
//! certificates; private keys never travel. To renew, it shows the certificate that it has instead of a token: TLS checks
//! that it is of this CA and not over, and its name says which node asks. Every message is bounded in size and time.

mod client;
mod error;
mod listener;
mod message;
mod tls;
mod token;

pub use crate::certificates::JOIN_DNS_NAME;
pub use client::{JoinAddress, join, join_offering, renew, revoked};
pub use error::JoinError;
pub use listener::{Asked, JoinConfig, JoinListener, JoinRules};
pub use message::{
    JoinAnswer, JoinOffer, JoinRequest, MAX_JOIN_BYTES, MAX_JOIN_HOSTS, Refusal, RenewRequest, WantedHost,
};
pub use token::{JoinToken, TokenRecord};
