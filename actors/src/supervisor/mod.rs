//! The supervisor: admits hosts, plans and places jobs, decides what a failure means. Runs no model.

mod command;
mod config;
mod fingerprint;
mod journal;
mod placement;
mod prepare;
mod rules;
mod scheduler;
mod shell;
mod state;
mod tables;

#[cfg(test)]
mod tests;

pub use command::{SupervisorCommand, SupervisorEvent};
pub use config::{
    ContextHosts, HostSpec, Liveness, MODEL_LABEL, ReadyWhen, Recovery, ServedModel, SessionLimits, SupervisorConfig,
};
pub use fingerprint::Fingerprint;
pub use journal::change::Decided;
pub use placement::{
    Candidate, Demand, ISLAND_LABEL, MeasuredHost, MixedNumerics, NotTaken, RACK_LABEL, Wanted, explain, island_of,
    measured_islands, place, place_among_equals,
};
pub use prepare::{ModelFront, is_continued};
pub use scheduler::limits as scheduling;
pub use shell::{
    actor::Supervisor,
    admission_gate::{AdmissionClosed, AdmissionGate},
    config_metrics::record_config,
    events::EventListener,
    feed::Listener,
    lists::{JobPages, SessionPages},
};
pub use state::{SupervisorState, view::JobFilter};
pub use tables::{
    job::{Outcome, PreparedJob, Question, Source},
    numbers::Origin,
    prepared::{PreparedContext, asked_session::AskedSession},
};
