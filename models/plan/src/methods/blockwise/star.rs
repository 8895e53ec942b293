//! Star Attention (Acharya et al., 2024): every block but the first is encoded behind an anchor, with no communication.
//!
//! The anchor is the head of the first block; its keys and values are dropped after the pass. The other contents and
//! positions are the paper's ablations (section 4); random ones are drawn from a seed or given as lists.

mod draw;

use std::ops::Range;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Choice, ContextView, Exchange, LocalAttention, ModelShape, Plan, PlanError, PlanRequest, Shard, Span,
    attention::causal_pairs,
    blocks::{balanced_blocks, block_tokens, host_of_blocks, review_block, split_blocks},
    method::Method,
};
use draw::Draw;

/// Sizes of Star Attention.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct StarConfig {
    /// Tokens of a block. Absent: the context spread evenly, one block a host.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "crate::size::optional")]
    #[schemars(range(max = crate::size::MOST))]
    pub block_tokens: Option<usize>,
    /// Tokens of the anchor, 0 for none. Absent: a whole block. At most a block; clamped to the first block.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "crate::size::optional")]
    #[schemars(range(max = crate::size::MOST))]
    pub anchor_tokens: Option<usize>,
    /// Position ids of the anchor.
    #[serde(skip_serializing_if = "is_default")]
    pub anchor_position: AnchorPosition,
    /// Token ids of the anchor.
    #[serde(skip_serializing_if = "is_default")]
    pub anchor_content: AnchorContent,
    /// Whether the first block's owner encodes the anchor for all and sends its keys and values, layer by layer: the same
    /// numbers for half of the work, but shards wait for the first. Absent: when all hosts share a machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared_prefix: Option<bool>,
    /// Unequal blocks, one a host, so that the slowest host is done as early as can be.
    #[serde(skip_serializing_if = "is_default")]
    pub balanced: bool,
    /// Which keys a row sees within its own pass.
    #[serde(skip_serializing_if = "is_default")]
    pub local_attention: LocalAttention,
}

/// Where the anchor claims to stand.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AnchorPosition {
    /// At the head of the context.
    #[default]
    First,
    /// At the head of the block before.
    Previous,
    /// As listed for blocks `1..`, one position a token, below the block's first; sorted or not.
    Given(Vec<Vec<u32>>),
    /// Drawn below the block's first, with replacement.
    Random(RandomPositions),
}

/// Drawn positions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RandomPositions {
    /// The same seed draws the same positions.
    pub seed: u64,
    /// Whether they ascend.
    #[serde(default = "yes")]
    pub sorted: bool,
}

/// What the anchor says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
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
    Shuffled(Permutation),
    /// Tokens out of nowhere, the same before every block.
    Random(RandomTokens),
}

/// Where the tokens of a shuffled anchor come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Permutation {
    /// Index into the first block, one a token of the anchor.
    Permutation(Vec<usize>),
    /// The anchor's own tokens, their order drawn.
    Seed(u64),
}

/// Which tokens a random anchor has.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RandomTokens {
    /// Token ids, at least as many as the anchor has.
    Tokens(Vec<u32>),
    /// Drawn from the vocabulary.
    Seed(u64),
}

fn yes() -> bool {
    true
}

impl Method for StarConfig {
    fn name(&self) -> &'static str {
        "star"
    }

    fn review(&self, request: &PlanRequest) -> Result<(), PlanError> {
        review_block(self.block_tokens, request.context.len())?;
        match (self.anchor_tokens, self.block_tokens) {
            (Some(anchor), Some(block)) if anchor > block => Err(PlanError::AnchorTooLong { anchor, block }),
            _ => Ok(()),
        }
    }

    fn block_tokens(&self) -> Option<usize> {
        self.block_tokens
    }

    fn plan(&self, request: &PlanRequest) -> Result<Plan, PlanError> {
        self.local_attention.check()?;
        let context = request.context;
        let size = block_tokens(self.block_tokens, context.len(), request.hosts)?;
        let shared = self.is_shared(request)?;
        let blocks = self.blocks(request, size, shared)?;
        let tokens = self.anchor_tokens.unwrap_or(size).min(blocks[0].len());
        let anchors = Anchors { config: self, context, blocks: &blocks, tokens, shape: request.shape };
        anchors.check()?;

        let hosts = host_of_blocks(blocks.len(), request.hosts);
        let shard = |(block, host): (usize, usize)| {
            let prefix = if shared { Vec::new() } else { anchors.before(block) };
            let own = Span::in_place(blocks[block].clone());
            let attention = self.local_attention;
            Shard { block, host, prefix, own, keeps_prefix: false, apart_rows: 0, behind: 0, attention, rope_length: 0 }
        };
        Ok(Plan {
            method: Choice::typed(self.name()),
            context_tokens: context.len(),
            hosts: request.hosts,
            shards: hosts.into_iter().enumerate().map(shard).collect(),
            exchange: if shared { Exchange::SharedPrefix { sink_rows: tokens } } else { Exchange::None },
            query_start: context.len() as u32,
            view: ContextView::All,
            extra_ids: anchors.extra_ids(),
            refresh: None,
            fan_in: crate::FAN_IN,
        })
    }
}

