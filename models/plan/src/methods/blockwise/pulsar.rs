//! Pulsar Attention: every block is encoded behind a sink and summaries of the blocks before. Which chunks make a summary
//! is decided by [`crate::summary`].

mod dealing;
mod rows;

use std::ops::Range;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Choice, ContextView, Exchange, LocalAttention, Plan, PlanError, PlanRequest, RefreshRule, Shard, Span,
    blocks::review_block,
    method::Method,
    span,
    summary::{
        BudgetSpread, Heuristic, MOST_TOKENS, Summary, SummaryBudget, SummaryRule, TieBreak, summarize, summarize_by,
    },
};

/// What a published rule takes of each block.
const SUMMARY_FRACTION: f64 = 0.125;

/// Share of a session's context that each question gets anew, within the bounds of summaries.
const REFRESH_SHARE: f64 = 0.125;

/// What all summaries together need at least, however short the context, or chains of facts break. Of 340 questions each of 15
/// tasks in 4,096 tokens over four hosts the embedded model answered 0.25 points more with 1,152 tokens in chunks of 16 than
/// with 576 in chunks of 8 (33 answers differ, 23 of them better), 0.1 less than with dense attention.
const LEAST_SUMMARY_TOKENS: usize = 1152;

/// Sizes of Pulsar Attention.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PulsarConfig {
    /// Tokens of a block. Absent: the context spread evenly, one block a host, or blocks of 4,096 tokens (2,048 of more than 65,536) and what is left of a
    /// host's share when a query chooses (16,384 where shards share no prefix), or of 1,024 tokens each in a session.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "crate::size::optional")]
    #[schemars(range(max = crate::size::MOST))]
    pub block_tokens: Option<usize>,
    /// First tokens of the context, seen by every block.
    #[serde(deserialize_with = "crate::size::size")]
    #[schemars(range(max = crate::size::MOST))]
    pub sink_tokens: usize,
    /// Tokens of a chunk. Absent: 16 when a query chooses, 32 otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "crate::size::optional")]
    #[schemars(range(max = crate::size::MOST))]
    pub chunk_tokens: Option<usize>,
    /// Tokens of a block's summary, 0 for none. Absent: `summary_fraction`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "crate::size::optional")]
    #[schemars(range(max = crate::size::MOST))]
    pub summary_tokens: Option<usize>,
    /// Share of a block that its summary holds. Absent: an eighth of all blocks up to 4,096 tokens, a thirty-second of
    /// longer ones up to 8,192, when a query chooses, none in a session that a query would choose for, an eighth otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary_fraction: Option<f64>,
    /// Least tokens of all summaries by share that the last block sees. Absent: 1,152 when a query chooses, 0 otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "crate::size::optional")]
    #[schemars(range(max = crate::size::MOST))]
    pub least_summary_tokens: Option<usize>,
    /// What makes a chunk worth keeping.
    pub heuristic: Heuristic,
    /// Which of equally good chunks are kept. Absent: the earliest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ties: Option<TieBreak>,
    /// Whether blocks share one budget. Absent: when the query chooses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spread: Option<BudgetSpread>,
    /// Position ids of sink and summaries.
    pub positions: Positions,
    /// Whether sink and summaries stay in the cache, as duplicates.
    pub keep_summary_kv: bool,
    /// Tokens that each question to a session gets anew, 0 for none: the chunks that it asks for are encoded again, together.
    /// Absent: an eighth of the context, from 1,152 to 8,192, where a query would choose summaries.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "crate::size::optional")]
    #[schemars(range(max = crate::size::MOST))]
    pub refresh_tokens: Option<usize>,
    /// Whether each summary is encoded once, by its block's owner, and its keys and values sent, layer by layer: the same
    /// numbers for less work, but shards wait for each other. Absent: when all hosts share a machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared_prefix: Option<bool>,
    /// Unequal blocks, one a host, so that the slowest host is done as early as can be.
    pub balanced: bool,
    /// Which keys a row sees within its own pass.
    pub local_attention: LocalAttention,
}

/// Position ids of sink and summaries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Positions {
    /// Where the tokens stand in the context.
    #[default]
    Sparse,
    /// Each assembled input is numbered from 0; the query starts behind the longest.
    Contiguous,
}

impl Default for PulsarConfig {
    fn default() -> Self {
        Self {
            block_tokens: None,
            sink_tokens: 64,
            chunk_tokens: None,
            summary_tokens: None,
            summary_fraction: None,
            least_summary_tokens: None,
            heuristic: Heuristic::QueryAware,
            ties: None,
            spread: None,
            positions: Positions::Sparse,
            keep_summary_kv: false,
            refresh_tokens: None,
            shared_prefix: None,
            balanced: false,
            local_attention: LocalAttention::Causal,
        }
    }
}

