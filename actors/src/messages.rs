//! What hosts and the supervisor say to each other: rkyv archives in control frames. Tensors never travel here.
//!
//! Bytes from the network are validated before anything reads them.

// The archived twins that rkyv derives carry no docs of their own.
#![allow(missing_docs)]

use asterism_transport::Frame;
use rkyv::{Archive, Deserialize, Serialize, rancor, util::AlignedVec};
use thiserror::Error;

use crate::api::Role;

/// First words of a host on its supervisor link.
#[derive(Clone, Debug, PartialEq, Archive, Serialize, Deserialize)]
pub struct Hello {
    /// Host name, as the cluster file has it.
    pub name: String,
    /// Whether it encodes contexts or generates.
    pub role: HostRole,
    /// Larger at each start of the process: a message of an earlier life is refused.
    pub incarnation: u64,
    /// Process id.
    pub pid: u32,
    /// Where other hosts reach it.
    pub address: String,
}

/// A working role on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum HostRole {
    /// Encodes shards.
    Context,
    /// Generates.
    Query,
}

impl From<HostRole> for Role {
    fn from(role: HostRole) -> Self {
        match role {
            HostRole::Context => Role::Context,
            HostRole::Query => Role::Query,
        }
    }
}

/// What a host tells the supervisor.
#[derive(Clone, Debug, PartialEq, Archive, Serialize, Deserialize)]
pub enum HostMessage {
    /// Opens the conversation.
    Hello(Hello),
    /// The model is loaded.
    Ready,
    /// The host cannot work; it ends after saying so.
    Unfit {
        /// Why, with the remedy.
        cause: String,
    },
    /// Alive.
    Heartbeat {
        /// KV bytes held.
        kv_bytes: u64,
    },
    /// A shard moved on by a layer.
    Progress {
        /// Job.
        job: u64,
        /// Shard.
        block: u32,
        /// Layers done.
        layers: u32,
        /// Layers in all.
        of: u32,
    },
    /// A shard is encoded and its KV held.
    Encoded(Encoded),
    /// Phase 2 made a token.
    Token {
        /// Job.
        job: u64,
        /// Token id.
        id: u32,
        /// Text it completes.
        text: String,
    },
    /// Phase 2 ended with an answer.
    Generated {
        /// Job.
        job: u64,
        /// Whether an end of sequence or stop string ended it, rather than the token limit.
        stopped: bool,
        /// Text held back while it could have begun a stop string.
        text: String,
    },
    /// The host could not do its part of a job.
    Failed {
        /// Job.
        job: u64,
        /// Stable code.
        code: String,
        /// What failed, where, and what to do.
        message: String,
    },
}

/// One encoded shard.
#[derive(Clone, Debug, PartialEq, Archive, Serialize, Deserialize)]
pub struct Encoded {
    /// Job.
    pub job: u64,
    /// Shard.
    pub block: u32,
    /// Context tokens kept.
    pub kept_tokens: u64,
    /// Bytes of KV held for it.
    pub kv_bytes: u64,
    /// Seconds of compute.
    pub seconds: f64,
}

/// What the supervisor tells a host.
#[derive(Clone, Debug, PartialEq, Archive, Serialize, Deserialize)]
pub enum HostCommand {
    /// Accepts a hello and sets the pace of heartbeats.
    Welcome {
        /// Milliseconds between heartbeats.
        heartbeat_ms: u64,
    },
    /// Refuses a hello; the host ends.
    Refuse {
        /// Why.
        reason: String,
    },
    /// Encode one shard and keep its KV.
    Encode(EncodeShard),
    /// Answer a query over shards that context hosts hold.
    Generate(Generate),
    /// Forget a job: stop its work, free its KV.
    Release {
        /// Job.
        job: u64,
    },
    /// End the process.
    Shutdown,
}

/// Phase 1 of one shard; see [`asterism_plan::Shard`].
#[derive(Clone, Debug, PartialEq, Archive, Serialize, Deserialize)]
pub struct EncodeShard {
    /// Job.
    pub job: u64,
    /// Place in the merge.
    pub block: u32,
    /// Assembled input.
    pub input_ids: Vec<u32>,
    /// Position ids.
    pub position_ids: Vec<u32>,
    /// First row whose KV is kept.
    pub keep_from: u64,
    /// Attention inside the shard, as its plan has it.
    pub attention: ShardAttention,
}

