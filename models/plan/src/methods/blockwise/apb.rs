//! APB (Huang et al., 2025): an even split behind an anchor that embeds the query; in every layer each host passes its
//! highest-scored keys and values to the later ones.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Exchange, LocalAttention, Passing, PassingScore, Plan, PlanError, PlanRequest, Span,
    blocks::host_of_blocks,
    method::{Method, bare_shards},
    span::rows,
};

/// Sizes of APB.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ApbConfig {
    /// Tokens of the anchor, 0 for none. Absent: a quarter of a block, and room for the query.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "crate::size::optional")]
    #[schemars(range(max = crate::size::MOST))]
    pub anchor_tokens: Option<usize>,
    /// Tokens a host passes on. Absent: an eighth of a block.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "crate::size::optional")]
    #[schemars(range(max = crate::size::MOST))]
    pub passing_tokens: Option<usize>,
    /// Whether the anchor holds a copy of the query.
    pub embed_query: bool,
    /// Context tokens of the anchor in front of the query's copy.
    #[serde(deserialize_with = "crate::size::size")]
    #[schemars(range(max = crate::size::MOST))]
    pub query_insert_at: usize,
    /// Whether `anchor_tokens` counts the query's copy.
    pub anchor_includes_query: bool,
    /// Width of the maximum taken over neighbouring scores; 1 for none.
    #[serde(deserialize_with = "crate::size::size")]
    #[schemars(range(max = crate::size::MOST))]
    pub score_pool: usize,
    /// Leading tokens of the first block that are not passed on.
    pub first_skip: FirstSkip,
    /// Retaining heads (Locret layout), by the name that the cluster file gives them. Absent: tokens are scored by the
    /// embedded query.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retaining_heads: Option<String>,
    /// Which keys a row sees within its own pass.
    pub local_attention: LocalAttention,
}

/// Leading tokens of the first block that are not passed on, because every anchor has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FirstSkip {
    /// As many as `anchor_tokens`, as published: tokens that the query's copy pushed out of the anchor reach nobody.
    #[default]
    Anchor,
    /// Those that the anchor really holds.
    Held,
    /// None.
    Nothing,
}

impl Default for ApbConfig {
    fn default() -> Self {
        Self {
            anchor_tokens: None,
            passing_tokens: None,
            embed_query: true,
            query_insert_at: 0,
            anchor_includes_query: true,
            score_pool: 5,
            first_skip: FirstSkip::default(),
            retaining_heads: None,
            local_attention: LocalAttention::Causal,
        }
    }
}

/// What stands before every block but the first.
struct Anchor<'a> {
    spans: Vec<Span>,
    /// The query, where the anchor embeds it.
    query: &'a [u32],
    /// First row of the query's copy.
    query_at: usize,
    /// Context tokens in it.
    held: usize,
    /// Tokens asked for.
    asked: usize,
}

impl Anchor<'_> {
    fn tokens(&self) -> usize {
        rows(&self.spans)
    }
}

impl Method for ApbConfig {
    fn name(&self) -> &'static str {
        "apb"
    }

    fn review(&self, request: &PlanRequest) -> Result<(), PlanError> {
        let block = request.context.len().div_ceil(request.hosts);
        match self.anchor_tokens {
            Some(anchor) if anchor > block && request.hosts > 1 => Err(PlanError::AnchorTooLong { anchor, block }),
            _ => Ok(()),
        }
    }

    fn retaining_heads(&self) -> Option<&str> {
        self.retaining_heads.as_deref()
    }

    fn plan(&self, request: &PlanRequest) -> Result<Plan, PlanError> {
        self.local_attention.check()?;
        if self.score_pool.is_multiple_of(2) {
            let (name, got) = ("score_pool", self.score_pool.to_string());
            return Err(PlanError::Size { name, expected: "an odd number".into(), got });
        }
        let size = request.context.len().div_ceil(request.hosts);
        let anchor = self.anchor(request, size)?;
        // A context that is shorter than its anchor is one block: behind an anchor would be more than all of it.
        let size = if anchor.tokens() > request.context.len() { request.context.len() } else { size };
        let blocks = request.context.len().div_ceil(size);
        let mut plan = bare_shards(self.name(), request, size, host_of_blocks(blocks, request.hosts));
        for shard in &mut plan.shards {
            shard.attention = self.local_attention;
            if shard.block > 0 {
                shard.prefix.clone_from(&anchor.spans);
            }
        }
        if plan.shards.len() > 1 {
            plan.extra_ids = anchor.query.to_vec();
        }
        plan.exchange = self.exchange(request, size, blocks, &anchor)?;
        Ok(plan)
    }
}

impl ApbConfig {
    /// Tokens of the anchor block, the query's copy included where there is one.
    ///
    /// # Errors
    /// [`PlanError`] when the query does not fit.
    pub fn anchor_len(&self, request: &PlanRequest) -> Result<usize, PlanError> {
        Ok(self.anchor(request, request.context.len().div_ceil(request.hosts))?.tokens())
    }

    fn anchor<'a>(&self, request: &PlanRequest<'a>, block: usize) -> Result<Anchor<'a>, PlanError> {
        let (context, query) = (request.context, if self.embed_query { request.query } else { &[] });
        let counted = if self.anchor_includes_query { query.len() } else { 0 };
        let before = self.query_insert_at;
        let asked = self.anchor_tokens.unwrap_or_else(|| (block / 4).max(before + counted));
        if asked == 0 || query.is_empty() {
            let held = asked.min(context.len());
            return Ok(Anchor {
                spans: Span::runs((0..held as u32).map(|token| (token, token))),
                query: &[],
                query_at: 0,
                held,
                asked,
            });
        }
        let tail = asked.checked_sub(counted).filter(|tail| *tail >= before);
        let Some(tail) = tail else {
            let least = before + counted;
            return Err(PlanError::QueryTooLong { query: query.len(), before, anchor: asked, least });
        };
        let (at, tail) = (before.min(context.len()), tail.min(context.len()));
        let tokens = (0..at).chain(context.len()..context.len() + query.len()).chain(at..tail);
        let spans = Span::runs(tokens.map(|token| token as u32).zip(0..));
        Ok(Anchor { spans, query, query_at: at, held: tail, asked })
    }

    fn exchange(
        &self,
        request: &PlanRequest,
        block: usize,
        blocks: usize,
        anchor: &Anchor<'_>,
    ) -> Result<Exchange, PlanError> {
        let tokens = self.passing_tokens.unwrap_or(block / 8);
        if blocks < 2 || tokens == 0 {
            return Ok(Exchange::None);
        }
        let rows = anchor.query_at..anchor.query_at + request.query.len();
        let embedded = self.embed_query && !request.query.is_empty() && !anchor.spans.is_empty();
        let score = match &self.retaining_heads {
            Some(name) => PassingScore::Heads { name: name.clone() },
            None if embedded => PassingScore::Query { rows },
            None => return Err(PlanError::NothingToScoreBy),
        };
        let first_skip = match self.first_skip {
            FirstSkip::Anchor => anchor.asked,
            FirstSkip::Held => anchor.held,
            FirstSkip::Nothing => 0,
        };
        Ok(Exchange::PassCompressed(Passing { tokens, pool: self.score_pool, first_skip, score }))
    }
}
