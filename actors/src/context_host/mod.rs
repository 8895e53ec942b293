//! The context host: encodes shards (phase 1) and answers queries over those it holds (phase 2).

mod answering;
mod chain;
mod command;
mod error;
mod fair_scheduler;
mod inventory;
mod parcels;
mod side;
mod state;
mod stop;
mod store;
mod tickets;
mod work;

pub use command::{ContextHostCommand, ContextHostEvent, EncodeWork, Failure};
pub(crate) use side::ContextSide;
pub use state::ContextHostState;
