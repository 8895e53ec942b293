//! The query host: encodes the query and generates, asking every context host layer by layer (phase 2).

mod actor;
mod generation;
mod remote;
mod state;

pub use actor::run;
pub use state::{Command, Event, QueryHostState};
