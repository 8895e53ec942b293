//! Dense attention while it is the faster one, above that the most accurate of the cheap methods.

use serde::{Deserialize, Serialize};

use super::{DenseConfig, Method, PulsarConfig};
use crate::{Choice, Plan, PlanError, PlanRequest};

/// Context tokens from which several hosts answer before one does: with the embedded model in f32 and four hosts of one thread
/// on two cores, dense and Pulsar took 0.32 and 0.30 s for a question at 1,024 tokens, 0.60 and 0.58 at 2,048, 1.05 and 0.73
/// at 3,072, 1.51 and 0.87 at 4,096.
const DENSE_BELOW_TOKENS: usize = 2048;

/// Where to change over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AutoConfig {
    /// Contexts with fewer tokens are encoded dense.
    #[serde(skip_serializing_if = "is_default")]
    #[serde(deserialize_with = "crate::size::size")]
    pub dense_below_tokens: usize,
}

impl Default for AutoConfig {
    fn default() -> Self {
        Self { dense_below_tokens: DENSE_BELOW_TOKENS }
    }
}

fn is_default(tokens: &usize) -> bool {
    *tokens == DENSE_BELOW_TOKENS
}

impl Method for AutoConfig {
    fn name(&self) -> &'static str {
        "auto"
    }

    fn plan(&self, request: &PlanRequest) -> Result<Plan, PlanError> {
        let (tokens, hosts, limit) = (request.context.len(), request.hosts, self.dense_below_tokens);
        let (plan, reason) = if hosts == 1 {
            (DenseConfig {}.plan(request)?, "one context host: nothing to split over".to_owned())
        } else if tokens < limit {
            let reason = format!("{tokens} context tokens are fewer than {limit}, where splitting begins to pay");
            (DenseConfig {}.plan(request)?, reason)
        } else {
            let known = if request.query.is_empty() { "rare chunks" } else { "chunks that the query asks for" };
            let reason = format!("{tokens} context tokens over {hosts} hosts: blocks behind summaries of {known}");
            (PulsarConfig::default().plan(request)?, reason)
        };
        Ok(Plan { method: Choice { reason: Some(reason), ..plan.method.clone() }, ..plan })
    }
}
