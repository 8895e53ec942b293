//! Which tokens, positions, masks, exchanges and kept KV each shard gets. Pure: no tensor, clock, socket or file.
//!
//! A plan is a value that a [`Method`] makes from a [`PlanRequest`]; everything downstream only carries it out.

pub mod attention;
mod blocks;
mod cost;
mod error;
mod method;
pub mod methods;
mod plan;
mod request;
mod rope;
mod size;
mod span;
mod summary;

pub use attention::LocalAttention;
pub use blocks::{balanced_blocks, host_of_blocks, split_blocks};
pub use cost::forecast::{Calibration, Conditions, Forecast, StepSeconds};
pub use cost::{Carried, Cost, HeadShare, HostCost, ModelShape, exact_layers};
pub use error::PlanError;
pub use method::{Method, bare_shards, one_shard};
pub use methods::{APPENDED_TOKENS, Alternative, MethodConfig};
pub use plan::refresh::{HiddenKeys, Refresh};
pub use plan::{
    Choice, ContextView, Exchange, FAN_IN, InputDigest, KeptShard, MergeNode, MergeTree, Passing, PassingScore, Plan,
    RefreshRule, Shard,
};
pub use request::PlanRequest;
pub use rope::RopeLength;
pub use span::{Input, KnownIds, Span, TokenIds, TokenSet};
pub use summary::{
    BudgetSpread, Heuristic, Summary, SummaryBudget, SummaryRule, TieBreak, chunk_scores, summarize, summarize_by,
};
