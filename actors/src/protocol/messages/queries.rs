//! What is said on channels between hosts: who comes for what, the queries of phase 2 and their answers.

use asterism_plan::{HiddenKeys, Shard};
use asterism_transport::Endpoint;
use rkyv::{Archive, Deserialize, Serialize};
use thiserror::Error;

use crate::{api::TraceContext, ticket::Ticket};

/// First frame of a channel to a context host: what the channel is for.
#[derive(Clone, Debug, PartialEq, Archive, Serialize, Deserialize)]
pub enum ChannelOpening {
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
    /// What comes on this channel is to be given back, or taken, so that whoever sends it can time the link.
    Probe,
    /// What is answered over an attachment is wanted as a span.
    Trace {
        /// Its number.
        attachment: u64,
        /// The job's span.
        trace: TraceContext,
    },
    /// The keys and values of a shard that is held here, for another host that is to hold it: they come layer by layer as parcels
    /// of keys, and [`ShardSent`] after them.
    Fetch {
        /// Context.
        context: u64,
        /// The shard.
        block: u32,
        /// The context's.
        ticket: Ticket,
    },
}

/// What a context host answers to [`ChannelOpening::Attach`] on a channel that hands over. Where it has something to hand over, that goes
/// along.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct Admitted {
    /// The attachment's number.
    pub attachment: u64,
}

/// Last frame of a channel of parcels, from whom they went to: each has come to its encoder, or is wanted no more.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct ParcelsTaken {
    /// Context.
    pub context: u64,
    /// Attempt.
    pub attempt: u32,
}

/// Last frame of a channel on which the keys and values of a shard went.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct ShardSent {
    /// Context.
    pub context: u64,
    /// The shard.
    pub block: u32,
    /// The checksum of what its pass read.
    pub digest: u64,
    /// BLAKE3 of all bytes of keys and values, in the order in which they went.
    pub checksum: [u8; 32],
}

/// Meta of queries of phase 2, which come as requests: whose rows the payload holds, one part after the other, each row
/// `(query heads, dim)`. What is answered repeats the request's correlation.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct QueryMeta {
    /// Layer.
    pub layer: u32,
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
    /// Token index of the first key of a shard whose first token is the first of all: a shard's keys begin at its own position.
    pub first_key: u64,
}

/// What a query host expects of a context host.
#[derive(Clone, Debug, PartialEq, Archive, Serialize, Deserialize)]
pub struct Attach {
    /// What queries and answers name it by; no other attachment of the channel has this number.
    pub attachment: u64,
    /// Context.
    pub context: u64,
    /// Shards that the host is expected to hold. Those of a list are one partial.
    pub groups: Vec<Vec<u32>>,
    /// Keys of these shards that are not to be seen; ascending by shard.
    pub hidden: Vec<HiddenKeys>,
    /// What it merges with those of other hosts before it answers.
    pub relay: RelayOrder,
    /// Whether [`Admitted`] is waited for, on a channel that hands over.
    pub hands_over: bool,
    /// The context's.
    pub ticket: Ticket,
}

/// Tokens of a context that a question gets anew: encoded together by whoever generates, in place of the keys that shards keep.
#[derive(Clone, Debug, PartialEq, Archive, Serialize, Deserialize)]
pub struct RefreshOrder {
    /// The pass that encodes them.
    pub shard: Shard,
    /// What it reads, row by row.
    pub ids: Vec<u32>,
    /// Keys of shards that are hidden for it; ascending by shard.
    pub hidden: Vec<HiddenKeys>,
}

/// A host's part in the merge above its own shards.
#[derive(Clone, Debug, Default, PartialEq, Archive, Serialize, Deserialize)]
pub struct RelayOrder {
    /// Hosts that it asks in its turn.
    pub below: Vec<RelayChild>,
    /// What it merges, by places among its own partials, then those of the hosts below, then what it merged before. It answers
    /// with those that it merged no further, in that order.
    pub merges: Vec<Vec<u32>>,
}

