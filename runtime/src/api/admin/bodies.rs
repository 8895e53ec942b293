//! Bodies of requests about hosts, sessions and joining that the API of jobs has no type for.

use std::path::PathBuf;

use asterism_actors::api::bounds;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `POST /api/v1/hosts/{name}/drain`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Drain {
    /// Seconds until what has not moved is encoded anew elsewhere; absent: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_s: Option<f64>,
}

/// `POST /api/v1/hosts/{name}/restart`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Restart {
    /// Seconds that it may take to give away what it has; absent: 60.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_s: Option<f64>,
}

/// `POST /api/v1/hosts/{name}/replace`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Replacement {
    /// The host that takes the place.
    pub spare: String,
}

/// `POST /api/v1/sessions/{name}/extend`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Extension {
    /// Seconds from now until the session ends.
    #[schemars(range(min = bounds::SHORTEST_S, max = bounds::LONGEST_REQUEST_TIME.as_secs_f64()))]
    pub ttl_s: f64,
}

/// `POST /api/v1/join-tokens`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Joining {
    /// The node that it is for, as the cluster file has it; or a new one, which brings hosts of its own.
    pub node: String,
    /// Seconds until the token is refused.
    pub ttl_s: f64,
}

/// A join token, and where it can be used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Token {
    /// The token: a secret.
    pub token: String,
    /// Address that gives certificates for it.
    pub join: String,
    /// Address at which the node's hosts then find the supervisor.
    pub supervisor: String,
    /// Seconds until it is refused.
    pub expires_s: f64,
    /// Whether no host is on the node yet: it brings its own.
    #[serde(default)]
    pub new_node: bool,
}

/// `POST /api/v1/config`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApplyConfig {
    /// The text of a cluster file.
    pub file: String,
    /// Nodes that joined with hosts of their own and are to go.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without: Vec<String>,
    /// Whether to say alone what it would change.
    #[serde(default)]
    pub dry_run: bool,
}

/// A copy of the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Copied {
    /// Where it is, on the supervisor's machine.
    pub path: PathBuf,
    /// Entries that it has.
    pub entries: usize,
}

/// The answer to who asked for the end.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Stopping {
    /// It comes.
    pub stopping: bool,
}
