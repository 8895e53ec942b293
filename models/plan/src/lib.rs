//! Which tokens, positions, masks, exchanges and kept KV each shard gets. Pure: no tensor, clock, socket or file.
//!
//! A plan is a value that a [`Method`] makes from a [`PlanRequest`]; everything downstream only carries it out.

mod blocks;
mod cost;
mod error;
pub mod methods;
mod plan;
mod summary;

pub use blocks::{host_of_blocks, split_blocks};
pub use cost::{Cost, HostCost, ModelShape};
pub use error::PlanError;
pub use methods::{Method, MethodConfig};
pub use plan::{Exchange, LocalAttention, Plan, PlanRequest, Shard};
pub use summary::{BudgetSpread, Heuristic, Summary, SummaryBudget, SummaryRule, TieBreak, chunk_scores, summarize};
