//! Where a job's seconds went, as clients see it: plain values.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Seconds spent, host by host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Timings {
    /// Submission to the start of work.
    pub queue_s: f64,
    /// Phase 1, wall clock.
    pub encode_s: f64,
    /// Phase 2's query step, wall clock: end of phase 1 to the first token.
    pub query_s: f64,
    /// Phase 2's decoding, wall clock: first token to the last.
    pub decode_s: f64,
    /// Submission to the end.
    pub total_s: f64,
    /// Per context host.
    pub hosts: Vec<HostTiming>,
}

/// What one context host did for a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HostTiming {
    /// Host name.
    pub host: String,
    /// Shards it encoded.
    pub shards: usize,
    /// Tokens it ran through the model in phase 1, prefixes included.
    pub encoded_tokens: usize,
    /// Tokens of blocks that it did not encode, since it held the same already.
    #[serde(default)]
    pub cached_tokens: usize,
    /// Context tokens whose KV it keeps.
    pub kept_tokens: usize,
    /// Bytes of KV it keeps.
    pub kv_bytes: u64,
    /// Seconds of phase 1 on this host.
    pub encode_s: f64,
    /// (row, key) pairs that went through its softmaxes in phase 1, over all query heads and computed layers.
    pub attention_pairs: u64,
    /// Bytes of tensors it received from other context hosts in phase 1.
    pub exchange_bytes: u64,
}