/// A host that another asks, and with what.
#[derive(Clone, Debug, PartialEq, Archive, Serialize, Deserialize)]
pub struct RelayChild {
    /// Host name.
    pub host: String,
    /// Where it is reached.
    pub endpoints: Vec<Endpoint>,
    /// The shards of each partial that it answers with.
    pub answers: Vec<Vec<u32>>,
    /// The archive of the [`ChannelOpening`] that it is to be sent: whoever passes it on has no need to read it.
    pub opening: Vec<u8>,
}

/// Merges that cannot be: one of partials that there are not, or that were merged already.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "merge {merge} takes partial {input}, and there are {partials}, each to be merged once; a host of another build?"
)]
pub struct InvalidMerge {
    /// The merge.
    pub merge: usize,
    /// What it takes.
    pub input: u32,
    /// Partials that there are by then.
    pub partials: usize,
}

impl RelayOrder {
    /// Whether there is nothing to be done.
    pub fn is_idle(&self) -> bool {
        self.below.is_empty() && self.merges.is_empty()
    }

    /// The partials that a host of these groups answers with: the place of each among all, and its shards.
    ///
    /// # Errors
    /// A merge that cannot be.
    pub fn answers(&self, groups: &[Vec<u32>]) -> Result<Vec<(usize, Vec<u32>)>, InvalidMerge> {
        let below = self.below.iter().flat_map(|below| &below.answers);
        unmerged(groups.iter().chain(below).cloned(), &self.merges)
    }
}

/// The partials that `merges` leave of those of some shards: the place of each among all, and its shards.
///
/// # Errors
/// A merge that cannot be.
pub fn unmerged(
    partials: impl Iterator<Item = Vec<u32>>,
    merges: &[Vec<u32>],
) -> Result<Vec<(usize, Vec<u32>)>, InvalidMerge> {
    let mut there: Vec<Option<Vec<u32>>> = partials.map(Some).collect();
    for (merge, inputs) in merges.iter().enumerate() {
        let (mut merged, partials) = (Vec::new(), there.len());
        for &input in inputs {
            let shards = there.get_mut(input as usize).and_then(Option::take);
            merged.extend(shards.ok_or(InvalidMerge { merge, input, partials })?);
        }
        there.push(Some(merged));
    }
    Ok(there.into_iter().enumerate().filter_map(|(at, shards)| Some((at, shards?))).collect())
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
        /// The host at fault, where it is one below.
        host: Option<String>,
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

/// Whether partials are of these shards.
pub fn are_of(groups: &[Vec<ShardKeys>], shards: &[Vec<u32>]) -> bool {
    let same =
        |(group, shards): (&Vec<ShardKeys>, &Vec<u32>)| group.iter().map(|one| one.block).eq(shards.iter().copied());
    groups.len() == shards.len() && groups.iter().zip(shards).all(same)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_merge_takes_what_is_there_and_once() {
        let groups = [vec![0, 1], vec![2]];
        let below = RelayChild {
            host: "c1".into(),
            endpoints: Vec::new(),
            answers: vec![vec![3], vec![4]],
            opening: Vec::new(),
        };
        let of = |merges: &[&[u32]]| {
            let merges = merges.iter().map(|inputs| inputs.to_vec()).collect();
            RelayOrder { below: vec![below.clone()], merges }.answers(&groups)
        };
        assert_eq!(of(&[]).map(|answers| answers.len()), Ok(4));
        let merged = vec![(1, vec![2]), (5, vec![0, 1, 3, 4])];
        assert_eq!(of(&[&[2, 3], &[0, 4]]), Ok(merged));
        assert_eq!(of(&[&[0, 9]]), Err(InvalidMerge { merge: 0, input: 9, partials: 4 }));
        assert_eq!(of(&[&[0, 1], &[1, 2]]), Err(InvalidMerge { merge: 1, input: 1, partials: 5 }));
        assert_eq!(of(&[&[0, 4]]), Err(InvalidMerge { merge: 0, input: 4, partials: 4 }), "not yet");
    }
}
