//! What a check found: that all is well, or what to do. Looks at nothing.

use serde::Serialize;

/// How something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// The cluster works, slower or not for long.
    Warning,
    /// Something will not work.
    Error,
}

/// One look at one thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Judgment {
    /// What was looked at.
    pub what: String,
    /// How it is.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// What to do, where it is not as it should be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Judgment {
    pub(crate) fn ok(what: impl Into<String>, found: impl Into<String>) -> Self {
        Self { what: what.into(), verdict: Verdict::Ok, found: found.into(), remedy: None }
    }

    pub(crate) fn warning(what: impl Into<String>, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        let remedy = Some(remedy.into());
        Self { what: what.into(), verdict: Verdict::Warning, found: found.into(), remedy }
    }

    pub(crate) fn error(what: impl Into<String>, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { verdict: Verdict::Error, ..Self::warning(what, found, remedy) }
    }
}
