//! What the supervisor keeps in memory: data with invariants and indexes. Decides nothing.

pub mod asked_session;
pub mod context;
pub mod contexts;
pub mod hosts;
pub mod job;
pub mod jobs;
pub mod model;
pub mod prepared;
pub mod session_text;
