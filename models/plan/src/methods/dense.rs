//! Exact causal attention: the whole context as one shard on one host. The baseline every method is measured against.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Method;
use crate::{Choice, ContextView, Exchange, LocalAttention, Plan, PlanError, PlanRequest, Shard, Span};

/// Dense attention has no sizes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DenseConfig {}

impl Method for DenseConfig {
    fn name(&self) -> &'static str {
        "dense"
    }

    fn plan(&self, request: &PlanRequest) -> Result<Plan, PlanError> {
        one_shard(self.name(), request, LocalAttention::Causal)
    }
}

/// The whole context as one shard, its rows seeing what `attention` shows them.
pub(super) fn one_shard(name: &str, request: &PlanRequest, attention: LocalAttention) -> Result<Plan, PlanError> {
    attention.check()?;
    let tokens = request.context.len();
    let shard = Shard {
        block: 0,
        host: 0,
        prefix: Vec::new(),
        own: Span::in_place(0..tokens),
        keeps_prefix: false,
        apart_rows: 0,
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
        fan_in: crate::FAN_IN,
    })
}
