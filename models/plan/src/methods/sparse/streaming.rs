//! StreamingLLM (Xiao et al., 2023) as a prefill mask over the whole context on one host; positions are never renumbered.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    ContextView, LocalAttention, Plan, PlanError, PlanRequest,
    attention::Streaming,
    method::{Method, one_shard},
};

/// Sizes of the mask.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct StreamingConfig {
    /// First tokens, seen by every row after them.
    #[serde(deserialize_with = "crate::size::size")]
    #[schemars(range(max = crate::size::MOST))]
    pub sink_tokens: usize,
    /// Latest tokens a row sees, itself included.
    #[serde(deserialize_with = "crate::size::size")]
    #[schemars(range(max = crate::size::MOST))]
    pub window_tokens: usize,
    /// What the query and the generated tokens see.
    pub phase2: Phase2,
}

/// What the query and the generated tokens see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Phase2 {
    /// Everything.
    #[default]
    Dense,
    /// What the mask shows them.
    Streaming,
}

impl Default for StreamingConfig {
    fn default() -> Self {
        let Streaming { sink_tokens, window_tokens } = Streaming::default();
        Self { sink_tokens, window_tokens, phase2: Phase2::Dense }
    }
}

impl Method for StreamingConfig {
    fn name(&self) -> &'static str {
        "streaming"
    }

    fn plan(&self, request: &PlanRequest) -> Result<Plan, PlanError> {
        let mask = Streaming { sink_tokens: self.sink_tokens, window_tokens: self.window_tokens };
        let view = match self.phase2 {
            Phase2::Dense => ContextView::All,
            Phase2::Streaming => ContextView::Streaming(mask),
        };
        Ok(Plan { view, ..one_shard(self.name(), request, LocalAttention::Streaming(mask))? })
    }
}
