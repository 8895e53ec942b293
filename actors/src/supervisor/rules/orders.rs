//! The orders to hosts: shards to encode, with the ids that they lack, and jobs to generate. Chooses no host.

use std::collections::BTreeMap;

use asterism_plan::{ContextView, TokenSet};

use crate::{
    api::{TraceContext, bounds},
    messages::{ContextIds, EncodeShards, Generate, HostCommand, ShardHolder},
    supervisor::{
        command::SupervisorCommand,
        tables::{
            context::{Context, ContextOwner},
            contexts::Contexts,
            hosts::Hosts,
            jobs::Jobs,
            prepared::tenant_number,
        },
    },
};

/// Tokens of a context, its last ones, that guesses of an answer's tokens are looked for in: 1 MiB of an order.
const MOST_LOOKED_UP: usize = 1 << 18;

/// Sends orders to hosts and notes what they were sent.
pub struct Orders<'a> {
    pub hosts: &'a mut Hosts,
    pub contexts: &'a Contexts,
    pub jobs: &'a mut Jobs,
    /// Whether who generates may look for guesses of tokens in what there is.
    pub speculates: bool,
    pub out: &'a mut Vec<SupervisorCommand>,
}

impl Orders<'_> {
    /// Tells a host something while it is connected.
    pub fn send(&mut self, host: usize, command: HostCommand) {
        let connection = self.hosts.at(host).connection;
        self.out.extend(connection.map(|connection| SupervisorCommand::Send { connection, command }));
    }

    /// Orders shards to be encoded; before each order goes what its host lacks of the ids that it reads.
    pub fn encode(&mut self, orders: Vec<(usize, EncodeShards)>) {
        let mut has: BTreeMap<(usize, u64), TokenSet> = BTreeMap::new();
        for (host, order) in orders {
            let number = order.context;
            let Some(context) = self.contexts.get(number) else { continue };
            let prepared = &context.prepared;
            let given = &mut self.hosts.at_mut(host).given;
            let has = has.entry((host, number)).or_insert_with(|| given.tokens(number, &prepared.plan));
            let ids = ContextIds::of(number, &prepared.ids, given.take(&order, has));
            ids.into_iter().for_each(|ids| self.send(host, HostCommand::Ids(ids)));
            let spec = &self.hosts.at(host).spec;
            let room = spec.memory_limit.map(|limit| limit.saturating_sub(spec.weight_bytes));
            let trace = self.trace_of(number).map(Box::new);
            self.send(host, HostCommand::Encode(EncodeShards { room, trace, ..order }));
        }
    }

    /// The span of the job that a context is encoded for.
    fn trace_of(&self, context: u64) -> Option<TraceContext> {
        let ContextOwner::Job(number) = self.contexts.get(context)?.owner else { return None };
        self.jobs.get(number)?.question.trace.map(|trace| trace.own)
    }

    /// Has a host forget a context.
    pub fn release(&mut self, host: usize, context: u64) {
        self.hosts.at_mut(host).given.forget(context);
        // What others passed and nobody has compared may be wrong, and so may what a host holds that was told wrong things of.
        let sound = |context: &Context| !context.is_together() && !context.avoid.contains(&host);
        let keep = self.contexts.get(context).is_none_or(sound);
        self.send(host, HostCommand::Release { context, keep });
    }

    /// Has a host generate a job's answer, or go on with it.
    pub fn generate(&mut self, number: u64, host: usize) {
        let Some(mut job) = self.jobs.get_mut(number) else { return };
        let Some(context) = self.contexts.get(job.context) else { return };
        job.ordered_attempt = context.attempt();
        job.progress.mixed_numerics |= context.mixed_numerics;
        let (kept, alone) = (context.plan().kept_shards(), job.question.is_alone());
        let (shards, refresh_order) = match &job.question.refresh_order {
            _ if alone => (Vec::new(), None),
            Some(refresh_order) => {
                (refresh_order.refresh.left_of(kept), context.prepared.refresh_order(&refresh_order.refresh))
            }
            None => (kept, None),
        };
        let context_ids = &context.prepared.ids[..context.plan().context_tokens.min(context.prepared.ids.len())];
        let latest = context_ids.len().saturating_sub(MOST_LOOKED_UP);
        let lookup = self.speculates.then(|| if alone { Vec::new() } else { context_ids[latest..].to_vec() });
        let generate = Generate {
            job: number,
            tenant: tenant_number(&job.key, bounds::is_background(&job.facts.labels)),
            context: context.number,
            query_ids: job.question.query_ids.clone(),
            generated: job.progress.tokens.clone(),
            query_start: if alone { 0 } else { context.plan().query_start },
            shards,
            refresh_order,
            lookup,
            fan_in: context.plan().fan_in,
            view: if alone { ContextView::All } else { context.plan().view },
            holders: if alone { Vec::new() } else { context.holders(&self.hosts.addresses()) },
            choice: Box::new(job.question.choice.clone()),
            ticket: context.ticket,
            trace: job.question.trace.map(|trace| Box::new(trace.own)),
        };
        drop(job);
        self.send(host, HostCommand::Generate(generate));
    }

    /// Tells who generates a job's answer which hosts hold the shards.
    pub fn send_holders(&mut self, number: u64, host: usize) {
        let Some(mut job) = self.jobs.get_mut(number) else { return };
        let Some(context) = self.contexts.get(job.context) else { return };
        job.ordered_attempt = context.attempt();
        job.progress.mixed_numerics |= context.mixed_numerics;
        let holders = if job.question.is_alone() { Vec::new() } else { context.holders(&self.hosts.addresses()) };
        drop(job);
        self.send(host, HostCommand::Holders { job: number, holders });
    }

    /// A host came, or came back: tells it again all that it is to do.
    pub fn remind(&mut self, host: usize) {
        let addresses = self.hosts.addresses();
        let mut orders = Vec::new();
        for number in self.contexts.on_host(host) {
            let context = &self.contexts[number];
            let here = |block: &usize| context.places()[*block].host == Some(host);
            let missing = |block: &usize| here(block) && context.places()[*block].encoded.is_none();
            let all = 0..context.places().len();
            let coming = context.migration_targets().iter().filter(|(_, migration_target)| **migration_target == host);
            orders.extend(coming.map(|(block, _)| (host, order_of_move(self.hosts, context, (*block, host)))));
            // Encoded together, others may wait for what this host passes on, even if it has reported an earlier attempt.
            let blocks: Vec<usize> = match context.is_together() {
                true if context.is_ready() => continue,
                true => all.filter(here).collect(),
                false => all.filter(missing).collect(),
            };
            orders.extend(context.orders(&blocks, &addresses));
        }
        self.encode(orders);
        for number in self.jobs.on_host(host) {
            self.generate(number, host);
        }
    }
}

/// The order for a shard that moves to `target`: it is fetched of the host that holds it, where both compute the same bits.
pub fn order_of_move(hosts: &Hosts, context: &Context, (block, target): (usize, usize)) -> EncodeShards {
    let place = &context.places()[block];
    let [numerics, held] = [Some(target), place.host].map(|host| host.map(|host| &hosts.at(host).numerics));
    // What a host holds that was told wrong things of may be wrong.
    let sound = |host: &usize| place.encoded.is_some() && !context.avoid.contains(host);
    let source = place.host.filter(|host| sound(host) && hosts.at(*host).is_up() && numerics == held);
    let peers = source.map(|host| {
        let (name, endpoints) = hosts.address(host);
        ShardHolder { host: name, endpoints, blocks: vec![block as u32] }
    });
    EncodeShards { peers: peers.into_iter().collect(), ..context.order_alone(block) }
}
