//! What makes a request the same request: a digest of all of it but its id. And ids that nobody guesses.

use std::io::{self, Write};

use ring::{
    digest::{Context, SHA256},
    rand::{SecureRandom, SystemRandom},
};
use serde::{Deserialize, Serialize};

use crate::api::JobRequest;

/// The digest of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// Of a request, whatever its id is.
    pub fn of(request: &JobRequest) -> Self {
        let mut digest = Digest(Context::new(&SHA256));
        serde_json::to_writer(&mut digest, request).expect("a request is plain values, and a digest takes all");
        Self(digest.0.finish().as_ref().try_into().expect("SHA-256 has 32 bytes"))
    }
}

struct Digest(Context);

impl Write for Digest {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Random bits of the operating system.
pub fn random() -> u128 {
    let mut bytes = [0; 16];
    SystemRandom::new().fill(&mut bytes).expect("the operating system has random bits once it runs programs");
    u128::from_ne_bytes(bytes)
}
