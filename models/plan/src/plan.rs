//! The plan: phase-1 inputs in context order, what KV is kept, and where the query starts.

// The archived twins that rkyv derives carry no docs of their own.
#![allow(missing_docs)]

mod digest;
mod exchange;
mod merge;
pub(crate) mod refresh;
mod refresh_rule;
mod shard;

use rkyv::Archive;
use serde::{Deserialize, Serialize};

use crate::{PlanError, attention::Streaming};
pub use digest::InputDigest;
pub use exchange::{Exchange, Passing, PassingScore};
pub use merge::{FAN_IN, KeptShard, MergeNode, MergeTree};
pub use refresh_rule::RefreshRule;
pub use shard::Shard;

/// Phase 1 and phase 2 of one job as a value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The method that made it, and why when another was asked to choose.
    pub method: Choice,
    /// Tokens of the context.
    pub context_tokens: usize,
    /// Context hosts that shards are dealt to; some may have none.
    pub hosts: usize,
    /// Phase-1 forward passes in context order, which is also the merge order of phase 2.
    pub shards: Vec<Shard>,
    /// What passes between shards within a layer of phase 1.
    pub exchange: Exchange,
    /// Position id of the first query token; generated tokens continue from there.
    pub query_start: u32,
    /// What of the context the query and the generated tokens see.
    pub view: ContextView,
    /// Ids of tokens that the context does not have, numbered on behind its last: a query in front of blocks, or an
    /// ablation's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extra_ids: Vec<u32>,
    /// What each question gets anew that the plan did not know; none where it knew the question, or nothing is gained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refresh: Option<RefreshRule>,
    /// Partials of phase 2 that are merged at a time, above the groups of [`KeptShard`].
    #[serde(default = "fan_in", skip_serializing_if = "is_usual")]
    pub fan_in: u32,
}

fn fan_in() -> u32 {
    FAN_IN
}

fn is_usual(fan_in: &u32) -> bool {
    *fan_in == FAN_IN
}

/// A method by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choice {
    /// Its name.
    pub name: String,
    /// Why it was chosen, when the request left that open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Choice {
    /// The method that the request named.
    pub fn typed(name: &str) -> Self {
        Self { name: name.to_owned(), reason: None }
    }
}

/// What phase 2 sees of the context.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, Archive, rkyv::Serialize, rkyv::Deserialize,
)]
pub enum ContextView {
    /// Every kept key.
    #[default]
    All,
    /// The streaming mask of phase 1 goes on. One shard only.
    Streaming(Streaming),
}

impl Plan {
    /// Whether this is a plan for a context of so many tokens: shards in block order on hosts there are, blocks that are the
    /// context, each token once and in order, prefixes of tokens that there are, and the query behind all positions.
    ///
    /// # Errors
    /// [`PlanError::Broken`] with the first quantity that is not what it must be.
    pub fn check(&self, context: usize) -> Result<(), PlanError> {
        let whole = |what, expected, got| Err(PlanError::Broken { what, block: self.shards.len(), expected, got });
        if self.context_tokens != context {
            return whole("number of context tokens", context, self.context_tokens);
        }
        let mut next = 0;
        for (block, shard) in self.shards.iter().enumerate() {
            let broken = |what, expected, got| Err(PlanError::Broken { what, block, expected, got });
            shard.check(block, self.hosts)?;
            if shard.own.start as usize != next {
                return broken("first token", next, shard.own.start as usize);
            }
            next += shard.block_tokens();
            let known = (context + self.extra_ids.len()) as u64;
            for span in shard.spans() {
                if span.range().end > known {
                    return broken("token", known.saturating_sub(1) as usize, span.range().end as usize - 1);
                }
                if span.past() > u64::from(self.query_start) {
                    return broken(
                        "last position",
                        (self.query_start as usize).saturating_sub(1),
                        span.past() as usize - 1,
                    );
                }
            }
        }
        if next == 0 || next != context {
            return whole("number of block tokens up to the end", context, next);
        }
        Ok(())
    }

