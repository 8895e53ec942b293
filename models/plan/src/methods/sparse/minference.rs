//! MInference's vertical-slash pattern (Jiang et al., 2024) over the whole context on one host. Phase 2 is dense.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    LocalAttention, Plan, PlanError, PlanRequest,
    attention::VerticalSlash,
    method::{Method, one_shard},
};

/// Budgets of every head.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct MinferenceConfig(pub VerticalSlash);

impl Method for MinferenceConfig {
    fn name(&self) -> &'static str {
        "minference"
    }

    fn plan(&self, request: &PlanRequest) -> Result<Plan, PlanError> {
        one_shard(self.name(), request, LocalAttention::VerticalSlash(self.0))
    }
}
