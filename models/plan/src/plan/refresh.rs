//! Fresh keys for questions that come after the plan: the chunks that a question asks for are encoded again, together, behind
//! the sink, and phase 2 sees these keys in place of those that the shards keep of the same tokens.
//!
//! Shards that were encoded without the question lack what it would have put into their summaries: a fact at the end of the
//! context knows nothing of the one at its start that it needs. Encoded together, the chunks of all blocks see each other. The
//! old keys of these tokens are hidden, for beside fresh ones they do harm.

// The archived twins that rkyv derives carry no docs of their own.
#![allow(missing_docs)]

use std::ops::Range;

use rkyv::Archive;
use serde::{Deserialize, Serialize};

use super::{
    Choice, ContextView, Plan,
    exchange::Exchange,
    merge::{FAN_IN, KeptShard},
    shard::Shard,
};
use crate::{LocalAttention, Span};

/// What one question gets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Refresh {
    /// The pass that encodes its tokens, each where it stands in the context. All of them keep their KV.
    pub shard: Shard,
    /// Keys of the context's shards that the question does not see; ascending by shard, and none that has none.
    pub hidden: Vec<HiddenKeys>,
}

/// Keys of a shard, counted among those that it keeps, that are not to be seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Archive, rkyv::Serialize, rkyv::Deserialize)]
pub struct HiddenKeys {
    /// The shard.
    pub block: u32,
    /// Start and end of each run, ascending and apart.
    pub runs: Vec<(u32, u32)>,
}

impl HiddenKeys {
    /// How many keys there are in all.
    pub fn count(&self) -> u64 {
        self.runs.iter().map(|(start, end)| u64::from(end.saturating_sub(*start))).sum()
    }

    /// The runs as ranges, if they are some of so many keys, ascending and apart.
    pub fn ranges(&self, keys: usize) -> Option<Vec<Range<usize>>> {
        let ranges: Vec<_> = self.runs.iter().map(|&(start, end)| start as usize..end as usize).collect();
        let apart = ranges.windows(2).all(|two| two[0].end <= two[1].start);
        let within = ranges.iter().all(|range| range.start <= range.end && range.end <= keys);
        (apart && within).then_some(ranges)
    }
}

impl Refresh {
    /// Tokens that are encoded again.
    pub fn tokens(&self) -> usize {
        self.shard.rows()
    }

    /// The pass alone, on one host: for what a question costs before it is answered.
    pub fn pass(&self) -> Plan {
        let tokens = self.tokens();
        Plan {
            method: Choice::typed("refresh"),
            context_tokens: tokens,
            hosts: 1,
            shards: vec![Shard { block: 0, ..self.shard.clone() }],
            exchange: Exchange::None,
            query_start: tokens as u32,
            view: ContextView::All,
            extra_ids: Vec::new(),
            refresh: None,
            fan_in: FAN_IN,
        }
    }

    /// What phase 2 finds of the context's shards beside the fresh keys.
    pub fn left_of(&self, mut kept: Vec<KeptShard>) -> Vec<KeptShard> {
        for hidden in &self.hidden {
            let shard = &mut kept[hidden.block as usize];
            shard.keys = shard.keys.saturating_sub(hidden.count());
        }
        kept
    }
}

impl Plan {
    /// What a question over the context gets anew, if the plan says so: a pure function of ids.
    pub fn refresh(&self, context: &[u32], query: &[u32]) -> Option<Refresh> {
        let rule = self.refresh.filter(|_| !query.is_empty())?;
        let chosen = rule.choose(context, query);
        let mut spans = chosen.clone();
        let own = spans.pop()?;
        let (block, attention) = (self.shards.len(), LocalAttention::Causal);
        let rope_length = self.shards.first().map_or(0, |shard| shard.rope_length);
        let shard = Shard {
            block,
            host: 0,
            prefix: spans,
            own,
            keeps_prefix: true,
            apart_rows: 0,
            behind: 0,
            attention,
            rope_length,
        };
        let mut left = &chosen[..];
        let hidden = self.shards.iter().filter_map(|shard| hidden_of(shard, &mut left)).collect();
        Some(Refresh { shard, hidden })
    }
}

