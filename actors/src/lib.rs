//! The hosts of a cluster as actors: supervisor, context host, query host, and the messages between them.
//!
//! Each host's rules are a pure `state.rs` (`handle(now, event) -> commands`); its `actor.rs` is a thin ractor shell that
//! carries commands out. Knows no CLI, no cluster file and no HTTP.

pub mod api;
pub mod authority;
pub mod context_host;
pub mod cores;
mod error;
mod handing;
pub mod host;
mod link;
pub mod machine;
pub mod messages;
pub mod metric;
pub mod news;
pub mod node;
mod payload;
mod probe;
pub mod query_host;
pub mod room;
pub mod store;
pub mod supervisor;
pub mod tally;
pub mod ticket;
pub mod trace;

pub use error::{HostError, JobError};
pub use host::{HandsOver, HostConfig, LoadedModel, ModelLoader, Transports};
