//! What an attention method is: a plan from a request. Knows none by name.

use std::ops::Range;

use crate::{
    Choice, ContextView, Exchange, FAN_IN, LocalAttention, Plan, PlanError, PlanRequest, Shard, Span,
    blocks::split_blocks,
};

/// An attention method with its sizes resolved.
pub trait Method {
    /// The name users type and metrics carry.
    fn name(&self) -> &'static str;

    /// Refuses sizes that would make a plan but that nobody can have meant.
    ///
    /// # Errors
    /// [`PlanError`] with the numbers on both sides.
    fn review(&self, request: &PlanRequest) -> Result<(), PlanError> {
        let _ = request;
        Ok(())
    }

    /// Tokens of a block, where the user gave them.
    fn block_tokens(&self) -> Option<usize> {
        None
    }

    /// The retaining heads that it scores by, by name.
    fn retaining_heads(&self) -> Option<&str> {
        None
    }

    /// Shards, positions, kept KV and exchange for `request`.
    ///
    /// # Errors
    /// [`PlanError`] when the request or the method's sizes make no plan.
    fn plan(&self, request: &PlanRequest) -> Result<Plan, PlanError>;
}

/// Blocks of `size` tokens on their `owners`, without prefixes and without exchange.
pub fn bare_shards(name: &str, request: &PlanRequest, size: usize, owners: Vec<usize>) -> Plan {
    let tokens = request.context.len();
    let blocks = split_blocks(tokens, size);
    let shard = |(block, (range, host)): (usize, (Range<usize>, usize))| Shard {
        block,
        host,
        prefix: Vec::new(),
        own: Span::in_place(range),
        keeps_prefix: false,
        apart_rows: 0,
        behind: 0,
        attention: LocalAttention::Causal,
        rope_length: 0,
    };
    Plan {
        method: Choice::typed(name),
        context_tokens: tokens,
        hosts: request.hosts,
        shards: blocks.into_iter().zip(owners).enumerate().map(shard).collect(),
        exchange: Exchange::None,
        query_start: tokens as u32,
        view: ContextView::All,
        extra_ids: Vec::new(),
        refresh: None,
        fan_in: FAN_IN,
    }
}

/// The whole context as one shard, its rows seeing what `attention` shows them.
///
/// # Errors
/// As [`LocalAttention::check`].
pub fn one_shard(name: &str, request: &PlanRequest, attention: LocalAttention) -> Result<Plan, PlanError> {
    attention.check()?;
    let tokens = request.context.len();
    let shard = Shard {
        block: 0,
        host: 0,
        prefix: Vec::new(),
        own: Span::in_place(0..tokens),
        keeps_prefix: false,
        apart_rows: 0,
        behind: 0,
        attention,
        rope_length: 0,
    };
    Ok(Plan {
        method: Choice::typed(name),
        context_tokens: tokens,
        hosts: 1,
        shards: vec![shard],
        exchange: Exchange::None,
        query_start: tokens as u32,
        view: ContextView::All,
        extra_ids: Vec::new(),
        refresh: None,
        fan_in: FAN_IN,
    })
}
