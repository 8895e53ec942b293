//! The hosts of a cluster as actors: supervisor, context host, query host, and the messages between them.
//!
//! Each host's rules are a pure `state.rs` (`handle(now, event) -> commands`); its `actor.rs` is a thin ractor shell that
//! carries commands out. Knows no CLI, no cluster file and no HTTP.

pub mod api;
mod compute;
pub mod context_host;
mod error;
pub mod host;
pub mod node;
mod process;
mod protocol;
pub mod query_host;
pub mod store;
pub mod supervisor;
mod telemetry;

pub use compute::{Batching, DeviceHandover, LoadedModel, ModelLoader};
pub use error::{HostError, JobError, PlacementRefusal};
pub use host::{HostConfig, Transports};
pub use process::{capacity, cores, machine};
pub use protocol::{authority, messages, ticket};
pub(crate) use protocol::{handing, link, payload, probe};
pub use telemetry::{cluster_event, metric, readings, tally, trace};
