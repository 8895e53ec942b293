//! Which tokens, positions, masks, exchanges and kept KV each shard gets. Pure: no tensor, clock, socket or file.
//!
//! A plan is a value that a [`Method`] makes from a [`PlanRequest`]; everything downstream only carries it out.

pub mod attention;
mod blocks;
mod cost;
mod digest;
mod draw;
mod error;
mod exchange;
mod forecast;
mod merge;
pub mod methods;
mod plan;
mod refresh;
mod rope;
mod size;
mod span;
mod summary;

pub use attention::LocalAttention;
pub use blocks::{balanced_blocks, host_of_blocks, split_blocks};
pub use cost::{Carried, Cost, HeadShare, HostCost, ModelShape};
pub use digest::InputDigest;
pub use error::PlanError;
pub use exchange::{Exchange, Passing, PassingScore};
pub use forecast::{Calibration, Conditions, Forecast, StepSeconds};
pub use merge::{FAN_IN, MergeNode, MergeTree};
pub use methods::{Alternative, Method, MethodConfig};
pub use plan::{Choice, ContextView, KeptShard, Plan, PlanRequest, Shard};
pub use refresh::{HiddenKeys, Refresh, RefreshRule};
pub use rope::RopeLength;
pub use span::{Input, KnownIds, Span, TokenIds, TokenSet};
pub use summary::{
    BudgetSpread, Heuristic, Summary, SummaryBudget, SummaryRule, TieBreak, chunk_scores, summarize, summarize_by,
};
