//! What a host was sent of contexts' token ids, so that an order brings the ids that its host lacks and no others. Sends none.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use asterism_plan::{Exchange, Plan, Shard, TokenSet};

use crate::messages::EncodeShards;

/// Shards whose ids a host's process was sent, by context: as the plan has them, or alone.
#[derive(Debug, Default)]
pub struct SentTokens(BTreeMap<u64, BTreeSet<(usize, bool)>>);

impl SentTokens {
    /// What the host has of a context's tokens.
    pub fn tokens(&self, context: u64, plan: &Plan) -> TokenSet {
        let mut tokens = TokenSet::default();
        let mut add = |shard: &Shard| shard.sources().for_each(|span| drop(tokens.add(span.range())));
        for &(block, alone) in self.0.get(&context).into_iter().flatten() {
            match alone {
                true => add(&plan.alone(block)),
                false => add(&plan.shards[block]),
            }
        }
        tokens
    }

    /// Notes an order. Returns the tokens that are not among those the host has, which they are from now on.
    pub fn take(&mut self, order: &EncodeShards, has: &mut TokenSet) -> Vec<Range<u64>> {
        let given = self.0.entry(order.context).or_default();
        let mut missing = Vec::new();
        for shard in &order.shards {
            if given.insert((shard.block, order.exchange == Exchange::None)) {
                shard.sources().for_each(|span| missing.append(&mut has.add(span.range())));
            }
        }
        missing
    }

    /// The host has nothing of a context any more.
    pub fn forget(&mut self, context: u64) {
        self.0.remove(&context);
    }
}