impl Method for PulsarConfig {
    fn name(&self) -> &'static str {
        "pulsar"
    }

    fn review(&self, request: &PlanRequest) -> Result<(), PlanError> {
        review_block(self.block_tokens, request.context.len())?;
        let shared = self.is_shared(request)?;
        let block = self.block(request, shared)?;
        let earlier = request.context.len().div_ceil(block).saturating_sub(1);
        let (chunk, budget) =
            (self.rule(request.query).chunk_tokens, self.review_budget(request.query, block, earlier));
        match (self.summary_tokens, self.block_tokens) {
            (Some(0), _) => Ok(()),
            _ if self.grows(request.query) => Ok(()),
            // A derived budget of a short context is made to fit; one that somebody typed is not.
            (None, None) => Ok(()),
            _ if budget < chunk => Err(PlanError::BudgetBelowChunk { budget, chunk, block }),
            _ => Ok(()),
        }
    }

    fn block_tokens(&self) -> Option<usize> {
        self.block_tokens
    }

    fn plan(&self, request: &PlanRequest) -> Result<Plan, PlanError> {
        self.plan_with(request, |blocks| self.summaries(request.context, request.query, blocks))
    }
}

impl PulsarConfig {
    /// The plan with the chunks that `score` says are worth most, within its budget: for measuring what a choice of them loses.
    ///
    /// # Errors
    /// As [`Method::plan`].
    pub fn plan_by(&self, request: &PlanRequest, score: impl FnMut(&Range<usize>) -> f64) -> Result<Plan, PlanError> {
        self.plan_with(request, |blocks| summarize_by(blocks, &self.rule(request.query), score))
    }

    fn plan_with(
        &self,
        request: &PlanRequest,
        summarize: impl FnOnce(&[Range<usize>]) -> Vec<Summary>,
    ) -> Result<Plan, PlanError> {
        self.check()?;
        self.check_windows(request)?;
        let (context, shared) = (request.context, self.is_shared(request)?);
        let (blocks, hosts) = self.dealt(request, shared)?;
        let summaries = summarize(&blocks);
        let sink = self.sink_tokens.min(blocks[0].len());
        if !shared {
            rows::check(context.len(), sink, &summaries)?;
        }
        let mut shards = Vec::with_capacity(blocks.len());
        for (block, host) in hosts.into_iter().enumerate() {
            let last = block + 1 == blocks.len();
            let prefix = match (shared, block) {
                (true, _) if last => Vec::new(),
                (true, _) => self.spans(summaries[block].indices.iter().copied()),
                (false, 0) => Vec::new(),
                (false, _) => {
                    let before = summaries[..block].iter().flat_map(|summary| summary.indices.iter().copied());
                    self.spans((0..sink as u32).chain(before))
                }
            };
            let own = Span::in_place(blocks[block].clone());
            let own = match self.positions {
                Positions::Sparse => own,
                Positions::Contiguous => Span { position: span::rows(&prefix) as u32, ..own },
            };
            let keeps_prefix = self.keep_summary_kv && !prefix.is_empty();
            shards.push(Shard {
                block,
                host,
                prefix,
                own,
                keeps_prefix,
                apart_rows: 0,
                behind: 0,
                attention: self.local_attention,
                rope_length: 0,
            });
        }
        let longest = shards.iter().map(Shard::rows).max().unwrap_or(0);
        Ok(Plan {
            method: Choice::typed(self.name()),
            context_tokens: context.len(),
            hosts: request.hosts,
            shards,
            exchange: if shared { Exchange::SharedPrefix { sink_rows: sink } } else { Exchange::None },
            query_start: match self.positions {
                Positions::Sparse => context.len() as u32,
                Positions::Contiguous => longest as u32,
            },
            view: ContextView::All,
            extra_ids: Vec::new(),
            refresh: self.refresh(request, blocks.len()),
            fan_in: crate::FAN_IN,
        })
    }
    /// The summary of every block, the last included.
    pub fn summaries(&self, context: &[u32], query: &[u32], blocks: &[Range<usize>]) -> Vec<Summary> {
        summarize(context, query, blocks, &self.rule(query))
    }

    /// Runs of tokens in front of a block.
    fn spans(&self, tokens: impl Iterator<Item = u32>) -> Vec<Span> {
        match self.positions {
            Positions::Sparse => Span::runs(tokens.map(|token| (token, token))),
            Positions::Contiguous => Span::runs(tokens.zip(0..)),
        }
    }

    /// How chunks are chosen. Without a query, a query-aware rule looks for what is rare, which wants longer chunks.
    pub fn rule(&self, query: &[u32]) -> SummaryRule {
        let default = match (self.heuristic, query) {
            (Heuristic::QueryAware, []) => SummaryRule {
                chunk_tokens: SummaryRule::default().chunk_tokens,
                ties: TieBreak::Rarity,
                ..SummaryRule::query_aware()
            },
            (Heuristic::QueryAware, _) => SummaryRule::query_aware(),
            (heuristic, _) => SummaryRule { heuristic, ..SummaryRule::default() },
        };
        SummaryRule {
            ties: self.ties.unwrap_or(default.ties),
            chunk_tokens: self.chunk_tokens.unwrap_or(default.chunk_tokens),
            budget: self.budget(query),
            spread: self.spread.unwrap_or(default.spread),
            ..default
        }
    }

