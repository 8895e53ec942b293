//! The supervisor: admits hosts, plans and places jobs, decides what a failure means. Runs no model.

mod accused;
mod actor;
mod append;
mod asked_session;
mod assign;
mod change;
mod choose;
pub(crate) mod codes;
mod config;
mod context;
mod contexts;
mod dispatch;
mod events;
mod feed;
mod fingerprint;
mod gate;
mod given;
mod hear;
mod homes;
mod hosts;
mod job;
mod jobs;
mod journal;
mod lists;
mod measuring;
mod model;
mod moving;
mod placement;
mod prepare;
mod prepared;
mod presence;
mod pulse;
mod record;
mod recovery;
mod session;
mod session_text;
mod shell;
mod state;
mod told;
mod view;
mod waiting;
mod writer;

#[cfg(test)]
mod tests;

pub use actor::Supervisor;
pub use asked_session::AskedSession;
pub use change::Decided;
pub use config::{ContextHosts, HostSpec, Liveness, Recovery, SessionLimits, SupervisorConfig};
pub use events::EventListener;
pub use feed::Listener;
pub use fingerprint::Fingerprint;
pub use gate::{Closed, Gate};
pub use job::{Outcome, Question};
pub use lists::{JobPages, SessionPages};
pub use placement::{
    Arrangement, Candidate, Demand, MixedNumerics, PlacementPolicy, PlacementRefusal, place, place_among_equals,
};
pub use prepare::ModelFront;
pub use prepared::PreparedContext;
pub use state::{Command, Event, Origin, PreparedJob, Source, SupervisorState};
pub use view::JobFilter;
