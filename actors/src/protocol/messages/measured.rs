//! What came of an order to encode, and of one to measure links.

use asterism_transport::Endpoint;
use rkyv::{Archive, Deserialize, Serialize};

/// One encoded shard.
#[derive(Clone, Debug, Default, PartialEq, Archive, Serialize, Deserialize)]
pub struct Encoded {
    /// Context.
    pub context: u64,
    /// Shard.
    pub block: u32,
    /// The checksum of what its pass read.
    pub digest: u64,
    /// Context tokens kept.
    pub kept_tokens: u64,
    /// Bytes of KV held for it.
    pub kv_bytes: u64,
    /// Seconds from the start of the shards encoded together to their end, divided among them.
    pub seconds: f64,
    /// Of these, seconds in which this host computed: neither waited for another nor for its turn.
    pub computing_s: f64,
    /// Floating-point operations that its pass takes.
    pub operations: u64,
    /// (row, key) pairs that went through a softmax, over all layers and query heads.
    pub pairs: u64,
    /// Bytes of tensors received from other hosts; counted with the first of the shards encoded together.
    pub exchange_bytes: u64,
    /// Whether it lay there already, encoded for another context, so that nothing was computed.
    pub cached: bool,
}

/// A host whose link is to be measured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct LinkPeer {
    /// Its name.
    pub host: String,
    /// Where it is reached.
    pub endpoints: Vec<Endpoint>,
}

/// What a link was measured to take.
#[derive(Clone, Debug, Default, PartialEq, Archive, Serialize, Deserialize)]
pub struct MeasuredLink {
    /// The host at its other end.
    pub peer: String,
    /// Transport by name.
    pub transport: String,
    /// Better ways that it does not take, each with the cause.
    pub why: String,
    /// Seconds of a question there and back, at the median.
    pub round_trip_s: f64,
    /// Bytes one way in a second.
    pub bytes_per_s: f64,
    /// Why it was not measured; empty where it was.
    pub error: String,
}
