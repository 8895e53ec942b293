//! How a session is, as a plain value.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How a session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SessionState {
    /// Its context waits for its turn or is being encoded.
    Encoding,
    /// Questions are answered at once.
    Ready,
    /// Shards of a lost host are encoded anew; questions wait.
    Recovering,
    /// Its context could not be encoded.
    Failed,
}
