//! What can be wrong with certificates and their files. It names the remedy; it repairs nothing.

use std::{fmt, io, path::PathBuf};

use thiserror::Error;

use super::Member;

/// Why certificates cannot be made, read or written.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CertificateError {
    /// A file cannot be read.
    #[error("cannot read {}: {cause}; make the cluster's certificates with `asterism cert init`", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's words.
        cause: String,
    },
    /// A file or folder cannot be written.
    #[error("cannot write {}: {cause}; choose a folder this user may write", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What kind of failure.
        kind: io::ErrorKind,
        /// The system's words.
        cause: String,
    },
    /// A CA is never overwritten: every certificate it issued would be worthless.
    #[error("{} exists already; remove it first if the cluster is to have a new CA", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// Others on this machine may read a private key.
    #[error(
        "{} is a private key that others may use (mode {mode:03o}, expected 600); run `chmod 600` on it, and make new \
         certificates with `asterism cert init` if anybody did", path.display()
    )]
    Exposed {
        /// The key file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// A file holds something else than it should.
    #[error("{} is not usable: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with its content.
        error: Box<CertificateError>,
    },
    /// A certificate or key is not what it should be.
    #[error("{what} is invalid: {cause}; make a new one with `asterism cert init`")]
    Invalid {
        /// `certificate`, `key`, `CA key` and so on.
        what: &'static str,
        /// What is wrong with it.
        cause: String,
    },
    /// A certificate that says nothing of which member of which cluster it is for.
    #[error(
        "the certificate of {name:?} does not say who of which cluster its holder is: expected a URI among its alternative \
         names; have it issued with URI:asterism://CLUSTER/ROLE/NAME, where ROLE is supervisor, node, context, query or spare"
    )]
    NoMember {
        /// Its common name.
        name: String,
    },
    /// A certificate for another member than the one that is to show it.
    #[error("the certificate is for {got}, expected {expected}; have one issued with URI:{expected}")]
    OtherMember {
        /// Who is to show it.
        expected: Member,
        /// Whom it is for.
        got: Member,
    },
    /// A name that does not fit into a certificate.
    #[error("{name:?} cannot stand in a certificate; use 1 to {max_bytes} letters, digits, '-', '_' and '.'")]
    Name {
        /// The host's or cluster's name.
        name: String,
        /// The longest name.
        max_bytes: usize,
    },
    /// A key or signature could not be made.
    #[error("cannot make a certificate: {cause}; check the system's random source")]
    Generate {
        /// The library's words.
        cause: String,
    },
}

impl CertificateError {
    /// A stable word for metric labels and messages.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Read { .. } => "certificate_read",
            Self::Write { .. } => "certificate_write",
            Self::Exists { .. } => "certificate_exists",
            Self::Exposed { .. } => "certificate_exposed",
            Self::File { error, .. } => error.code(),
            Self::Invalid { .. } => "certificate_invalid",
            Self::NoMember { .. } | Self::OtherMember { .. } => "certificate_member",
            Self::Name { .. } => "certificate_name",
            Self::Generate { .. } => "certificate_generate",
        }
    }

    pub(crate) fn invalid(what: &'static str, cause: impl fmt::Display) -> Self {
        Self::Invalid { what, cause: cause.to_string() }
    }

    pub(crate) fn generate(cause: rcgen::Error) -> Self {
        Self::Generate { cause: cause.to_string() }
    }
}
