//! Bodies of requests about hosts and sessions that the API of jobs has no type for.

use serde::{Deserialize, Serialize};

/// `POST /api/v1/hosts/{name}/drain`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drain {
    /// Seconds until what has not moved is encoded anew elsewhere; absent: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_s: Option<f64>,
}

/// `POST /api/v1/hosts/{name}/replace`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Replacement {
    /// The host that takes the place.
    pub spare: String,
}

/// `POST /api/v1/sessions/{name}/extend`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Extension {
    /// Seconds from now until the session ends.
    pub ttl_s: f64,
}
