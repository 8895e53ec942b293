//! Exact causal attention: the whole context as one shard on one host. The baseline every method is measured against.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    LocalAttention, Plan, PlanError, PlanRequest,
    method::{Method, one_shard},
};

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
