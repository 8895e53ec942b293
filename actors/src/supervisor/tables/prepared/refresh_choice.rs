//! What a question to a session gets anew. Chooses nothing.

use asterism_plan::Refresh;
use serde::{Deserialize, Serialize};

/// What a question gets anew, chosen while its session had a certain context.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RefreshChoice {
    /// Number of the context.
    pub context: u64,
    /// Its tokens, and the keys that they stand for.
    pub refresh: Refresh,
}

impl RefreshChoice {
    /// Bytes that it takes beside itself.
    pub fn bytes(&self) -> usize {
        let runs: usize = self.refresh.hidden.iter().map(|hidden| size_of_val(&hidden.runs[..])).sum();
        size_of_val(&self.refresh.shard.prefix[..]) + runs
    }
}
