//! Star Attention (Acharya et al., 2024): every block but the first is encoded behind an anchor, with no communication.
//!
//! The anchor is the head of the first block; its keys and values are dropped after the pass. The other contents and
//! positions are the paper's ablations (section 4). Random ones are given as lists: a plan draws no numbers.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::Method;
use crate::{
    Exchange, LocalAttention, Plan, PlanError, PlanRequest, Shard,
    blocks::{host_of_blocks, split_blocks},
};

/// A smaller block is taken for a forgotten unit.
const LEAST_BLOCK_TOKENS: usize = 16;

/// Sizes of Star Attention.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StarConfig {
    /// Tokens of a block. Absent: the context spread evenly, one block a host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_tokens: Option<usize>,
    /// Tokens of the anchor, 0 for none. Absent: a whole block. At most a block; clamped to the first block.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub anchor_tokens: Option<usize>,
    /// Position ids of the anchor.
    #[serde(skip_serializing_if = "is_default")]
    pub anchor_position: AnchorPosition,
    /// Token ids of the anchor.
    #[serde(skip_serializing_if = "is_default")]
    pub anchor_content: AnchorContent,
}

/// Where the anchor claims to stand.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AnchorPosition {
    /// At the head of the context.
    #[default]
    First,
    /// At the head of the block before.
    Previous,
    /// As listed for blocks `1..`, one position a token, below the block's first; sorted or not.
    Given(Vec<Vec<u32>>),
}

/// What the anchor says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum AnchorContent {
    /// The head of the first block.
    #[default]
    First,
    /// The head of the block before.
    Previous,
    /// One token, repeated.
    Constant {
        /// Its id.
        token: u32,
    },
    /// Tokens of the first block in another order.
    Shuffled {
        /// Index into the first block, one a token of the anchor.
        permutation: Vec<usize>,
    },
    /// Listed tokens, the same before every block.
    Random {
        /// Token ids, at least as many as the anchor has.
        tokens: Vec<u32>,
    },
}

impl Method for StarConfig {
    fn name(&self) -> &'static str {
        "star"
    }

    fn plan(&self, request: &PlanRequest) -> Result<Plan, PlanError> {
        let context = request.context;
        let (block_tokens, anchor_tokens) = self.sizes(context.len(), request.hosts)?;
        let blocks = split_blocks(context.len(), block_tokens);
        let anchors = Anchors { config: self, context, blocks: &blocks, tokens: anchor_tokens };
        anchors.check()?;

        let hosts = host_of_blocks(blocks.len(), request.hosts);
        let shard = |(block, host): (usize, usize)| {
            let range = blocks[block].clone();
            let (mut input_ids, mut position_ids) = anchors.before(block);
            let keep_from = input_ids.len();
            input_ids.extend_from_slice(&context[range.clone()]);
            position_ids.extend(positions(range));
            Shard { block, host, input_ids, position_ids, keep_from, attention: LocalAttention::Causal }
        };
        Ok(Plan {
            context_tokens: context.len(),
            hosts: request.hosts,
            shards: hosts.into_iter().enumerate().map(shard).collect(),
            exchange: Exchange::None,
            query_start: context.len() as u32,
        })
    }
}

impl StarConfig {
    /// Block and anchor in tokens. Only sizes that somebody typed are refused; derived ones are made to fit.
    fn sizes(&self, context: usize, hosts: usize) -> Result<(usize, usize), PlanError> {
        let block = match self.block_tokens {
            Some(0) => return Err(PlanError::ZeroBlock { least: LEAST_BLOCK_TOKENS }),
            Some(block) if block < LEAST_BLOCK_TOKENS && block < context => {
                return Err(PlanError::BlockTooSmall { block, context, least: LEAST_BLOCK_TOKENS });
            }
            Some(block) => block,
            None => context.div_ceil(hosts),
        };
        match (self.anchor_tokens, self.block_tokens) {
            (Some(anchor), Some(block)) if anchor > block => Err(PlanError::AnchorTooLong { anchor, block }),
            (anchor, _) => Ok((block, anchor.unwrap_or(block).min(block).min(context))),
        }
    }
}

