//! The messages between hosts and the supervisor: rkyv archives in control frames. Tensors never travel here.
//!
//! Bytes from the network are validated before anything reads them.
//!
//! **How they grow.** Two builds that follow each other talk, so that a message keeps the bytes that it has: no field is added to one, taken
//! from it, or changes its type, and an enumeration grows at its end alone, by variants no larger than those there are (a test holds the
//! bytes of each). Something new is a variant of its own, which has the version of the protocol in [`WireMessage::since`] that it
//! came with; to a peer of an older version it is not said. It carries its fields by name, as [`Settings`] does: such a message
//! grows by fields that have a default.

// The archived twins that rkyv derives carry no docs of their own.
#![allow(missing_docs)]

mod choice;
mod ids;
mod measured;
mod model;
mod queries;
mod settings;
mod wire;

use asterism_models::ShardIdentity;
use asterism_plan::{ContextView, Exchange, KeptShard, Shard};
use asterism_transport::Endpoint;
use rkyv::{Archive, Deserialize, Serialize};

pub use choice::{TokenChoice, TokenShaping};
pub use ids::{ContextIds, IdRun};
pub use measured::{Encoded, LinkPeer, MeasuredLink};
pub use model::ModelReport;
pub use queries::{
    Admitted, Attach, ChannelOpening, InvalidMerge, ParcelsTaken, PartialsAnswer, PartialsMeta, PartialsPart,
    QueryMeta, QueryPart, RefreshOrder, RelayChild, RelayOrder, ShardKeys, ShardSent, StreamingMask,
};
pub(crate) use queries::{are_of, unmerged};
pub use settings::Settings;
pub use wire::{InvalidMessage, WireMessage};

use crate::{
    api::{Role, TokenLogprobs, TraceContext},
    readings::{DurationHistogram, LinkReport, Phase2Times},
    ticket::Ticket,
};

/// First message of a host on its supervisor link, at its start and whenever it comes back to a supervisor.
#[derive(Clone, Debug, Default, PartialEq, Archive, Serialize, Deserialize)]
pub struct Hello {
    /// Host name, as the cluster file has it.
    pub name: String,
    /// What it is started as.
    pub role: HostRole,
    /// Which of the host's lives it is, as its `Welcome` said; 0 before the first.
    pub incarnation: u64,
    /// The node's own number of this process.
    pub start: u64,
    /// Process id.
    pub pid: u32,
    /// Where other hosts reach it, the best way first.
    pub endpoints: Vec<Endpoint>,
    /// The cluster it has worked for since its start, as its `Welcome` named it; 0 before the first.
    pub cluster: u64,
    /// Contexts it holds shards of or encodes.
    pub contexts: Vec<u64>,
    /// Jobs it generates for or has an answer of, with what opens their contexts: who was told to generate has it.
    pub jobs: Vec<(u64, Ticket)>,
}

/// What a process on a supervisor link is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum HostRole {
    /// Encodes shards.
    #[default]
    Context,
    /// Generates.
    Query,
    /// Waits to take the place of either.
    Spare,
    /// Starts, watches and ends the host processes of a machine.
    Node,
}

impl HostRole {
    /// The host's role; none for a node.
    pub fn role(self) -> Option<Role> {
        match self {
            Self::Context => Some(Role::Context),
            Self::Query => Some(Role::Query),
            Self::Spare => Some(Role::Spare),
            Self::Node => None,
        }
    }
}

