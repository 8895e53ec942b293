//! What opens a context: a code that the supervisor makes from a secret of its journal and gives to those only whom it orders
//! to encode or to ask that context. Sends nothing.

use std::fmt;

use ring::hmac;
use rkyv::{Archive, Deserialize, Serialize};
use subtle::ConstantTimeEq;

const BYTES: usize = 32;

/// The cluster's secret: the same for the life of the journal, and never sent.
#[derive(Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Secret([u8; BYTES]);

impl Secret {
    /// These bytes, which nobody can guess.
    pub fn new(bytes: [u8; BYTES]) -> Self {
        Self(bytes)
    }

    /// The ticket of a context: HMAC-SHA-256 of its number (RFC 2104).
    pub fn ticket(&self, context: u64) -> Ticket {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.0);
        let message = [b"context ".as_slice(), &context.to_le_bytes()].concat();
        Ticket(hmac::sign(&key, &message).as_ref().try_into().expect("SHA-256 has 32 bytes"))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Secret(..)")
    }
}

/// Lets its bearer read a context, and pass parcels for it.
#[derive(Clone, Copy, Default, Archive, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the archived twin that rkyv derives carries no docs of its own")]
pub struct Ticket([u8; BYTES]);

impl PartialEq for Ticket {
    /// Takes the same time wherever the two differ.
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Ticket(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_of_one_secret_and_one_context() {
        let (ours, theirs) = (Secret::new([1; BYTES]), Secret::new([2; BYTES]));
        assert_eq!(ours.ticket(7), ours.ticket(7));
        assert_ne!(ours.ticket(7), ours.ticket(8));
        assert_ne!(ours.ticket(7), theirs.ticket(7));
        assert_ne!(ours.ticket(7), Ticket::default());
        assert_eq!(format!("{:?} {:?}", ours, ours.ticket(7)), "Secret(..) Ticket(..)");
    }
}
