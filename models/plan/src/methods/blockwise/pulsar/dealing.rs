//! Where blocks begin and end, and which host has each. What a summary holds is not decided here.

use std::ops::Range;

use super::PulsarConfig;
use crate::{
    PlanError, PlanRequest,
    attention::causal_pairs,
    blocks::{balanced_blocks, block_tokens, host_of_blocks, runs_of_blocks, split_blocks},
};

/// Tokens of a block where nobody says, and the query chooses its summaries: small ones are less work, but the first rows of each
/// see little of what stands before them. Of 40 questions which sentence follows a quoted one in 30k tokens, a model of 1.5 billion
/// parameters answered 32% by dense attention, 10% with blocks of 1,024, 30% with 2,048 and 32% with 4,096.
const BLOCK_TOKENS: usize = 4096;
/// The same of a context of more than [`LONG_TOKENS`], where what a block costs counts.
const BLOCK_TOKENS_LONG: usize = 2048;
const LONG_TOKENS: usize = 65_536;
/// The same where each shard encodes the summaries before it anew, which small blocks would pay for once each: of an 8B model's
/// operations a token behind 4,096 tokens of summaries takes 2.0 times its own with blocks of 8k or 32k, 1.8 with 16k.
const BLOCK_TOKENS_APART: usize = 16_384;
/// Tokens of a session's blocks where nobody says. They stand on a fixed grid, each behind the sink alone, so that no block
/// depends on what the context is appended with: figures in the model's README.
const SESSION_BLOCK_TOKENS: usize = 1024;

impl PulsarConfig {
    /// Blocks in order, and the host of each.
    pub(super) fn dealt(
        &self,
        request: &PlanRequest,
        shared: bool,
    ) -> Result<(Vec<Range<usize>>, Vec<usize>), PlanError> {
        let (tokens, hosts) = (request.context.len(), request.hosts);
        let blocks = match (self.balanced, self.block_tokens) {
            (true, Some(_)) => {
                return Err(PlanError::Conflict {
                    option: "balanced",
                    other: "block_tokens",
                    advice: "leave block_tokens out: balanced blocks are as long as the work allows",
                });
            }
            (true, None) => self.balanced(request, shared),
            (false, None) if self.query_chooses(request.query) => {
                return Ok(runs_of_blocks(tokens, hosts, most(tokens, shared)));
            }
            (false, _) => split_blocks(tokens, self.block(request, shared)?),
        };
        let hosts = match self.grows(request.query) {
            true => (0..blocks.len()).map(|block| block % hosts).collect(),
            false => host_of_blocks(blocks.len(), hosts),
        };
        Ok((blocks, hosts))
    }

    /// Tokens of a block, unless blocks are balanced.
    pub(super) fn block(&self, request: &PlanRequest, shared: bool) -> Result<usize, PlanError> {
        let (tokens, hosts) = (request.context.len(), request.hosts);
        match self.block_tokens {
            None if self.query_chooses(request.query) => Ok(tokens.div_ceil(hosts).min(most(tokens, shared))),
            None if self.grows(request.query) => Ok(SESSION_BLOCK_TOKENS),
            typed => block_tokens(typed, tokens, hosts),
        }
    }

    /// One block a host, of as much work as the others.
    fn balanced(&self, request: &PlanRequest, shared: bool) -> Vec<Range<usize>> {
        let (tokens, shape) = (request.context.len(), request.shape);
        let chunk = self.rule(request.query).chunk_tokens;
        let (budget, earlier) = (self.budget(request.query), request.hosts - 1);
        let summary = |tokens: usize| (budget.tokens(tokens, earlier) / chunk * chunk).min(tokens);
        let work = |earlier: &[Range<usize>], range: Range<usize>| {
            let own = summary(range.len());
            let sink = if earlier.is_empty() { 0 } else { self.sink_tokens };
            let before = sink + earlier.iter().map(|block| summary(block.len())).sum::<usize>();
            let pairs = causal_pairs(before + range.len());
            match shared {
                false => shape.flops(before + range.len(), pairs),
                // The rows of the own summary instead of everybody's.
                true => {
                    let pairs = pairs + causal_pairs(before + own) - 2 * causal_pairs(before);
                    shape.flops(range.len() + own, pairs)
                }
            }
        };
        balanced_blocks(tokens, request.hosts, &work)
    }
}

/// Tokens of a block of a context of so many where nobody says, and the query chooses.
fn most(tokens: usize, shared: bool) -> usize {
    match (shared, tokens > LONG_TOKENS) {
        (false, _) => BLOCK_TOKENS_APART,
        (true, true) => BLOCK_TOKENS_LONG,
        (true, false) => BLOCK_TOKENS,
    }
}