/// Keys of a shard that are among `chosen`: what of it reaches beyond the shard is left there.
fn hidden_of(shard: &Shard, chosen: &mut &[Span]) -> Option<HiddenKeys> {
    let (own, kept_before) = (shard.own.range(), shard.kept_tokens() - shard.block_tokens());
    let mut runs = Vec::new();
    while let Some((first, rest)) = chosen.split_first() {
        let run = first.range();
        let (start, end) = (run.start.max(own.start), run.end.min(own.end));
        if start < end {
            let key = |token: u64| (token - own.start) as u32 + kept_before as u32;
            runs.push((key(start), key(end)));
        }
        if run.end > own.end {
            break;
        }
        *chosen = rest;
    }
    (!runs.is_empty()).then_some(HiddenKeys { block: shard.block as u32, runs })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::{Method, MethodConfig, ModelShape, PlanRequest};

    fn session(context: &[u32], hosts: usize, refresh: usize, sink: usize) -> Plan {
        let method = json!({"pulsar": {
            "block_tokens": context.len().div_ceil(hosts), "refresh_tokens": refresh, "sink_tokens": sink, "chunk_tokens": 4,
        }});
        let method: MethodConfig = serde_json::from_value(method).expect("a method");
        let shape = &ModelShape::TINY;
        let request = PlanRequest { context, query: &[], hosts, one_device: true, shape, speeds: None };
        method.plan(&request).expect("a plan")
    }

    /// Fresh keys stand beside those of the shards, and are rotated alike.
    #[test]
    fn fresh_keys_are_rotated_as_the_shards_are() {
        let method =
            json!({"pulsar": {"block_tokens": 200, "refresh_tokens": 32, "sink_tokens": 8, "chunk_tokens": 4}});
        let method: MethodConfig = serde_json::from_value(method).expect("a method");
        let shape = &ModelShape { rope: crate::RopeLength::Switched(100), ..ModelShape::TINY };
        let context: Vec<u32> = (0..400).collect();
        let request = PlanRequest { context: &context, query: &[], hosts: 2, one_device: true, shape, speeds: None };
        let plan = method.plan(&request).expect("a plan");
        assert!(plan.shards.iter().all(|shard| shard.rope_length == 101), "{:?}", plan.shards);
        assert_eq!(plan.refresh(&context, &[7, 9]).expect("fresh keys").shard.rope_length, 101);
    }

    proptest! {
        /// Fresh and visible keys are the context's tokens, each once, whatever is asked.
        #[test]
        fn each_token_is_seen_once(
            context in prop::collection::vec(0_u32..40, 40..400),
            query in prop::collection::vec(0_u32..40, 1..8),
            (hosts, refresh, sink) in (1_usize..6, 0_usize..500, 0_usize..20),
        ) {
            let plan = session(&context, hosts, refresh, sink);
            let Some(got) = plan.refresh(&context, &query) else {
                prop_assert!(refresh == 0 || plan.refresh.is_none());
                return Ok(());
            };
            let mut seen: Vec<u32> = got.shard.spans().flat_map(|span| span.start..span.start + span.tokens).collect();
            prop_assert_eq!(seen.len(), got.tokens());
            prop_assert!(seen.is_sorted() && got.shard.spans().all(|span| span.start == span.position));
            prop_assert!(got.tokens() <= sink + refresh.max(4));
            for shard in &plan.shards {
                let keys = shard.kept_tokens();
                let hidden = got.hidden.iter().find(|hidden| hidden.block as usize == shard.block);
                let hidden = hidden.map_or(Some(Vec::new()), |hidden| hidden.ranges(keys)).expect("runs of its keys");
                let visible = (0..keys).filter(|key| !hidden.iter().any(|run| run.contains(key)));
                seen.extend(visible.map(|key| shard.own.start + key as u32));
            }
            seen.sort_unstable();
            prop_assert_eq!(&seen, &(0..context.len() as u32).collect::<Vec<_>>());
            let left: u64 = got.left_of(plan.kept_shards()).iter().map(|shard| shard.keys).sum();
            prop_assert_eq!(left as usize + got.tokens(), context.len());
        }
    }

    #[test]
    fn runs_that_are_no_keys_of_a_shard_are_no_ranges() {
        let of = |runs: &[(u32, u32)]| HiddenKeys { block: 0, runs: runs.to_vec() }.ranges(8);
        assert_eq!(of(&[(0, 2), (2, 5), (7, 8)]), Some(vec![0..2, 2..5, 7..8]));
        for wrong in [&[(0, 9)][..], &[(3, 2)], &[(2, 4), (0, 1)], &[(0, 4), (3, 5)]] {
            assert_eq!(of(wrong), None, "{wrong:?}");
        }
    }
}
