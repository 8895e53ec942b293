//! What the supervisor keeps in memory: data with invariants and indexes. Decides nothing.

pub mod context;
pub mod contexts;
pub mod hosts;
pub mod job;
pub mod jobs;
pub mod model;
pub mod numbers;
pub mod prepared;
pub mod reserved;
pub mod sessions;
pub mod shard_homes;
