//! Verbs about jobs and sessions, and the plan that a job would get.

pub(crate) mod arguments;
pub mod job;
pub mod plan;
pub mod session;
