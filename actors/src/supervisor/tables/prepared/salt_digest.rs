//! The salt of a context, as the supervisor and its journal keep it: a digest, as a salt may be a secret. Bounds no text.

use std::fmt;

use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

/// The SHA-256 of a salt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SaltDigest([u8; 32]);

impl SaltDigest {
    /// Of the text that a request has.
    pub fn of(salt: &str) -> Self {
        Self(digest(&SHA256, salt.as_bytes()).as_ref().try_into().expect("SHA-256 has 32 bytes"))
    }
}

impl fmt::Display for SaltDigest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}
