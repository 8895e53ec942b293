//! `[observability]` resolved: what is logged, and where spans go. Opens nothing.

use super::ClusterError;
use crate::cluster::file::{ClusterFile, LogFormat};

/// What is logged, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// Filter.
    pub filter: String,
    /// Format.
    pub format: LogFormat,
}

/// What is logged, and how.
pub(super) fn log(file: &ClusterFile) -> Log {
    Log { filter: file.observability.log.clone(), format: file.observability.log_format }
}

/// The collector of spans, if there is one.
pub(super) fn otlp_endpoint(file: &ClusterFile) -> Result<Option<String>, ClusterError> {
    let Some(url) = &file.observability.otlp_endpoint else { return Ok(None) };
    let plain = |byte: u8| byte.is_ascii_graphic() && !b"?#@\"<>".contains(&byte);
    let rest = url.strip_prefix("http://").filter(|rest| !rest.is_empty() && rest.bytes().all(plain));
    match rest {
        Some(_) => Ok(Some(url.trim_end_matches('/').to_owned())),
        None => Err(ClusterError::Value {
            key: "observability.otlp_endpoint",
            got: format!("{url:?}"),
            expected:
                "expected http://ADDRESS:PORT of a collector, without /v1/traces; beyond this machine through one that runs here"
                    .into(),
        }),
    }
}
