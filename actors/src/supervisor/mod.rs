//! The supervisor: admits hosts, plans and places jobs, decides what a failure means. Runs no model.

mod actor;
mod hosts;
mod job;
mod prepare;
mod state;

#[cfg(test)]
mod tests;

pub use actor::Supervisor;
pub use prepare::ModelFront;
pub use state::{Command, Event, HostSpec, Outcome, PreparedJob, Recovery, SupervisorConfig, SupervisorState};
