//! The query host: encodes queries and generates, all jobs together, asking every context host layer by layer (phase 2).

mod answers;
mod asked;
mod contexts;
mod engine;
pub mod gather;
mod generation;
mod here;
mod lines;
mod refreshing;
pub mod route;
mod schedule;
mod side;
mod spans;
mod state;

pub(crate) use side::QuerySide;
pub use state::{Command, Event, GenerationEnd, QueryHostState};
