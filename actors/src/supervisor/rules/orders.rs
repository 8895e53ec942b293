//! What hosts were sent of contexts' token ids, so that an order brings the ids that its host lacks and no others.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use asterism_plan::{Exchange, Plan, Shard, TokenSet};

use crate::{
    messages::{ContextIds, EncodeShards, HostCommand},
    supervisor::{
        state::{Command, SupervisorState},
        tables::context::Owner,
    },
    trace::TraceContext,
};

/// Shards whose ids a host's process was sent, by context: as the plan has them, or alone.
#[derive(Debug, Default)]
pub struct Given(BTreeMap<u64, BTreeSet<(usize, bool)>>);

impl Given {
    /// What the host has of a context's tokens.
    fn tokens(&self, context: u64, plan: &Plan) -> TokenSet {
        let mut tokens = TokenSet::default();
        let mut add = |shard: &Shard| shard.spans().for_each(|span| drop(tokens.add(span.range())));
        for &(block, alone) in self.0.get(&context).into_iter().flatten() {
            match alone {
                true => add(&plan.alone(block)),
                false => add(&plan.shards[block]),
            }
        }
        tokens
    }

    /// Notes an order. Returns the tokens that are not among those the host has, which they are from now on.
    fn take(&mut self, order: &EncodeShards, has: &mut TokenSet) -> Vec<Range<u64>> {
        let given = self.0.entry(order.context).or_default();
        let mut missing = Vec::new();
        for shard in &order.shards {
            if given.insert((shard.block, order.exchange == Exchange::None)) {
                shard.spans().for_each(|span| missing.append(&mut has.add(span.range())));
            }
        }
        missing
    }

    fn forget(&mut self, context: u64) {
        self.0.remove(&context);
    }
}

impl SupervisorState {
    /// Orders shards to be encoded; before each order goes what its host lacks of the ids that it reads.
    pub(in crate::supervisor) fn order(&mut self, orders: Vec<(usize, EncodeShards)>, commands: &mut Vec<Command>) {
        let mut has: BTreeMap<(usize, u64), TokenSet> = BTreeMap::new();
        for (host, order) in orders {
            let number = order.context;
            let Some(context) = self.contexts.get(number) else { continue };
            let prepared = &context.prepared;
            let given = &mut self.hosts.at_mut(host).given;
            let has = has.entry((host, number)).or_insert_with(|| given.tokens(number, &prepared.plan));
            let ids = ContextIds::of(number, &prepared.ids, given.take(&order, has));
            ids.into_iter().for_each(|ids| self.send(host, HostCommand::Ids(ids), commands));
            let spec = &self.hosts.at(host).spec;
            let room = spec.memory_limit.map(|limit| limit.saturating_sub(spec.weight_bytes));
            let trace = self.trace_of(number).map(Box::new);
            self.send(host, HostCommand::Encode(EncodeShards { room, trace, ..order }), commands);
        }
    }

    /// The span of the job that a context is encoded for.
    fn trace_of(&self, context: u64) -> Option<TraceContext> {
        let Owner::Job(number) = self.contexts.get(context)?.owner else { return None };
        self.jobs.get(number)?.question.trace.map(|trace| trace.own)
    }

    /// Has a host forget a context.
    pub(in crate::supervisor) fn release(&mut self, host: usize, context: u64, commands: &mut Vec<Command>) {
        self.hosts.at_mut(host).given.forget(context);
        self.send(host, HostCommand::Release { context }, commands);
    }
}
