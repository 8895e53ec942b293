//! Why something of a hub is not to be had.

use std::{io, path::PathBuf, time::Duration};

use crate::error::{CliError, Exit};

/// Why something of a hub is not to be had.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// It wants to know who asks, or does not let her.
    #[error(
        "the hub refuses {what} (HTTP {status}): it is private or gated, or there is no such model, or the token is not right"
    )]
    Refused {
        /// What was asked for.
        what: String,
        /// Its status.
        status: u16,
    },
    /// There is no such thing.
    #[error("the hub has no {what} (HTTP 404)")]
    NotFound {
        /// What was asked for.
        what: String,
    },
    /// It is asked too often.
    #[error("the hub is asked too often (HTTP 429 for {what}); {}", wait(*.asked))]
    Limited {
        /// What was asked for.
        what: String,
        /// How long it asks to wait.
        asked: Option<Duration>,
    },
    /// It answers with something else.
    #[error("the hub answers {what} with HTTP {status}")]
    Status {
        /// What was asked for.
        what: String,
        /// Its status.
        status: u16,
        /// How long it asks to wait.
        asked: Option<Duration>,
    },
    /// Nobody answers.
    #[error("{what} cannot be fetched: {cause}")]
    Unreachable {
        /// What was asked for.
        what: String,
        /// What happened.
        cause: String,
        /// Whether it may be otherwise soon.
        passes: bool,
    },
    /// It answers, but not as a hub does.
    #[error("the hub's answer about {what} cannot be used: {cause}")]
    Answer {
        /// What was asked for.
        what: String,
        /// What is wrong with it.
        cause: String,
    },
    /// A transfer ended too soon, again and again.
    #[error("{file}: the transfer ended after {got} of {expected} bytes, {tries} tries in a row: {cause}")]
    Cut {
        /// The file.
        file: String,
        /// Bytes that are here.
        got: u64,
        /// Bytes that it has.
        expected: u64,
        /// How often it was tried.
        tries: u32,
        /// What happened last.
        cause: String,
    },
    /// What came is something else than was promised.
    #[error("{file}: expected {kind} {expected}, got {got}; what was fetched is thrown away")]
    Hash {
        /// The file.
        file: String,
        /// Which hash.
        kind: &'static str,
        /// As the hub has it.
        expected: String,
        /// Of what came.
        got: String,
    },
    /// The disk has no room.
    #[error("{path}: {needed} bytes are needed, {free} are free")]
    NoRoom {
        /// The cache.
        path: PathBuf,
        /// Bytes to be fetched.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// The disk does not do what it should.
    #[error("{path}: {cause}")]
    Disk {
        /// The file.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// The repository has nothing that is read here, or more than one thing.
    #[error("{repository} has no {wanted}: it has {has}")]
    Nothing {
        /// The repository.
        repository: String,
        /// What was looked for.
        wanted: String,
        /// What there is.
        has: String,
    },
    /// The cache has no such model.
    #[error("{name} is not in the hub's cache {root}, which has {has}")]
    NotCached {
        /// The model.
        name: String,
        /// The cache.
        root: PathBuf,
        /// What it has.
        has: String,
    },
    /// Somebody fetches what is to be removed.
    #[error("{name} is being fetched or removed by another process, which holds {lock}: nothing is removed")]
    InUse {
        /// The model.
        name: String,
        /// The file that is locked.
        lock: PathBuf,
    },
    /// Nobody says where the cache is.
    #[error("there is no folder for models: HF_HUB_CACHE, HF_HOME and HOME are not set")]
    NoCache,
    /// Something to be trusted, or a token, cannot be read.
    #[error("{0}")]
    Setup(String),
}

impl HubError {
    /// A short, stable name.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Refused { .. } => "hub_refused",
            Self::NotFound { .. } => "hub_not_found",
            Self::Limited { .. } => "hub_limited",
            Self::Status { .. } => "hub_status",
            Self::Unreachable { .. } => "hub_unreachable",
            Self::Answer { .. } => "hub_answer",
            Self::Cut { .. } => "hub_cut",
            Self::Hash { .. } => "hub_hash",
            Self::NoRoom { .. } => "hub_no_room",
            Self::Disk { .. } => "hub_disk",
            Self::Nothing { .. } => "hub_nothing",
            Self::NotCached { .. } => "hub_not_cached",
            Self::InUse { .. } => "hub_in_use",
            Self::NoCache => "hub_no_cache",
            Self::Setup(_) => "hub_setup",
        }
    }

    /// What may be otherwise soon, and why.
    pub(super) fn passing(&self) -> Option<Passing> {
        let (what, cause, asked) = match self {
            Self::Limited { what, asked } => (what, "HTTP 429, it is asked too often".to_owned(), *asked),
            Self::Status { what, status: status @ (408 | 500..), asked } => (what, format!("HTTP {status}"), *asked),
            Self::Unreachable { what, cause, passes: true } => (what, cause.clone(), None),
            _ => return None,
        };
        Some(Passing { what: what.clone(), cause, asked })
    }

    pub(super) fn disk(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |cause| Self::Disk { path, cause }
    }
}

