//! Work that leaves a host which lives: a shard is encoded elsewhere first, and given up only when it is held there. What
//! cannot be encoded alone is taken away, as if the host were lost. Hosts that died are `recovery.rs`.

pub mod leaving;
pub mod rebalance;

use std::time::Duration;

use crate::{
    api::{Role, Scheduling},
    cluster_event::ClusterEventKind,
    messages::Encoded,
    supervisor::{
        command::SupervisorCommand,
        journal::record,
        rules::{
            drain::{leaving::Departures, rebalance::Rebalance},
            orders::order_of_move,
            recovery::HostLoss,
        },
        tables::{
            context::{Context, ShardLocation, UnderWay},
            hosts::{Drain, Hosts, Leaving},
        },
    },
};

/// Moves work away from hosts that drain.
pub struct Draining<'a> {
    pub loss: HostLoss<'a>,
}

impl Draining<'_> {
    /// A host and a spare exchange their roles.
    pub fn exchange(&mut self, old: usize, new: usize) {
        let role = self.loss.hosts.at(old).spec.role;
        for (host, role) in [(new, role), (old, Role::Spare)] {
            let record = self.loss.hosts.at_mut(host);
            (record.spec.role, record.kept.role) = (role, Some(role));
            self.loss.out.push(SupervisorCommand::Persist(record::host(record)));
        }
        let [host, spare] = [old, new].map(|host| self.loss.hosts.name(host).to_string());
        self.loss.out.push(SupervisorCommand::Notify(ClusterEventKind::HostReplaced { host, spare }));
        if self.loss.hosts.at(old).is_up() {
            set_scheduling(self.loss.hosts, old, Scheduling::Draining, None, self.loss.out);
            self.move_out();
        }
    }

    /// Goes on with moving the work of hosts that drain, and has hosts forget what has moved away from them.
    pub fn move_out(&mut self) {
        for host in self.loss.hosts.that(|host| host.drain.is_some_and(|drain| drain.leaving != Leaving::Told)) {
            self.move_work_of(host);
        }
        let pause = self.loss.config.liveness.heartbeat;
        for host in self.loss.hosts.that(|host| !host.moved_away.is_empty()) {
            let moved = std::mem::take(&mut self.loss.hosts.at_mut(host).moved_away);
            let (due, later): (Vec<_>, Vec<_>) =
                moved.into_iter().partition(|(_, since)| *since + pause <= self.loss.now);
            self.loss.hosts.at_mut(host).moved_away = later;
            let gone =
                |number: &u64| self.loss.contexts.get(*number).is_none_or(|context| context.shards_on(host) == 0);
            let gone: Vec<u64> = due.into_iter().map(|(context, _)| context).filter(gone).collect();
            for context in gone {
                self.loss.orders().release(host, context);
            }
        }
    }

    /// Moves what one host has, or takes it away; it is cordoned once it has nothing.
    fn move_work_of(&mut self, host: usize) {
        let Some(drain) = self.loss.hosts.at(host).drain else { return };
        for number in self.loss.contexts.on_host(host) {
            let context = &self.loss.contexts[number];
            if context.moves_alone() && !drain.is_over(self.loss.now) {
                if context.is_ready() {
                    self.begin_move(number, host);
                }
            } else if drain.takes(self.loss.now) && !self.is_awaited(context) {
                self.loss.take_shards(number, (host, "drained"));
            }
        }
        let asked = if drain.takes(self.loss.now) { self.loss.jobs.on_host(host) } else { Vec::new() };
        for number in asked {
            self.loss.take_generation(number, (host, "drained"));
        }
        let empty = self.loss.contexts.load(host).shards + self.loss.jobs.count_on(host) == 0;
        if drain.leaving == Leaving::Drains {
            let mut departures = Departures { loss: self.loss.reborrow() };
            let record = departures.loss.hosts.at(host);
            // Whoever asked what has moved away from it was answered so.
            let settled = record.moved_away.is_empty() && (empty || departures.is_idle(host));
            if settled || drain.is_over(departures.loss.now) {
                departures.depart(host);
            }
        } else if empty {
            set_scheduling(self.loss.hosts, host, Scheduling::Cordoned, None, self.loss.out);
        }
    }

    /// Whether hosts that held it for an earlier supervisor may still come back to this one.
    fn is_awaited(&self, context: &Context) -> bool {
        let away = |place: &ShardLocation| place.host.is_some_and(|host| !self.loss.hosts.at(host).is_up());
        context.places().iter().any(|place| place.encoded.is_none() && away(place))
    }

    /// Has others encode what a host holds of a context, as far as there is room; the rest stays until there is.
    fn begin_move(&mut self, number: u64, host: usize) {
        let context = &self.loss.contexts[number];
        let mut blocks = context.held_by(host);
        blocks.retain(|block| !context.migration_targets().contains_key(block));
        if blocks.is_empty() {
            return;
        }
        let Ok(migration_targets) = self.loss.selection().find_equals(context, &blocks) else { return };
        self.order_move(number, blocks, migration_targets);
    }

    /// Moves a shard of a session to where it lies better, if it is quiet.
    pub fn rebalance(&mut self) {
        let dealt = self.loss.hosts.dealt_at;
        if !self.loss.config.rebalance || self.loss.now.saturating_sub(dealt) < rebalance::QUIET_FOR {
            return;
        }
        match rebalance::next(&self.loss.selection()) {
            Some(Rebalance { context, blocks, targets }) => self.order_move(context, blocks, targets),
            // What there is is looked at again as late.
            None => self.loss.hosts.dealt_at = self.loss.now,
        }
    }

    fn order_move(&mut self, number: u64, blocks: Vec<usize>, migration_targets: Vec<usize>) {
        let mut context = self.loss.contexts.get_mut(number).expect("it was there");
        if let Some(placed) = context.placed_mut() {
            placed.moving.get_or_insert(UnderWay::since(self.loss.now)).shards += blocks.len();
            placed.migration_targets.extend(blocks.iter().copied().zip(migration_targets.iter().copied()));
        }
        drop(context);
        let (hosts, context) = (&*self.loss.hosts, &self.loss.contexts[number]);
        let order = |(block, target)| (target, order_of_move(hosts, context, (block, target)));
        let orders = blocks.into_iter().zip(migration_targets).map(order).collect();
        self.loss.orders().encode(orders);
    }

    /// A shard is where it moved to: whoever asks it is answered so, and its old host soon forgets it.
    pub fn moved(&mut self, host: usize, encoded: Encoded) {
        let (number, block, addresses) = (encoded.context, encoded.block as usize, self.loss.hosts.addresses());
        let Some(mut context) = self.loss.contexts.get_mut(number) else { return };
        let old = context.inherit(block, host, encoded);
        if let Some(placed) = context.placed_mut()
            && placed.migration_targets.is_empty()
            && let Some(UnderWay { since, shards }) = placed.moving.take()
        {
            let took = self.loss.now.saturating_sub(since);
            self.loss.out.push(SupervisorCommand::Notify(ClusterEventKind::ShardsMoved {
                context: number,
                shards,
                took,
            }));
        }
        self.loss.out.extend(record::places(&context, &addresses).map(SupervisorCommand::Persist));
        drop(context);
        if let Some(old) = old {
            self.loss.hosts.at_mut(old).moved_away.push((number, self.loss.now));
        }
    }
}

/// A host takes new work from now on, or none, or gives what it has to others by a deadline.
pub fn set_scheduling(
    hosts: &mut Hosts,
    host: usize,
    scheduling: Scheduling,
    deadline: Option<Duration>,
    out: &mut Vec<SupervisorCommand>,
) {
    if scheduling == Scheduling::Open {
        hosts.accusations.pardon(host);
    }
    let record = hosts.at_mut(host);
    record.kept.scheduling = scheduling;
    record.drain = (scheduling == Scheduling::Draining).then_some(Drain { deadline, leaving: Leaving::Stays });
    out.push(SupervisorCommand::Persist(record::host(record)));
    out.push(SupervisorCommand::Notify(ClusterEventKind::HostScheduled {
        host: hosts.name(host).to_string(),
        scheduling,
    }));
}

/// The whole cluster ends, as somebody wants it: what is started later is no restart of what was lost.
pub fn end_hosts(hosts: &mut Hosts) -> Vec<SupervisorCommand> {
    let up = hosts.that(|host| host.connection.is_some());
    let ended = up.into_iter().map(|host| {
        let record = hosts.at_mut(host);
        record.kept.ordered_to_end = true;
        SupervisorCommand::Persist(record::host(record))
    });
    ended.collect()
}
