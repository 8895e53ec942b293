//! The query host: encodes queries and generates, all jobs together, asking every context host layer by layer (phase 2).

mod arrival;
mod background;
mod engine;
mod forms;
mod generation;
mod lookup;
mod partials;
mod refresh;
mod schedule;
mod side;
mod spans;
mod state;

pub use partials::{gather, route};
pub(crate) use side::QuerySide;
pub use state::{GenerationEnd, QueryHostCommand, QueryHostEvent, QueryHostState};