/// What a host tells the supervisor.
#[derive(Clone, Debug, PartialEq, Archive, Serialize, Deserialize)]
pub enum HostMessage {
    /// Opens the conversation.
    Hello(Hello),
    /// The model is loaded.
    Ready {
        /// What decides the bits of its results, in words.
        numerics: String,
        /// The digest of the model.
        model: Box<ModelReport>,
    },
    /// The host cannot work; it ends after saying so.
    Unfit {
        /// Why, with the remedy.
        cause: String,
    },
    /// Alive.
    Heartbeat {
        /// KV bytes held.
        kv_bytes: u64,
        /// KV bytes of shards that nobody asks for any more, and that go when there is no room.
        idle_bytes: u64,
    },
    /// What the host measures of its links; said with a heartbeat once a second, or with every fourth where that is less often; the latest
    /// stands.
    Links(LinkReport),
    /// What it measured of its links, as it was told to.
    Measured {
        /// As they were named.
        links: Vec<MeasuredLink>,
    },
    /// A shard moved on by a layer.
    Progress {
        /// Context.
        context: u64,
        /// Shard.
        block: u32,
        /// Layers done.
        layers: u32,
        /// Layers in all.
        of: u32,
    },
    /// A shard is encoded and its KV held. Said again when the order for it comes again.
    Encoded(Encoded),
    /// An order to encode came to nothing.
    NotEncoded {
        /// Context.
        context: u64,
        /// Attempt of the order.
        attempt: u32,
        /// Whether another host could not be reached or gave up, so that another attempt may succeed.
        peer_lost: bool,
        /// Stable code.
        code: String,
        /// What failed, where, and what to do.
        message: String,
    },
    /// Phase 2 made a token. All are said again when the order to generate comes again.
    Token {
        /// Job.
        job: u64,
        /// Place in the answer, from 0.
        index: u32,
        /// Token id.
        id: u32,
        /// Text it completes.
        text: String,
        /// How likely it was, where that is asked for.
        logprobs: Option<Box<TokenLogprobs>>,
    },
    /// Phase 2 ended with an answer.
    Generated {
        /// Job.
        job: u64,
        /// Tokens in all.
        tokens: u32,
        /// Whether an end of sequence or stop string ended it, rather than the token limit.
        stopped: bool,
        /// Text held back while it could have begun a stop string.
        text: String,
        /// Where its seconds went.
        times: Box<Phase2Times>,
    },
    /// Phase 2 waits: shards of a host do not answer. It goes on with the next [`HostCommand::Holders`].
    Stalled {
        /// Job.
        job: u64,
        /// The host that does not answer.
        host: String,
        /// Whether it answers what cannot be right.
        wrong: bool,
        /// What was observed.
        cause: String,
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
    /// A node: a host process of it ended. The node starts it again, unless it has ended too often.
    Exited {
        /// Host.
        host: String,
        /// The node's number of the process that ended.
        start: u64,
        /// How.
        cause: String,
        /// Whether it will be started again.
        restarting: bool,
    },
    /// A node: how a host process of it looks from outside. Said at each look that finds it starved, and when that changes.
    Seen {
        /// Host.
        host: String,
        /// The node's number of the process.
        start: u64,
        /// How it looks.
        condition: Condition,
    },
    /// The host was asked to end. It waits to be told so, which is when others have what it has, and for no longer than this.
    Leaving {
        /// Milliseconds until it ends in any case.
        grace_ms: u64,
    },
    /// An answer of phase 2 was held to a form. Said before its end.
    Masked {
        /// Job.
        job: u64,
        /// How long each token waited to know which may come next, and to be taken in.
        masks: Box<DurationHistogram>,
    },
    /// A node: the GPUs of its machine, where it can read them. The latest stands.
    Gpus {
        /// [`GpuReading`](crate::api::GpuReading)s, as JSON.
        gpus: String,
    },
}

/// A token of an answer: its id, the text that it completes, and how likely it was where that is asked for.
pub type AnswerToken = (u32, String, Option<Box<TokenLogprobs>>);

/// How a process looks to the node beside it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum Condition {
    /// It runs, or waits for something to do.
    #[default]
    Well,
    /// A signal or a debugger stopped it.
    Stopped,
    /// It waits for memory or for a disk, and does so now and then at least.
    Starved,
}

/// What the supervisor tells a host.
#[derive(Clone, Debug, PartialEq, Archive, Serialize, Deserialize)]
pub enum HostCommand {
    /// Accepts a hello and sets the pace of heartbeats.
    Welcome {
        /// Milliseconds between heartbeats.
        heartbeat_ms: u64,
        /// The cluster, for later hellos.
        cluster: u64,
        /// Which of the host's lives this is, for later hellos; larger than that of every earlier one.
        incarnation: u64,
    },
    /// Refuses a hello, or the model that a host has loaded; the host ends.
    Refuse {
        /// Why.
        reason: String,
    },
    /// Token ids that later orders read.
    Ids(ContextIds),
    /// Encode shards and keep their KV. Shards held already are reported again, those under way are not begun anew; an order
    /// of a later attempt ends one whose shards pass each other something.
    Encode(EncodeShards),
    /// Answer a query over shards that context hosts hold. Given again, everything said so far is said again.
    Generate(Generate),
    /// Shards moved: ask these hosts from now on.
    Holders {
        /// Job.
        job: u64,
        /// Who holds which shards.
        holders: Vec<ShardHolder>,
    },
    /// End a generation and forget its answer.
    Stop {
        /// Job.
        job: u64,
    },
    /// Measure the links to these hosts, one after another.
    Measure {
        /// The hosts.
        peers: Vec<LinkPeer>,
    },
    /// Stop encoding a context. Its KV goes, or lies idle while there is room.
    Release {
        /// Context.
        context: u64,
        /// Whether what it held may be found again by what it is; not where it may be wrong.
        keep: bool,
    },
    /// A node: end a host's process at once; it was declared dead. The node starts it again.
    Kill {
        /// Host.
        host: String,
        /// The node's number of the process; another one is left alone.
        start: u64,
    },
    /// End the process.
    Shutdown,
    /// End the process, which has nothing any more that anybody waits for. Its node starts it again.
    Leave,
    /// A node: start a host's process, unless it runs or is about to.
    Start {
        /// Host.
        host: String,
    },
    /// Do something otherwise from now on.
    Configure {
        /// [`Settings`], as JSON.
        settings: String,
    },
}

