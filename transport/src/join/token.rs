//! Tokens, and the book of those that were made: which are known, unspent and fresh. Reads no clock and no file.

use std::{
    fmt::{self, Write},
    str::FromStr,
    time::{Duration, SystemTime},
};

use ring::{
    digest::{SHA256, digest},
    rand::{SecureRandom, SystemRandom},
};
use subtle::ConstantTimeEq;

use super::{error::JoinError, message::Refusal};
use crate::certificates::{self, CertificateError};

/// What a token's text starts with; the number is its format's.
const PREFIX: &str = "asterism-join-1";

/// Lets one node join once. Whoever holds its text can use it, so hand it over as you would a password.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    pub(super) authority: [u8; 32],
    pub(super) secret: [u8; 32],
}

impl JoinToken {
    /// A new token for the cluster with this CA certificate (PEM). It works once a listener knows its [`Self::record`].
    pub fn create(ca_certificate: &str) -> Result<Self, JoinError> {
        let mut secret = [0; 32];
        SystemRandom::new()
            .fill(&mut secret)
            .map_err(|_| CertificateError::Generate { cause: "the system gives no random numbers".into() })?;
        Ok(Self { authority: authority_hash(ca_certificate)?, secret })
    }

    /// What the listener keeps of the token: enough to know it again, not enough to use it.
    pub fn record(&self, expires: SystemTime) -> TokenRecord {
        TokenRecord { hash: sha256(&self.secret), node: None, expires, spent_by: None }
    }

    /// Whether it is of the cluster with this CA certificate (PEM).
    pub fn is_of(&self, ca_certificate: &str) -> bool {
        authority_hash(ca_certificate).is_ok_and(|hash| hash == self.authority)
    }

    /// The token as text: `asterism-join-1.<SHA-256 of the CA certificate>.<secret>`.
    pub fn reveal(&self) -> String {
        format!("{PREFIX}.{}.{}", hex(&self.authority), hex(&self.secret))
    }
}

impl FromStr for JoinToken {
    type Err = JoinError;

    fn from_str(text: &str) -> Result<Self, JoinError> {
        let malformed = |cause| JoinError::Malformed { cause };
        let parts: Vec<&str> = text.trim().split('.').collect();
        let [prefix, authority, secret] = parts[..] else {
            return Err(malformed("it should have three parts with dots between"));
        };
        if prefix != PREFIX {
            return Err(malformed("it should start with `asterism-join-1.`"));
        }
        let bytes =
            |part| unhex(part).ok_or_else(|| malformed("each part after the first should be 64 hexadecimal digits"));
        Ok(Self { authority: bytes(authority)?, secret: bytes(secret)? })
    }
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("JoinToken").field("authority", &hex(&self.authority)).finish_non_exhaustive()
    }
}

/// What is kept of a token where it was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRecord {
    /// SHA-256 of its secret.
    pub hash: [u8; 32],
    /// The node that it is for; any where there is none.
    pub node: Option<String>,
    /// From when on it is refused.
    pub expires: SystemTime,
    /// The node that used it.
    pub spent_by: Option<String>,
}

impl TokenRecord {
    /// For how long it has been too old at `now`, if it has.
    fn overdue(&self, now: SystemTime) -> Option<Duration> {
        now.duration_since(self.expires).ok()
    }
}

/// The tokens that were made.
pub(super) struct TokenBook {
    pub records: Vec<TokenRecord>,
}

impl TokenBook {
    /// The place of the token with this secret, if the node may spend it at `now`. Takes the same time for every secret that
    /// belongs to none.
    pub(super) fn find(&self, (secret, asking): (&[u8; 32], &str), now: SystemTime) -> Result<usize, Refusal> {
        let hash = sha256(secret);
        let mut found = None;
        for (place, record) in self.records.iter().enumerate() {
            if record.hash.ct_eq(&hash).into() {
                found = Some(place);
            }
        }
        let place = found.ok_or(Refusal::UnknownToken)?;
        let record = &self.records[place];
        if let Some(node) = &record.spent_by {
            return Err(Refusal::SpentToken { node: node.clone() });
        }
        if let Some(overdue) = record.overdue(now) {
            return Err(Refusal::ExpiredToken { seconds: overdue.as_secs() });
        }
        match &record.node {
            Some(node) if node != asking => Err(Refusal::NotYours { cause: format!("the token is for node {node}") }),
            _ => Ok(place),
        }
    }

    /// Drops tokens that have been too old for longer than `grace`, spent or not.
    pub(super) fn forget(&mut self, now: SystemTime, grace: Duration) {
        self.records.retain(|record| record.overdue(now).is_none_or(|overdue| overdue <= grace));
    }
}

/// SHA-256 of each certificate of a PEM text.
pub(super) fn authority_hashes(ca_certificates: &str) -> Result<Vec<[u8; 32]>, CertificateError> {
    Ok(certificates::certificate_chain(ca_certificates)?.iter().map(|certificate| sha256(certificate)).collect())
}

/// SHA-256 of the first certificate of a PEM text.
pub(super) fn authority_hash(ca_certificate: &str) -> Result<[u8; 32], CertificateError> {
    Ok(sha256(&certificates::certificate_chain(ca_certificate)?[0]))
}

pub(super) fn sha256(bytes: &[u8]) -> [u8; 32] {
    digest(&SHA256, bytes).as_ref().try_into().expect("SHA-256 has 32 bytes")
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes everything");
        text
    })
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    let digits = text.chars().map(|digit| digit.to_digit(16)).collect::<Option<Vec<_>>>()?;
    let bytes: Vec<u8> = digits.chunks_exact(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect();
    if digits.len() == 64 { bytes.try_into().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> JoinToken {
        JoinToken { authority: [0xa5; 32], secret: [7; 32] }
    }

    #[test]
    fn a_token_is_read_back_from_its_text_only() {
        let text = token().reveal();
        assert_eq!(text.parse(), Ok(token()));
        assert_eq!(format!(" {text}\n").parse(), Ok(token()), "as it is pasted");
        assert!(!format!("{:?}", token()).contains("0707"), "secrets stay out of logs");
        for wrong in ["", "a.b.c", &text[1..], &text[..text.len() - 1], &text.replace("a5", "g5"), &format!("{text}.")]
        {
            let error = wrong.parse::<JoinToken>().expect_err("it is damaged");
            assert_eq!(error.code(), "join_token_malformed");
        }
    }

    #[test]
    fn a_token_works_once_and_not_for_ever() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let mut book = TokenBook { records: vec![token().record(at(100))] };
        assert_eq!(book.find((&[8; 32], "node-2"), at(50)), Err(Refusal::UnknownToken));
        assert_eq!(book.find((&[7; 32], "node-2"), at(99)), Ok(0));
        assert_eq!(book.find((&[7; 32], "node-2"), at(130)), Err(Refusal::ExpiredToken { seconds: 30 }));
        book.records[0].node = Some("node-1".into());
        let cause = "the token is for node node-1".into();
        assert_eq!(book.find((&[7; 32], "node-2"), at(99)), Err(Refusal::NotYours { cause }));
        assert_eq!(book.find((&[7; 32], "node-1"), at(99)), Ok(0));
        book.records[0].spent_by = Some("node-1".into());
        assert_eq!(book.find((&[7; 32], "node-2"), at(130)), Err(Refusal::SpentToken { node: "node-1".into() }));
        book.forget(at(200), Duration::from_secs(100));
        assert_eq!(book.records.len(), 1);
        book.forget(at(201), Duration::from_secs(100));
        assert_eq!(book.records.len(), 0);
    }
}