/// [`asterism_plan::LocalAttention`] on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum ShardAttention {
    /// Causal by index.
    Causal,
}

/// Phase 2 of one job.
#[derive(Clone, Debug, PartialEq, Archive, Serialize, Deserialize)]
pub struct Generate {
    /// Job.
    pub job: u64,
    /// Query tokens.
    pub query_ids: Vec<u32>,
    /// Position id of the first of them.
    pub query_start: u32,
    /// Context tokens that the shards must add up to.
    pub context_tokens: u64,
    /// Hosts that hold shards.
    pub holders: Vec<ShardHolder>,
    /// How tokens are chosen.
    pub choice: TokenChoice,
}

/// A context host that holds shards of a job.
#[derive(Clone, Debug, PartialEq, Archive, Serialize, Deserialize)]
pub struct ShardHolder {
    /// Host name.
    pub host: String,
    /// Where it is reached.
    pub address: String,
    /// The shards it holds.
    pub blocks: Vec<u32>,
}

/// How tokens are chosen and when generation ends.
#[derive(Clone, Debug, PartialEq, Archive, Serialize, Deserialize)]
pub struct TokenChoice {
    /// Most tokens.
    pub max_tokens: u32,
    /// 0 is greedy.
    pub temperature: f32,
    /// Nucleus.
    pub top_p: f32,
    /// Seed of the sampler.
    pub seed: u64,
    /// Strings that end the answer.
    pub stop: Vec<String>,
    /// Go on after end-of-sequence tokens.
    pub ignore_eos: bool,
}

/// First frame of a phase-2 channel from the query host to a context host.
#[derive(Clone, Debug, PartialEq, Archive, Serialize, Deserialize)]
pub struct Attach {
    /// Job.
    pub job: u64,
    /// Shards the query host expects there.
    pub blocks: Vec<u32>,
}

/// Meta of a `Partials` frame: whose partials the payload holds, in order, each `output` then `lse`, f32.
#[derive(Clone, Debug, PartialEq, Archive, Serialize, Deserialize)]
pub enum PartialsMeta {
    /// One entry a shard.
    Shards(Vec<ShardKeys>),
    /// The host could not answer.
    Failed {
        /// Why.
        cause: String,
    },
}

/// A shard and its number of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct ShardKeys {
    /// Place in the merge.
    pub block: u32,
    /// Keys attended to.
    pub keys: u64,
}

/// Bytes that are not the message they should be.
#[derive(Debug, Error)]
#[error("{peer} sent bytes that are not a valid {expected} message: {cause}")]
pub struct InvalidMessage {
    /// Who sent them.
    pub peer: String,
    /// What was expected.
    pub expected: &'static str,
    /// What the validator says.
    pub cause: String,
}

macro_rules! wire_message {
    ($($type:ty = $name:literal),+ $(,)?) => {$(
        impl WireMessage for $type {
            fn archive(&self) -> AlignedVec {
                rkyv::to_bytes::<rancor::Error>(self).expect("plain values archive without failing")
            }

            fn read(bytes: &AlignedVec, peer: &str) -> Result<Self, InvalidMessage> {
                rkyv::from_bytes::<Self, rancor::Error>(bytes).map_err(|cause| InvalidMessage {
                    peer: peer.to_string(),
                    expected: $name,
                    cause: cause.to_string(),
                })
            }
        }
    )+};
}

/// A value that travels as a validated archive.
pub trait WireMessage: Sized {
    /// Its archive.
    fn archive(&self) -> AlignedVec;
    /// Reads an archive of `peer`, validating it first.
    fn read(bytes: &AlignedVec, peer: &str) -> Result<Self, InvalidMessage>;
    /// Its archive in a control frame.
    fn frame(&self) -> Frame {
        Frame::control(self.archive())
    }
}

wire_message!(HostMessage = "host", HostCommand = "supervisor", Attach = "attach", PartialsMeta = "partials",);