impl StarConfig {
    /// Whether the anchor is encoded once. Only the published anchor is a part of the first block's own pass.
    fn is_shared(&self, request: &PlanRequest) -> Result<bool, PlanError> {
        let conflict = |other| {
            let (option, advice) = ("shared_prefix", "leave shared_prefix out");
            Err(PlanError::Conflict { option, other, advice })
        };
        let possible = self.local_attention == LocalAttention::Causal
            && !request.shape.has_windows()
            && self.anchor_position == AnchorPosition::First
            && self.anchor_content == AnchorContent::First;
        match self.shared_prefix {
            Some(true) if self.local_attention != LocalAttention::Causal => {
                conflict("a local_attention that is not causal")
            }
            Some(true) if request.shape.has_windows() => conflict("a model whose layers have windows"),
            Some(true) if !possible => conflict("an anchor that is not the head of the context"),
            typed => Ok(typed.unwrap_or(request.one_device) && possible && self.anchor_tokens != Some(0)),
        }
    }

    fn blocks(&self, request: &PlanRequest, size: usize, shared: bool) -> Result<Vec<Range<usize>>, PlanError> {
        let (tokens, shape) = (request.context.len(), request.shape);
        match (self.balanced, self.block_tokens) {
            (false, _) => Ok(split_blocks(tokens, size)),
            (true, Some(_)) => Err(PlanError::Conflict {
                option: "balanced",
                other: "block_tokens",
                advice: "leave block_tokens out: balanced blocks are as long as the work allows",
            }),
            (true, None) => {
                let anchor = self.anchor_tokens.unwrap_or(size).min(size);
                let work = |before: &[Range<usize>], range: Range<usize>| {
                    let prefix = if before.is_empty() { 0 } else { anchor };
                    let pairs = causal_pairs(prefix + range.len()) - if shared { causal_pairs(prefix) } else { 0 };
                    shape.flops(range.len() + if shared { 0 } else { prefix }, pairs)
                };
                Ok(balanced_blocks(tokens, request.hosts, &work))
            }
        }
    }
}

/// The anchors of one plan, all of `tokens` tokens.
struct Anchors<'a> {
    config: &'a StarConfig,
    context: &'a [u32],
    blocks: &'a [Range<usize>],
    tokens: usize,
    shape: &'a ModelShape,
}