/// The anchors of one plan, all of `tokens` tokens.
struct Anchors<'a> {
    config: &'a StarConfig,
    context: &'a [u32],
    blocks: &'a [Range<usize>],
    tokens: usize,
}

impl Anchors<'_> {
    /// Token and position ids before `block`; none before the first.
    fn before(&self, block: usize) -> (Vec<u32>, Vec<u32>) {
        if block == 0 || self.tokens == 0 {
            return (Vec::new(), Vec::new());
        }
        let previous = self.blocks[block - 1].start;
        let previous = previous..previous + self.tokens;
        let ids = match &self.config.anchor_content {
            AnchorContent::First => self.context[..self.tokens].to_vec(),
            AnchorContent::Previous => self.context[previous.clone()].to_vec(),
            AnchorContent::Constant { token } => vec![*token; self.tokens],
            AnchorContent::Shuffled { permutation } => permutation.iter().map(|&j| self.context[j]).collect(),
            AnchorContent::Random { tokens } => tokens[..self.tokens].to_vec(),
        };
        let position_ids = match &self.config.anchor_position {
            AnchorPosition::First => positions(0..self.tokens).collect(),
            AnchorPosition::Previous => positions(previous).collect(),
            AnchorPosition::Given(lists) => lists[block - 1].clone(),
        };
        (ids, position_ids)
    }

    /// Whether the lists of the ablations fit. They are not read when no block has an anchor.
    fn check(&self) -> Result<(), PlanError> {
        if self.blocks.len() < 2 || self.tokens == 0 {
            return Ok(());
        }
        match &self.config.anchor_content {
            AnchorContent::Shuffled { permutation } => self.check_permutation(permutation)?,
            AnchorContent::Random { tokens } if tokens.len() < self.tokens => {
                return Err(wrong_length("anchor_content.random.tokens", self.tokens, tokens.len()));
            }
            _ => {}
        }
        match &self.config.anchor_position {
            AnchorPosition::Given(lists) => self.check_positions(lists),
            _ => Ok(()),
        }
    }

    fn check_permutation(&self, permutation: &[usize]) -> Result<(), PlanError> {
        const LIST: &str = "anchor_content.shuffled.permutation";
        if permutation.len() != self.tokens {
            return Err(wrong_length(LIST, self.tokens, permutation.len()));
        }
        let mut seen = vec![false; self.blocks[0].len()];
        for &index in permutation {
            match seen.get_mut(index) {
                None => return Err(PlanError::ListValue { list: LIST, below: self.blocks[0].len(), got: index }),
                Some(true) => return Err(PlanError::Repeated { got: index }),
                Some(fresh) => *fresh = true,
            }
        }
        Ok(())
    }

    fn check_positions(&self, lists: &[Vec<u32>]) -> Result<(), PlanError> {
        const LIST: &str = "anchor_position.given";
        let (expected, got) = (self.blocks.len() - 1, lists.len());
        if expected != got {
            return Err(PlanError::ListLength { list: LIST, each: "list per block after the first", expected, got });
        }
        for (list, block) in lists.iter().zip(&self.blocks[1..]) {
            if list.len() != self.tokens {
                return Err(wrong_length(LIST, self.tokens, list.len()));
            }
            if let Some(&position) = list.iter().find(|&&position| position as usize >= block.start) {
                return Err(PlanError::ListValue { list: LIST, below: block.start, got: position as usize });
            }
        }
        Ok(())
    }
}

fn wrong_length(list: &'static str, expected: usize, got: usize) -> PlanError {
    PlanError::ListLength { list, each: "per token of the anchor", expected, got }
}

fn positions(range: Range<usize>) -> impl Iterator<Item = u32> {
    range.map(|position| position as u32)
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
