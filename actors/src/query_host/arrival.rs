//! What reaches the thread that generates: frames of hosts, orders of the supervisor. Plain values.

use asterism_transport::Frame;
use tokio::sync::OwnedSemaphorePermit;

use crate::messages::{Generate, ShardHolder};

/// What reaches the thread.
pub enum Arrival {
    /// A frame came over a line, and its place among those that it may have here.
    Frame(u64, Frame, OwnedSemaphorePermit),
    /// A line is of no use any more.
    Broke(u64, String),
    /// A generation begins.
    Begin(Box<Generate>),
    /// Where a job's shards are from now on.
    Holders {
        /// Job.
        job: u64,
        /// Who holds which shards.
        holders: Vec<ShardHolder>,
    },
    /// What a job's question gets anew is encoded, or what holds its answer to a form is made.
    Fresh {
        /// Job.
        job: u64,
    },
    /// A generation is to stop.
    Stop {
        /// Job.
        job: u64,
    },
    /// All of them are.
    Close,
}