impl Anchors<'_> {
    /// What stands before `block`; nothing before the first.
    fn before(&self, block: usize) -> Vec<Span> {
        if block == 0 || self.tokens == 0 {
            return Vec::new();
        }
        let previous = self.blocks[block - 1].start;
        let previous = previous..previous + self.tokens;
        let first = || positions(0..self.tokens).collect::<Vec<_>>();
        // Those that the context does not have follow behind it.
        let tokens: Vec<u32> = match &self.config.anchor_content {
            AnchorContent::First => first(),
            AnchorContent::Previous => positions(previous.clone()).collect(),
            AnchorContent::Shuffled(Permutation::Permutation(order)) => order.iter().map(|&j| j as u32).collect(),
            AnchorContent::Shuffled(Permutation::Seed(seed)) => Draw::new(*seed).shuffled(&first()),
            AnchorContent::Constant { .. } | AnchorContent::Random(_) => {
                positions(self.context.len()..self.context.len() + self.tokens).collect()
            }
        };
        let position_ids: Vec<u32> = match &self.config.anchor_position {
            AnchorPosition::First => positions(0..self.tokens).collect(),
            AnchorPosition::Previous => positions(previous).collect(),
            AnchorPosition::Given(lists) => lists[block - 1].clone(),
            AnchorPosition::Random(RandomPositions { seed, sorted }) => {
                let mut drawn = Draw::new(seed ^ block as u64).below(self.blocks[block].start, self.tokens);
                if *sorted {
                    drawn.sort_unstable();
                }
                drawn
            }
        };
        Span::runs(tokens.into_iter().zip(position_ids))
    }

    /// Ids of anchor tokens that the context does not have.
    fn extra_ids(&self) -> Vec<u32> {
        match &self.config.anchor_content {
            _ if self.blocks.len() < 2 || self.tokens == 0 => Vec::new(),
            AnchorContent::Constant { token } => vec![*token; self.tokens],
            AnchorContent::Random(RandomTokens::Tokens(tokens)) => tokens[..self.tokens].to_vec(),
            AnchorContent::Random(RandomTokens::Seed(seed)) => Draw::new(*seed).below(self.shape.vocab, self.tokens),
            AnchorContent::First | AnchorContent::Previous | AnchorContent::Shuffled(_) => Vec::new(),
        }
    }

    /// Whether the lists of the ablations fit. They are not read when no block has an anchor.
    fn check(&self) -> Result<(), PlanError> {
        if self.blocks.len() < 2 || self.tokens == 0 {
            return Ok(());
        }
        match &self.config.anchor_content {
            AnchorContent::Shuffled(Permutation::Permutation(order)) => self.check_permutation(order)?,
            AnchorContent::Random(RandomTokens::Tokens(tokens)) if tokens.len() < self.tokens => {
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
        const PERMUTATION_KEY: &str = "anchor_content.shuffled.permutation";
        if permutation.len() != self.tokens {
            return Err(wrong_length(PERMUTATION_KEY, self.tokens, permutation.len()));
        }
        let mut seen = vec![false; self.blocks[0].len()];
        for &index in permutation {
            match seen.get_mut(index) {
                None => {
                    return Err(PlanError::ListValue {
                        list: PERMUTATION_KEY,
                        below: self.blocks[0].len(),
                        got: index,
                    });
                }
                Some(true) => return Err(PlanError::Repeated { got: index }),
                Some(fresh) => *fresh = true,
            }
        }
        Ok(())
    }

    fn check_positions(&self, lists: &[Vec<u32>]) -> Result<(), PlanError> {
        const POSITIONS_KEY: &str = "anchor_position.given";
        let (expected, got) = (self.blocks.len() - 1, lists.len());
        if expected != got {
            return Err(PlanError::ListLength {
                list: POSITIONS_KEY,
                each: "list per block after the first",
                expected,
                got,
            });
        }
        for (list, block) in lists.iter().zip(&self.blocks[1..]) {
            if list.len() != self.tokens {
                return Err(wrong_length(POSITIONS_KEY, self.tokens, list.len()));
            }
            if let Some(&position) = list.iter().find(|&&position| position as usize >= block.start) {
                return Err(PlanError::ListValue { list: POSITIONS_KEY, below: block.start, got: position as usize });
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

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(config: &StarConfig, tokens: u32, hosts: usize) -> Result<Plan, PlanError> {
        let context: Vec<u32> = (100..100 + tokens).collect();
        let request = PlanRequest {
            context: &context,
            query: &[],
            hosts,
            one_device: false,
            shape: &ModelShape::TINY,
            speeds: None,
        };
        config.review(&request)?;
        config.plan(&request)
    }

    /// `host <- prefix ids @ positions | block ids @ positions`, one line a shard; ids and positions as runs.
    fn drawn(plan: &Plan) -> String {
        let runs = |ids: &[u32]| -> String {
            ids.chunk_by(|a, b| a + 1 == *b)
                .map(|run| format!("{}..={}", run[0], run[run.len() - 1]))
                .collect::<Vec<_>>()
                .join(" ")
        };
        let context: Vec<u32> = (100..100 + plan.context_tokens as u32).collect();
        let side = |ids: &[u32], positions: &[u32]| format!("{} @ {}", runs(ids), runs(positions));
        let line = |shard: &Shard| {
            let input = shard.input(context.as_slice()).unwrap();
            let (prefix, block) = input.ids.split_at(shard.keep_from());
            let (before, own) = input.positions.split_at(shard.keep_from());
            let prefix = if prefix.is_empty() { "-".to_owned() } else { side(prefix, before) };
            format!("host {} <- {prefix} | {}\n", shard.host, side(block, own))
        };
        plan.shards.iter().map(line).collect::<String>() + &format!("query @ {}", plan.query_start)
    }

    #[test]
    fn an_anchor_precedes_every_block_but_the_first() {
        let star = StarConfig { block_tokens: Some(20), anchor_tokens: Some(8), ..StarConfig::default() };
        insta::assert_snapshot!(drawn(&plan(&star, 70, 3).unwrap()), @"
        host 0 <- - | 100..=119 @ 0..=19
        host 0 <- 100..=107 @ 0..=7 | 120..=139 @ 20..=39
        host 1 <- 100..=107 @ 0..=7 | 140..=159 @ 40..=59
        host 2 <- 100..=107 @ 0..=7 | 160..=169 @ 60..=69
        query @ 70
        ");
    }

    #[test]
    fn the_context_is_spread_evenly_when_no_block_is_given() {
        insta::assert_snapshot!(drawn(&plan(&StarConfig::default(), 10, 4).unwrap()), @"
        host 0 <- - | 100..=102 @ 0..=2
        host 1 <- 100..=102 @ 0..=2 | 103..=105 @ 3..=5
        host 2 <- 100..=102 @ 0..=2 | 106..=108 @ 6..=8
        host 3 <- 100..=102 @ 0..=2 | 109..=109 @ 9..=9
        query @ 10
        ");
    }

    #[test]
    fn idle_hosts_stay_idle() {
        let star = StarConfig { block_tokens: Some(64), ..StarConfig::default() };
        let plan = plan(&star, 45, 5).unwrap();
        insta::assert_snapshot!(drawn(&plan), @"
        host 0 <- - | 100..=144 @ 0..=44
        query @ 45
        ");
        assert_eq!(plan.kept_per_host(), [45, 0, 0, 0, 0]);
    }

    #[test]
    fn the_block_before_as_anchor() {
        let star = StarConfig {
            block_tokens: Some(20),
            anchor_tokens: Some(8),
            anchor_position: AnchorPosition::Previous,
            anchor_content: AnchorContent::Previous,
            ..StarConfig::default()
        };
        insta::assert_snapshot!(drawn(&plan(&star, 50, 3).unwrap()), @"
        host 0 <- - | 100..=119 @ 0..=19
        host 1 <- 100..=107 @ 0..=7 | 120..=139 @ 20..=39
        host 2 <- 120..=127 @ 20..=27 | 140..=149 @ 40..=49
        query @ 50
        ");
    }

    #[test]
    fn listed_contents_and_positions() {
        let star = StarConfig {
            block_tokens: Some(16),
            anchor_tokens: Some(3),
            anchor_position: AnchorPosition::Given(vec![vec![9, 2, 2], vec![0, 20, 31]]),
            anchor_content: AnchorContent::Shuffled(Permutation::Permutation(vec![7, 0, 15])),
            ..StarConfig::default()
        };
        insta::assert_snapshot!(drawn(&plan(&star, 40, 3).unwrap()), @"
        host 0 <- - | 100..=115 @ 0..=15
        host 1 <- 107..=107 100..=100 115..=115 @ 9..=9 2..=2 2..=2 | 116..=131 @ 16..=31
        host 2 <- 107..=107 100..=100 115..=115 @ 0..=0 20..=20 31..=31 | 132..=139 @ 32..=39
        query @ 40
        ");
    }

    fn refusal(config: StarConfig) -> String {
        let error = plan(&config, 100, 4).unwrap_err();
        format!("{}: {error}", error.code())
    }

    #[test]
    fn sizes_that_make_no_plan_say_what_to_do() {
        let block = |block| StarConfig { block_tokens: Some(block), ..StarConfig::default() };
        insta::assert_snapshot!(refusal(block(0)), @"block_too_small: block_tokens is 0; give at least 16, or leave it out for an even split over the hosts");
        insta::assert_snapshot!(refusal(block(4)), @"block_too_small: a block of 4 tokens for a context of 100: did you mean 4k? Blocks hold at least 16 tokens");
        insta::assert_snapshot!(refusal(StarConfig { anchor_tokens: Some(40), ..block(32) }), @"invalid_method: an anchor of 40 tokens is longer than a block of 32; lower anchor_tokens or raise block_tokens");
        assert!(plan(&block(4), 4, 1).is_ok(), "a block may be tiny when the context is no larger");
    }

    #[test]
    fn lists_that_do_not_fit_the_anchor_are_refused() {
        let sized = || StarConfig { block_tokens: Some(40), anchor_tokens: Some(3), ..StarConfig::default() };
        let content = |anchor_content| StarConfig { anchor_content, ..sized() };
        let shuffled =
            |permutation: &[usize]| content(AnchorContent::Shuffled(Permutation::Permutation(permutation.to_vec())));
        let given = |lists| StarConfig { anchor_position: AnchorPosition::Given(lists), ..sized() };
        let refusals = [
            shuffled(&[0, 1]),
            shuffled(&[0, 1, 40]),
            shuffled(&[0, 1, 1]),
            content(AnchorContent::Random(RandomTokens::Tokens(vec![5]))),
            given(vec![vec![0, 1, 2]]),
            given(vec![vec![0, 1, 2], vec![0, 1]]),
            given(vec![vec![0, 1, 40], vec![0, 1, 2]]),
        ];
        insta::assert_snapshot!(refusals.map(refusal).join("\n"), @"
        invalid_method: anchor_content.shuffled.permutation has 2 entries, the plan needs 3; give one per token of the anchor
        invalid_method: anchor_content.shuffled.permutation holds 40, allowed are values below 40
        invalid_method: permutation holds 1 twice; name each index at most once
        invalid_method: anchor_content.random.tokens has 1 entries, the plan needs 3; give one per token of the anchor
        invalid_method: anchor_position.given has 1 entries, the plan needs 2; give one list per block after the first
        invalid_method: anchor_position.given has 2 entries, the plan needs 3; give one per token of the anchor
        invalid_method: anchor_position.given holds 40, allowed are values below 40
        ");
    }
}
