//! Verbs about jobs and sessions, the plan that a job would get, and how it would go.

pub(crate) mod arguments;
pub mod job;
pub mod plan;
pub mod session;
pub mod simulate;
