//! `[observability]` as typed: what is logged, and where spans go.

use serde::{Deserialize, Serialize};

/// `[observability]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ObservabilitySection {
    /// Log filter such as `info` or `warn,asterism_actors=debug`.
    pub log: String,
    /// Log lines as text or JSON.
    pub log_format: LogFormat,
    /// Collector that spans go to by OTLP over HTTP, such as `http://127.0.0.1:4318`. Absent: no spans are made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub otlp_endpoint: Option<String>,
}

/// Log lines as text or JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One object a line.
    Json,
}

impl Default for ObservabilitySection {
    fn default() -> Self {
        Self { log: "info".into(), log_format: LogFormat::Text, otlp_endpoint: None }
    }
}
