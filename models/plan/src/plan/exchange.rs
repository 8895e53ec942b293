//! What shards pass each other within a layer of phase 1. Rules only: who computes and who carries is decided elsewhere.

// The archived twins that rkyv derives carry no docs of their own.
#![allow(missing_docs)]

use std::ops::Range;

use rkyv::Archive;
use serde::{Deserialize, Serialize};

use super::shard::Shard;

/// What shards pass each other within every layer of phase 1. All but [`Exchange::None`] make a shard depend on others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Archive, rkyv::Serialize, rkyv::Deserialize)]
pub enum Exchange {
    /// Nothing: a shard depends on its input alone and can be encoded anywhere, again.
    None,
    /// Prefix rows are encoded once. The first shard's leading block rows, then each shard's own prefix rows, in shard
    /// order, are the prefix of every later shard; their keys and values are sent to it.
    SharedPrefix {
        /// Rows of the first block that every later shard sees.
        sink_rows: usize,
    },
    /// Each shard sends its highest-scored keys and values to all later ones, whose block rows see them (APB).
    PassCompressed(Passing),
    /// Each shard's keys and values go to all later ones at once, whose rows see them all: what ring attention computes, without
    /// passing from host to host.
    Broadcast,
    /// Shard `i` gets all rows of the `i`th share of query heads, attends, and returns the rows' outputs (Ulysses).
    AllToAll,
}

/// What APB passes on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Archive, rkyv::Serialize, rkyv::Deserialize)]
pub struct Passing {
    /// Tokens a shard passes on, for each layer and KV head; fewer when it has fewer.
    pub tokens: usize,
    /// Width of the maximum taken over neighbouring scores; odd, 1 for none.
    pub pool: usize,
    /// Leading tokens of the first block that are never passed on.
    pub first_skip: usize,
    /// What a token is worth.
    pub score: PassingScore,
}

impl Exchange {
    /// The shards that a host of some shards sends something to, of `0..blocks`: of others it need not know.
    pub fn receivers(&self, from: &[Shard], blocks: usize) -> impl Fn(usize) -> bool + use<> {
        let (mut first, mut second) = (blocks, false);
        for shard in from {
            (first, second) = (first.min(shard.block), second || shard.block == 1);
        }
        let all = *self == Self::AllToAll;
        // The second shard lends the first its query.
        let lent = second && matches!(self, Self::PassCompressed(Passing { score: PassingScore::Query { .. }, .. }));
        let none = *self == Self::None;
        move |block| !none && (all || block > first || (lent && block == 0))
    }

    /// The retaining heads that shards score by, by name.
    pub fn retaining_heads(&self) -> Option<&str> {
        match self {
            Self::PassCompressed(Passing { score: PassingScore::Heads { name }, .. }) => Some(name),
            _ => None,
        }
    }
}

impl Passing {
    /// First row of `shard` that may be passed on.
    pub fn first_row(&self, shard: &Shard) -> usize {
        match shard.block {
            0 => self.first_skip.min(shard.rows()),
            _ => shard.prefix_rows(),
        }
    }

    /// Tokens that `shard` passes on.
    pub fn passed_tokens(&self, shard: &Shard) -> usize {
        self.tokens.min(shard.rows() - self.first_row(shard))
    }

    /// Query rows that the second shard lends the first.
    pub fn exported_rows(&self) -> usize {
        match &self.score {
            PassingScore::Heads { .. } => 0,
            PassingScore::Query { rows } => rows.len(),
        }
    }
}

/// How APB scores tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Archive, rkyv::Serialize, rkyv::Deserialize)]
pub enum PassingScore {
    /// Trained retaining heads (Locret), which every host has.
    Heads {
        /// What the cluster file calls them.
        name: String,
    },
    /// The mean score of the query that the anchor embeds. The first shard has no anchor: the second lends it its
    /// query vectors.
    Query {
        /// Rows of the query within the anchor.
        rows: Range<usize>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LocalAttention, Span};

    #[test]
    fn a_host_knows_whom_its_shards_send_something() {
        let score = |query: bool| match query {
            true => PassingScore::Query { rows: 0..4 },
            false => PassingScore::Heads { name: "trained".into() },
        };
        let passing =
            |query| Exchange::PassCompressed(Passing { tokens: 8, pool: 1, first_skip: 0, score: score(query) });
        let of = |exchange: &Exchange, from: &[usize]| -> Vec<usize> {
            let shard = |block: &usize| Shard {
                block: *block,
                host: 0,
                prefix: Vec::new(),
                own: Span::in_place(*block..block + 1),
                keeps_prefix: false,
                apart_rows: 0,
                behind: 0,
                attention: LocalAttention::Causal,
                rope_length: 0,
            };
            let from: Vec<Shard> = from.iter().map(shard).collect();
            (0..6).filter(|block| exchange.receivers(&from, 6)(*block)).collect()
        };
        for later in [Exchange::Broadcast, Exchange::SharedPrefix { sink_rows: 4 }, passing(false), passing(true)] {
            assert_eq!(of(&later, &[3, 2]), [3, 4, 5], "{later:?}");
            assert_eq!(of(&later, &[5]), [0; 0], "{later:?}");
        }
        assert_eq!(of(&passing(true), &[1, 4]), [0, 2, 3, 4, 5], "the query is lent");
        assert_eq!(of(&passing(false), &[1, 4]), [2, 3, 4, 5]);
        assert_eq!(of(&Exchange::AllToAll, &[5]), [0, 1, 2, 3, 4, 5]);
        assert_eq!(of(&Exchange::None, &[0]), [0; 0]);
    }
}