/// The bit of a tenant's number which says that nobody waits on a connection for what was asked: it takes what others leave.
pub const BACKGROUND_TENANT: u64 = 1 << 63;

/// Phase 1 of shards that one host encodes together: a single one, or all it holds of a plan whose shards pass each other
/// something.
#[derive(Clone, Debug, PartialEq, Archive, Serialize, Deserialize)]
pub struct EncodeShards {
    /// Context.
    pub context: u64,
    /// Number of the key that asked: what others asked for does not keep its contexts waiting.
    pub tenant: u64,
    /// Larger each time that the context's shards are dealt anew.
    pub attempt: u32,
    /// The shards, ascending by block.
    pub shards: Vec<Shard>,
    /// Shards of the whole plan.
    pub blocks: u32,
    /// What shards pass each other.
    pub exchange: Exchange,
    /// Who has the shards that these send something to; of shards that pass each other nothing, who holds them already: their keys
    /// and values are fetched of it, and encoded only where it does not give them.
    pub peers: Vec<ShardHolder>,
    /// What whoever asks these shards, or passes them something, must show.
    pub ticket: Ticket,
    /// Bytes of keys and values that the host may hold, idle ones among them; none: unlimited.
    pub room: Option<u64>,
    /// The job's span, where its spans are wanted.
    pub trace: Option<Box<TraceContext>>,
    /// What shards are, by block: by it a host finds those that it holds already. None of a plan whose shards are encoded only
    /// together.
    pub identities: Vec<(u32, ShardIdentity)>,
}

impl EncodeShards {
    /// What a shard is, where it may be found again.
    pub fn identity(&self, block: usize) -> Option<ShardIdentity> {
        self.identities.iter().find(|(of, _)| *of as usize == block).map(|(_, identity)| *identity)
    }
}

/// Phase 2 of one job.
#[derive(Clone, Debug, PartialEq, Archive, Serialize, Deserialize)]
pub struct Generate {
    /// Job.
    pub job: u64,
    /// Number of the key that asked; jobs of one share its part of each step.
    pub tenant: u64,
    /// Context.
    pub context: u64,
    /// Query tokens.
    pub query_ids: Vec<u32>,
    /// Tokens of the answer that another host generated; they are gone through again, not chosen again.
    pub generated: Vec<u32>,
    /// Position id of the first of them.
    pub query_start: u32,
    /// The shards of the context: the keys that each must answer for, and how they are merged.
    pub shards: Vec<KeptShard>,
    /// What of the context it gets anew: keys that no shard answers for.
    pub refresh_order: Option<Box<RefreshOrder>>,
    /// The context's ids, or its last ones: what was answered before is guessed from them. None where nothing is to be guessed.
    pub lookup: Option<Vec<u32>>,
    /// Partials that are merged at a time, above the groups of the shards.
    pub fan_in: u32,
    /// Which of the keys a row sees.
    pub view: ContextView,
    /// Hosts that hold shards.
    pub holders: Vec<ShardHolder>,
    /// How tokens are chosen.
    pub choice: Box<TokenChoice>,
    /// What opens the shards of the context.
    pub ticket: Ticket,
    /// The job's span, where its spans are wanted.
    pub trace: Option<Box<TraceContext>>,
}

/// A context host that holds shards of a context.
#[derive(Clone, Debug, PartialEq, Archive, Serialize, Deserialize)]
pub struct ShardHolder {
    /// Host name.
    pub host: String,
    /// Where it is reached.
    pub endpoints: Vec<Endpoint>,
    /// The shards it holds.
    pub blocks: Vec<u32>,
}

/// Meta of a parcel of phase 1, which comes as data: whose tensors the payload holds, one after the other, and their shapes.
#[derive(Clone, Debug, PartialEq, Archive, Serialize, Deserialize)]
pub struct ParcelMeta {
    /// Layer.
    pub layer: u32,
    /// What they are.
    pub part: ParcelPart,
    /// Block of the sender.
    pub from: u32,
    /// Block of the receiver; none for all later ones.
    pub to: Option<u32>,
    /// Row-major shape of each tensor.
    pub shapes: Vec<Vec<u32>>,
    /// Which part of the payload it is, where that is more than a frame may have, and of how many.
    pub piece: u32,
    /// Parts of the payload, at least 1.
    pub pieces: u32,
}

/// [`asterism_models::Part`] on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum ParcelPart {
    /// Keys and values.
    Keys,
    /// Query vectors.
    Queries,
    /// A share of the heads.
    Heads,
    /// Attention outputs.
    Outputs,
}
