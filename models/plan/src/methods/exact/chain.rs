//! Exact causal attention that goes on where it stopped: blocks in order on one host, each behind the keys and values that the
//! blocks before it keep. What is appended is encoded alone, and what two contexts begin with is encoded once.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Plan, PlanError, PlanRequest,
    blocks::{block_tokens, review_block},
    method::{Method, bare_shards},
};

/// Tokens of a block where nobody says: of what is appended so much at most is encoded again with what it follows.
pub const APPENDED_TOKENS: usize = 1024;

/// A chain of blocks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ChainConfig {
    /// Tokens of a block; 1,024 by default. Contexts share what they begin with block by block.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "crate::size::optional")]
    #[schemars(range(min = 1, max = crate::size::MOST))]
    pub block_tokens: Option<usize>,
}

impl Method for ChainConfig {
    fn name(&self) -> &'static str {
        "chain"
    }

    fn review(&self, request: &PlanRequest) -> Result<(), PlanError> {
        review_block(self.block_tokens, request.context.len())
    }

    fn block_tokens(&self) -> Option<usize> {
        self.block_tokens
    }

    fn plan(&self, request: &PlanRequest) -> Result<Plan, PlanError> {
        let tokens = request.context.len();
        let size = block_tokens(self.block_tokens.or(Some(APPENDED_TOKENS)), tokens, 1)?;
        let blocks = tokens.div_ceil(size);
        let mut plan = bare_shards(self.name(), &PlanRequest { hosts: 1, ..*request }, size, vec![0; blocks]);
        plan.shards.iter_mut().for_each(|shard| shard.behind = shard.own.start as usize);
        Ok(plan)
    }
}