/// What passes by itself.
pub(super) struct Passing {
    /// What was asked for.
    pub what: String,
    /// What happened.
    pub cause: String,
    /// How long the hub asks to wait.
    pub asked: Option<Duration>,
}

fn wait(asked: Option<Duration>) -> String {
    match asked {
        Some(asked) => format!("it asks to wait {} s", asked.as_secs()),
        None => "it does not say how long to wait".to_owned(),
    }
}

impl From<HubError> for CliError {
    fn from(error: HubError) -> Self {
        let pull;
        let (exit, hint) = match &error {
            HubError::NotCached { name, .. } => {
                pull = format!("`asterism model pull {name}` fetches it");
                (Exit::NotFound, pull.as_str())
            }
            HubError::Refused { .. } => (
                Exit::Authentication,
                "accept the model's terms on the hub, and name a file with your token in HF_TOKEN_PATH or with --hub-token-file",
            ),
            HubError::NotFound { .. } => {
                (Exit::NotFound, "look the name up: ORG/NAME, ORG/NAME:FILE, ORG/NAME@REVISION")
            }
            HubError::Nothing { .. } => (Exit::NotFound, "name one of its files: ORG/NAME:FILE"),
            HubError::Limited { .. } => (
                Exit::Unreachable,
                "pull again in some minutes: it goes on where it ended; who names a token (HF_TOKEN_PATH) may ask more often",
            ),
            HubError::Status { status: 500.., .. } => {
                (Exit::Unreachable, "pull again later: the hub fails to answer; HF_ENDPOINT names another")
            }
            HubError::Unreachable { .. } | HubError::Status { .. } => {
                (Exit::Unreachable, "see that the hub can be reached; HF_ENDPOINT names another")
            }
            HubError::InUse { .. } => {
                (Exit::NotFound, "wait for the pull that fetches it or stop it, then remove it again")
            }
            HubError::Cut { .. } => (Exit::Unreachable, "pull again: it goes on where it ended"),
            HubError::Hash { .. } => (Exit::JobFailed, "pull again; if it stays so, what the hub hands out is damaged"),
            HubError::NoRoom { .. } => (Exit::Capacity, "free some space, or name another disk in HF_HUB_CACHE"),
            HubError::Disk { cause, .. } if cause.kind() == io::ErrorKind::StorageFull => {
                (Exit::Capacity, "free some space, then pull again: it goes on where it ended")
            }
            HubError::Disk { .. } => {
                (Exit::Usage, "see that the folder can be written, or name another in HF_HUB_CACHE")
            }
            HubError::Answer { .. } => (Exit::Unreachable, "HF_ENDPOINT has to name a hub"),
            HubError::NoCache => (Exit::Usage, "set HF_HUB_CACHE to a folder"),
            HubError::Setup(_) => (Exit::Usage, "correct what is named"),
        };
        Self::new(exit, &error).hint(hint)
    }
}
