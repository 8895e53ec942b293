//! What links between hosts were measured to take, as clients see it: plain values.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the measuring of links stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LinksState {
    /// Nobody asked for it.
    #[default]
    None,
    /// Hosts measure, one after another.
    Running,
    /// All that could be measured was.
    Done,
}

/// A link between two hosts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LinkSpeed {
    /// The host that opened it.
    pub from: String,
    /// The other.
    pub to: String,
    /// What carries it.
    pub transport: String,
    /// Better ways that it does not take, each with the cause; absent where there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// Seconds of 16 KiB there and back, at the median.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round_trip_s: Option<f64>,
    /// Bytes one way in a second, in frames of 1 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_s: Option<f64>,
    /// Why it was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The links of a cluster, as measured last.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LinksReport {
    /// How it stands.
    pub state: LinksState,
    /// By the host that opened them.
    pub links: Vec<LinkSpeed>,
}
