//! The context host: encodes shards (phase 1) and answers queries over those it holds (phase 2).

mod answer;
mod attending;
mod command;
mod error;
mod known;
mod mailroom;
mod parcels;
mod passing;
mod pieces;
mod queries;
mod relay;
mod side;
mod state;
mod stop;
mod store;
mod tickets;
mod turns;
mod work;

pub use command::{Command, Event, Failure, Work};
pub(crate) use pieces::{MOST_PIECES, PIECE_BYTES};
pub(crate) use side::ContextSide;
pub use state::ContextHostState;
