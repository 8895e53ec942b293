//! DeepSpeed-Ulysses (Jacobs et al., 2023), exact: rows are split for the linear layers, heads for attention.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Exchange, Plan, PlanError, PlanRequest,
    blocks::host_of_blocks,
    method::{Method, bare_shards},
};

/// Ulysses has no sizes. Every host takes an equal share of the query heads and the KV heads they read, replicated when
/// there are fewer of those.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UlyssesConfig {}

impl Method for UlyssesConfig {
    fn name(&self) -> &'static str {
        "ulysses"
    }

    fn plan(&self, request: &PlanRequest) -> Result<Plan, PlanError> {
        let (tokens, hosts, heads) = (request.context.len(), request.hosts, request.shape.query_heads);
        if !heads.is_multiple_of(hosts) {
            return Err(PlanError::HeadsNotDivided { hosts, heads });
        }
        let size = tokens.div_ceil(hosts);
        let blocks = tokens.div_ceil(size);
        if blocks < hosts {
            let advice = format!("ulysses needs a block a host: use a longer context or at most {blocks} hosts");
            return Err(PlanError::IdleHosts { tokens, block: size, idle: hosts - blocks, hosts, advice });
        }
        let owners = host_of_blocks(blocks, hosts);
        Ok(Plan { exchange: Exchange::AllToAll, ..bare_shards(self.name(), request, size, owners) })
    }
}
