//! AnchorAttention (Zhang et al., 2025) over the whole context on one host: the first block, the row's group, and the
//! stripes whose pooled scores come near the anchor's. Phase 2 is dense.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    LocalAttention, Plan, PlanError, PlanRequest,
    attention::Stripes,
    method::{Method, one_shard},
};

/// Sizes of AnchorAttention.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct AnchorConfig(pub Stripes);

impl Method for AnchorConfig {
    fn name(&self) -> &'static str {
        "anchor"
    }

    fn plan(&self, request: &PlanRequest) -> Result<Plan, PlanError> {
        one_shard(self.name(), request, LocalAttention::Stripes(self.0))
    }
}
