//! FlexPrefill (Lai et al., 2025) over the whole context on one host. Phase 2 is dense.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    LocalAttention, Plan, PlanError, PlanRequest,
    attention::Flex,
    method::{Method, one_shard},
};

/// Thresholds of every head.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct FlexprefillConfig(pub Flex);

impl Method for FlexprefillConfig {
    fn name(&self) -> &'static str {
        "flexprefill"
    }

    fn plan(&self, request: &PlanRequest) -> Result<Plan, PlanError> {
        one_shard(self.name(), request, LocalAttention::Flex(self.0))
    }
}
