//! The query host: encodes the query and generates, asking every context host layer by layer (phase 2).

pub mod gather;
mod generation;
mod remote;
mod side;
mod state;

pub(crate) use side::QuerySide;
pub use state::{Command, Event, GenerationEnd, QueryHostState};
