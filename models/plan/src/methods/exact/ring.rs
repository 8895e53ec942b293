//! Ring attention (Liu et al., 2023), exact: every shard's keys and values pass all later shards, layer by layer.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Exchange, Plan, PlanError, PlanRequest,
    blocks::host_of_blocks,
    method::{Method, bare_shards},
};

/// How blocks lie on hosts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RingConfig {
    /// Which hosts have which blocks.
    pub layout: RingLayout,
}

/// Which hosts have which blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RingLayout {
    /// Two blocks a host, the first with the last and so on, so that all hosts see as many keys.
    #[default]
    Zigzag,
    /// One block a host; the last host has almost twice the mean of the pairs.
    Contiguous,
}

impl Method for RingConfig {
    fn name(&self) -> &'static str {
        "ring"
    }

    fn plan(&self, request: &PlanRequest) -> Result<Plan, PlanError> {
        let (tokens, hosts) = (request.context.len(), request.hosts);
        let size = match self.layout {
            RingLayout::Contiguous => tokens.div_ceil(hosts),
            RingLayout::Zigzag => tokens.div_ceil(2 * hosts),
        };
        let blocks = tokens.div_ceil(size);
        let owners = match self.layout {
            RingLayout::Contiguous => host_of_blocks(blocks, hosts),
            RingLayout::Zigzag => (0..blocks).map(|block| block.min(2 * hosts - 1 - block)).collect(),
        };
        Ok(Plan { exchange: Exchange::Broadcast, ..bare_shards(self.name(), request, size, owners) })
    }
}
