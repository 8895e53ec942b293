//! The context host: encodes shards (phase 1) and answers queries over those it holds (phase 2).

mod actor;
mod answer;
mod mailroom;
mod passing;
mod state;
mod store;

pub use actor::run;
pub use state::{Command, ContextHostState, Event};
