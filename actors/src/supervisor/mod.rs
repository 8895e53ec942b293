//! The supervisor: admits hosts, plans and places jobs, decides what a failure means. Runs no model.

mod actor;
mod assign;
mod config;
mod context;
mod hear;
mod hosts;
mod job;
mod placement;
mod prepare;
mod record;
mod recovery;
mod session;
mod state;

#[cfg(test)]
mod tests;

pub use actor::Supervisor;
pub use config::{ContextHosts, HostSpec, Recovery, SessionLimits, SupervisorConfig};
pub use context::PreparedContext;
pub use job::Question;
pub use placement::{Arrangement, Candidate, Demand, PlacementPolicy, PlacementRefusal, place};
pub use prepare::{AskedSession, ModelFront};
pub use state::{Command, Event, Outcome, PreparedJob, Source, SupervisorState};
