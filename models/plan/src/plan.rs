//! The plan: phase-1 inputs in context order, what KV is kept, and where the query starts.

use serde::{Deserialize, Serialize};

/// What a method plans for. Token ids only: methods that need scores computed at run time put the rule in the plan.
#[derive(Clone, Copy, Debug)]
pub struct PlanRequest<'a> {
    /// Context token ids, BOS included.
    pub context: &'a [u32],
    /// Query token ids; empty when the query is not known yet (a session).
    pub query: &'a [u32],
    /// Context hosts to deal shards to, at least 1. Shards do not depend on it for Star.
    pub hosts: usize,
}

/// Phase 1 and phase 2 of one job as a value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Context tokens: the sum of kept rows over all shards.
    pub context_tokens: usize,
    /// Context hosts that shards are dealt to; some may have none.
    pub hosts: usize,
    /// Phase-1 forward passes in context order, which is also the merge order of phase 2.
    pub shards: Vec<Shard>,
    /// What passes between shards within a layer of phase 1.
    pub exchange: Exchange,
    /// Position id of the first query token; generated tokens continue from there.
    pub query_start: u32,
}

/// One phase-1 forward pass.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Shard {
    /// Index of the block in the context; also the shard's place in the merge.
    pub block: usize,
    /// Logical context host, `0..plan.hosts`.
    pub host: usize,
    /// Assembled input: prefix (anchor, or sink and summaries), then the block.
    pub input_ids: Vec<u32>,
    /// Position id of each input token.
    pub position_ids: Vec<u32>,
    /// Rows `keep_from..` keep their KV; the rows before are prefix.
    pub keep_from: usize,
    /// Which keys a row of this pass sees. Causality is by index in the assembled input, never by position id.
    pub attention: LocalAttention,
}

impl Shard {
    /// Tokens whose KV is kept.
    pub fn kept_tokens(&self) -> usize {
        self.input_ids.len() - self.keep_from
    }
}

/// Attention inside one phase-1 pass.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum LocalAttention {
    /// Every row sees itself and all rows before it.
    Causal,
}

/// What shards send each other between the layers of phase 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Exchange {
    /// Nothing: a shard depends on its input alone and can be encoded anywhere, again.
    None,
}
