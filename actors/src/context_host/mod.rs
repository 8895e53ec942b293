//! The context host: encodes shards (phase 1) and answers queries over those it holds (phase 2).

mod answering;
mod command;
mod error;
mod known;
mod parcels;
mod side;
mod state;
mod stop;
mod store;
mod tickets;
mod turns;
mod work;

pub use command::{Command, Event, Failure, Work};
pub(crate) use parcels::pieces::{MOST_PIECES, PIECE_BYTES};
pub(crate) use side::ContextSide;
pub use state::ContextHostState;
