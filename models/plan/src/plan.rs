//! The plan: phase-1 inputs in context order, what KV is kept, and where the query starts.

use serde::{Deserialize, Serialize};

use crate::PlanError;

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

impl Plan {
    /// Whether this is a plan: shards in block order on hosts there are, one position a token, and kept KV that is the
    /// context, each token once and in order, with the query behind it.
    ///
    /// # Errors
    /// [`PlanError::Broken`] with the first quantity that is not what it must be.
    pub fn check(&self) -> Result<(), PlanError> {
        let mut next = 0;
        for (block, shard) in self.shards.iter().enumerate() {
            let broken = |what, expected, got| Err(PlanError::Broken { what, block, expected, got });
            if shard.block != block {
                return broken("block number", block, shard.block);
            }
            if shard.host >= self.hosts {
                return broken("host number", self.hosts.saturating_sub(1), shard.host);
            }
            if shard.position_ids.len() != shard.input_ids.len() {
                return broken("number of position ids", shard.input_ids.len(), shard.position_ids.len());
            }
            if shard.keep_from >= shard.input_ids.len() {
                return broken("first kept row", shard.input_ids.len().saturating_sub(1), shard.keep_from);
            }
            for &position in &shard.position_ids[shard.keep_from..] {
                if position as usize != next {
                    return broken("position of a kept token", next, position as usize);
                }
                next += 1;
            }
        }
        let whole = |what, expected, got| Err(PlanError::Broken { what, block: self.shards.len(), expected, got });
        if next == 0 || next != self.context_tokens {
            return whole("number of kept tokens up to the end", self.context_tokens, next);
        }
        if self.query_start as usize != next {
            return whole("first query position", next, self.query_start as usize);
        }
        Ok(())
    }

    /// Context tokens kept on each host, idle ones included.
    pub fn kept_per_host(&self) -> Vec<usize> {
        let mut kept = vec![0; self.hosts];
        for shard in &self.shards {
            kept[shard.host] += shard.kept_tokens();
        }
        kept
    }
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
pub enum LocalAttention {
    /// Every row sees itself and all rows before it.
    Causal,
}

/// What shards send each other between the layers of phase 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Exchange {
    /// Nothing: a shard depends on its input alone and can be encoded anywhere, again.
    None,
}
