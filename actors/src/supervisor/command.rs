//! What happens to the supervisor, and what it wants done about it: plain values. Carries nothing out.

use asterism_models::WeightsDigest;

use crate::{
    api::JobEvent,
    cluster_event::ClusterEventKind,
    messages::{HostCommand, HostMessage},
    metric::Observation,
    store::Change,
};

/// What happens to the supervisor; what clients change is [`Decided`](super::Decided).
#[derive(Clone, Debug)]
pub enum SupervisorEvent {
    /// A message on a host or node connection.
    Message {
        /// Connection, unique for the life of the supervisor.
        connection: u64,
        /// What it said.
        message: HostMessage,
    },
    /// A host or node connected, and both settled on a version of the protocol.
    Connected {
        /// Connection.
        connection: u64,
        /// The version.
        protocol: u16,
    },
    /// A host or node connection ended.
    Disconnected {
        /// Connection.
        connection: u64,
        /// Why.
        cause: String,
    },
    /// The digest of the supervisor's own weights of a model is there, or why it cannot be had.
    Weights {
        /// The model's label.
        model: String,
        /// The digest.
        weights: Result<WeightsDigest, String>,
    },
    /// The supervisor's own process has waited for memory or a disk since the last tick.
    Starved,
    /// Time passed.
    Tick,
}

/// What the supervisor wants done, in order. Nothing beside a change to be kept, and nothing later, is done before it is.
#[derive(Clone, Debug)]
pub enum SupervisorCommand {
    /// Keep a change in the journal.
    Persist(Change),
    /// Keep a change that nothing beside it rests on: a supervisor that starts without it comes to the same answers.
    Note(Change),
    /// Tell a host or node.
    Send {
        /// Connection.
        connection: u64,
        /// What.
        command: HostCommand,
    },
    /// Close a connection.
    Disconnect {
        /// Connection.
        connection: u64,
        /// Reason given to the peer.
        reason: String,
    },
    /// Tell a job's watchers.
    Publish {
        /// Job number.
        job: u64,
        /// What.
        event: JobEvent,
    },
    /// Count or time something.
    Observe(Observation),
    /// Say something in the log.
    Notify(ClusterEventKind),
}

/// What an event may have changed of who works on what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkChange {
    /// Nothing.
    Nothing,
    /// What it touched.
    Touched,
    /// Hosts or the time: what could not be placed before may find room.
    Everything,
}
