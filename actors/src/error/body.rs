//! An error as clients see it: plain values. Which errors there are is for its parent to say.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An error as a client sees it: stable code, one message that says what, where, expected, got and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorBody {
    /// One line or paragraph for a person.
    pub message: String,
    /// Stable code such as `host_lost`.
    pub code: String,
    /// The request field at fault, if one is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub param: Option<String>,
}