    /// Whether a block depends on nothing but the sink and its place: the rule of sessions, whose contexts may grow.
    pub(crate) fn grows(&self, query: &[u32]) -> bool {
        let suits = self.heuristic == Heuristic::QueryAware && self.positions == Positions::Sparse;
        let unsaid = (self.summary_fraction, self.least_summary_tokens) == (None, None);
        let bare = self.summary_tokens.map_or(unsaid, |tokens| tokens == 0);
        query.is_empty() && suits && bare && !self.keep_summary_kv && !self.balanced
    }

    fn budget(&self, query: &[u32]) -> SummaryBudget {
        if self.grows(query) {
            return SummaryBudget::Tokens(0);
        }
        let least = match (self.heuristic, query) {
            (Heuristic::QueryAware, [_, ..]) => LEAST_SUMMARY_TOKENS,
            _ => 0,
        };
        match (self.summary_tokens, self.least_summary_tokens.unwrap_or(least)) {
            (Some(tokens), _) => SummaryBudget::Tokens(tokens),
            (None, least) => match (self.summary_fraction, least) {
                (Some(share), 0) => SummaryBudget::Fraction(share),
                (Some(share), least) => SummaryBudget::InAll { share, least, most: usize::MAX },
                (None, least) if self.query_chooses(query) => SummaryBudget::Ample { least },
                (None, 0) => SummaryBudget::Fraction(SUMMARY_FRACTION),
                (None, least) => SummaryBudget::InAll { share: SUMMARY_FRACTION, least, most: usize::MAX },
            },
        }
    }

    /// Tokens that chunks are taken from: of a block, or of all where they share.
    fn review_budget(&self, query: &[u32], block: usize, earlier: usize) -> usize {
        let budget = self.budget(query);
        match (budget, self.rule(query).spread) {
            (SummaryBudget::InAll { .. } | SummaryBudget::Ample { .. }, BudgetSpread::Shared) => {
                budget.in_all(block, earlier)
            }
            _ => budget.tokens(block, earlier),
        }
    }

    fn query_chooses(&self, query: &[u32]) -> bool {
        self.heuristic == Heuristic::QueryAware && !query.is_empty()
    }

    /// What questions to a session get anew: nothing where one block has all keys, where keys stand elsewhere than their
    /// tokens, or where the rule is a published one.
    fn refresh(&self, request: &PlanRequest, blocks: usize) -> Option<RefreshRule> {
        let (session, sparse) = (request.query.is_empty(), self.positions == Positions::Sparse);
        // Fresh keys stand at scattered positions, which no window is known to reach.
        let suits = !self.keep_summary_kv && sparse && !request.shape.has_windows();
        let tokens = self.refresh_tokens.unwrap_or_else(|| {
            let share = (REFRESH_SHARE * request.context.len() as f64) as usize;
            let wanted = self.heuristic == Heuristic::QueryAware;
            if wanted { share.clamp(LEAST_SUMMARY_TOKENS, MOST_TOKENS) } else { 0 }
        });
        let chunk_tokens = self.chunk_tokens.unwrap_or(SummaryRule::query_aware().chunk_tokens);
        let rule = RefreshRule { sink_tokens: self.sink_tokens, chunk_tokens, tokens };
        (session && suits && blocks > 1 && tokens >= chunk_tokens).then_some(rule)
    }

    /// Rows of layers with windows see keys by their positions, which are those of the context and follow each other.
    fn check_windows(&self, request: &PlanRequest) -> Result<(), PlanError> {
        let (other, advice) = ("a model whose layers have windows", "leave it out");
        match (request.shape.has_windows(), self.keep_summary_kv, self.positions) {
            (true, true, _) => Err(PlanError::Conflict { option: "keep_summary_kv", other, advice }),
            (true, _, Positions::Contiguous) => Err(PlanError::Conflict { option: "positions", other, advice }),
            _ => Ok(()),
        }
    }

    fn check(&self) -> Result<(), PlanError> {
        self.local_attention.check()?;
        self.rule(&[]).check()
    }

    fn is_shared(&self, request: &PlanRequest) -> Result<bool, PlanError> {
        let conflict = |other| {
            let (option, advice) = ("shared_prefix", "leave shared_prefix out");
            Err(PlanError::Conflict { option, other, advice })
        };
        let causal = self.local_attention == LocalAttention::Causal;
        match self.shared_prefix {
            Some(true) if request.shape.has_windows() => conflict("a model whose layers have windows"),
            Some(true) if !causal => conflict("a local_attention that is not causal"),
            Some(true) if self.positions == Positions::Contiguous => conflict("contiguous positions"),
            Some(true) if self.keep_summary_kv => conflict("keep_summary_kv"),
            // Nothing but the sink to share, which would tie blocks together that could be encoded one by one.
            None if self.grows(request.query) => Ok(false),
            typed => Ok(typed.unwrap_or(request.one_device)
                && causal
                && !request.shape.has_windows()
                && self.positions == Positions::Sparse
                && !self.keep_summary_kv),
        }
    }
}