    /// The ids of all tokens that the plan numbers: those of the context, then its own.
    pub fn numbered_ids(&self, context: &[u32]) -> Vec<u32> {
        [context, &self.extra_ids].concat()
    }

    /// A shard as it is encoded without the others, to the same keys and values: behind a shared prefix with all of it in
    /// front. Where shards depend on each other otherwise, it is not meant for that.
    pub fn alone(&self, block: usize) -> Shard {
        let shard = &self.shards[block];
        let Exchange::SharedPrefix { sink_rows } = self.exchange else { return shard.clone() };
        let sink = self.shards.first().filter(|_| block > 0).map(|first| first.own.first(sink_rows));
        let summaries = self.shards[..block].iter().flat_map(|earlier| earlier.prefix.iter().copied());
        let mut prefix = Vec::new();
        sink.into_iter().chain(summaries).for_each(|span| span.push_to(&mut prefix));
        let mut alone = Shard { prefix, keeps_prefix: false, ..shard.clone() };
        alone.apart_rows = if block == 0 { sink_rows.min(alone.block_tokens()) } else { alone.prefix_rows() };
        alone
    }

    /// Whether its shards are a chain: one host encodes them in order, each behind those before it.
    pub fn is_chain(&self) -> bool {
        self.shards.iter().any(|shard| shard.behind > 0)
    }

    /// Tokens up to the end of a question of so many, as positions count them.
    pub fn length(&self, query: usize) -> u64 {
        u64::from(self.query_start) + query as u64
    }

    /// Keys that phase 2 must find over all shards: the context, and prefixes where they are kept.
    pub fn kept_tokens(&self) -> usize {
        self.shards.iter().map(Shard::kept_tokens).sum()
    }

    /// The shards as phase 2 finds them: those dealt to one logical host are a merge group.
    pub fn kept_shards(&self) -> Vec<KeptShard> {
        let kept = |shard: &Shard| KeptShard { keys: shard.kept_tokens() as u64, group: shard.host as u32 };
        self.shards.iter().map(kept).collect()
    }

    /// Keys kept on each host, idle ones included.
    pub fn kept_per_host(&self) -> Vec<usize> {
        let mut kept = vec![0; self.hosts];
        for shard in &self.shards {
            kept[shard.host] += shard.kept_tokens();
        }
        kept
    }

    /// Hosts without a shard.
    pub fn idle_hosts(&self) -> usize {
        (0..self.hosts).filter(|host| self.shards.iter().all(|shard| shard.host != *host)).count()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::{Method, MethodConfig, ModelShape, PlanRequest};

    proptest! {
        /// A shard encoded alone is the one of the plan that shares nothing.
        #[test]
        fn alone_a_shard_has_all_of_its_prefix(tokens in 64_usize..400, hosts in 1_usize..6, size in 0_usize..40) {
            let context: Vec<u32> = (0..tokens as u32).map(|i| i * 37 % 90).collect();
            let star = |shared: bool| json!({"star": {"anchor_tokens": size, "shared_prefix": shared}});
            let pulsar = |shared: bool| {
                json!({"pulsar": {"sink_tokens": size, "summary_fraction": 0.25, "chunk_tokens": 4, "shared_prefix": shared}})
            };
            for method in [&star as &dyn Fn(bool) -> serde_json::Value, &pulsar] {
                let plan = |shared: bool| {
                    let shape = &ModelShape::TINY;
                    let request = PlanRequest { context: &context, query: &[3, 5], hosts, one_device: true, shape, speeds: None };
                    let method: MethodConfig = serde_json::from_value(method(shared)).expect("a method");
                    method.plan(&request).expect("a plan")
                };
                let (shared, apart) = (plan(true), plan(false));
                let alone = (0..shared.shards.len()).map(|block| Shard { apart_rows: 0, ..shared.alone(block) });
                let alone: Vec<Shard> = alone.collect();
                prop_assert_eq!(alone, apart.shards);
            }
        }
    }
}
