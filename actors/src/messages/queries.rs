//! What is said on channels between hosts: who comes for what, the queries of phase 2 and their answers.

use asterism_plan::{HiddenKeys, Shard};
use rkyv::{Archive, Deserialize, Serialize};

use crate::ticket::Ticket;

/// First frame of a channel to a context host: what the channel is for.
#[derive(Clone, Debug, PartialEq, Archive, Serialize, Deserialize)]
pub enum Opening {
    /// Queries over the shards of a context, from a query host. More may follow on the same channel.
    Attach(Attach),
    /// No more queries over what was attached by this number.
    Detach {
        /// The number.
        attachment: u64,
    },
    /// Parcels of phase 1, from another context host.
    Pass {
        /// Context.
        context: u64,
        /// Attempt of the sender's order; parcels of another one are not taken.
        attempt: u32,
        /// The context's.
        ticket: Ticket,
    },
}

/// Last frame of a channel of parcels, from whom they went to: each has come to its encoder, or is wanted no more.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct Taken {
    /// Context.
    pub context: u64,
    /// Attempt.
    pub attempt: u32,
}

/// Meta of a `Query` frame: whose rows the payload holds, one part after the other, each row `(query heads, dim)`.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct QueryMeta {
    /// What is asked of which attachment.
    pub parts: Vec<QueryPart>,
}

/// Rows for the shards of one attachment.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct QueryPart {
    /// Its number.
    pub attachment: u64,
    /// How many rows.
    pub rows: u32,
    /// Which keys they see; all of them if there is none.
    pub mask: Option<StreamingMask>,
}

/// Rows that do not see every key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct StreamingMask {
    /// First keys, seen by all.
    pub sink: u64,
    /// Latest keys a row sees.
    pub window: u64,
    /// Token index of the first row.
    pub first_row: u64,
    /// Token index of the first key.
    pub first_key: u64,
}

/// What a query host expects of a context host.
#[derive(Clone, Debug, PartialEq, Archive, Serialize, Deserialize)]
pub struct Attach {
    /// What queries and answers name it by; no other attachment of the channel has this number.
    pub attachment: u64,
    /// Context.
    pub context: u64,
    /// Shards the query host expects there. Those of a list are answered by one partial.
    pub groups: Vec<Vec<u32>>,
    /// Keys of these shards that are not to be seen; ascending by shard.
    pub hidden: Vec<HiddenKeys>,
    /// The context's.
    pub ticket: Ticket,
}

/// Tokens of a context that a question gets anew: encoded together by whoever generates, in place of the keys that shards keep.
#[derive(Clone, Debug, PartialEq, Archive, Serialize, Deserialize)]
pub struct Anew {
    /// The pass that encodes them.
    pub shard: Shard,
    /// What it reads, row by row.
    pub ids: Vec<u32>,
    /// Keys of shards that are hidden for it; ascending by shard.
    pub hidden: Vec<HiddenKeys>,
}

/// Meta of a `Partials` frame: whose partials the payload holds, one part after the other, packed rows of each of its groups.
#[derive(Clone, Debug, PartialEq, Archive, Serialize, Deserialize)]
pub struct PartialsMeta {
    /// One entry a part of the query; or what cannot be attached.
    pub parts: Vec<PartialsPart>,
}

/// The answer to one part.
#[derive(Clone, Debug, PartialEq, Archive, Serialize, Deserialize)]
pub struct PartialsPart {
    /// The attachment's number.
    pub attachment: u64,
    /// Rows of the question.
    pub rows: u32,
    /// Shards that the payload has partials of, group by group, or why there are none.
    pub answer: PartialsAnswer,
}

/// Whether an attachment answers.
#[derive(Clone, Debug, PartialEq, Archive, Serialize, Deserialize)]
pub enum PartialsAnswer {
    /// The shards of each partial.
    Groups(Vec<Vec<ShardKeys>>),
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
