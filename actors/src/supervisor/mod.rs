//! The supervisor: admits hosts, plans and places jobs, decides what a failure means. Runs no model.

mod actor;
mod config;
mod hosts;
mod job;
mod placement;
mod prepare;
mod state;

#[cfg(test)]
mod tests;

pub use actor::Supervisor;
pub use config::{ContextHosts, HostSpec, Recovery, SessionLimits, SupervisorConfig};
pub use placement::{Arrangement, Candidate, Demand, PlacementPolicy, PlacementRefusal, place};
pub use prepare::ModelFront;
pub use state::{Command, Event, Outcome, PreparedJob, SupervisorState};
