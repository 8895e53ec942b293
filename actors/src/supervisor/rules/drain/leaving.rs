//! Hosts that are asked to end and to come back: by a signal to their process, or by an operator's restart. What moves, moves
//! first, as with a drain; the host is told to end once nobody waits for anything of it, or its time is over.

use std::time::Duration;

use crate::{
    api::Scheduling,
    messages::HostCommand,
    supervisor::{
        command::SupervisorCommand,
        journal::record,
        rules::recovery::HostLoss,
        tables::hosts::{Drain, Leaving},
    },
};

/// Ends hosts in order.
pub struct Departures<'a> {
    pub loss: HostLoss<'a>,
}

impl Departures<'_> {
    /// A host leaves by `deadline`.
    pub fn begin(&mut self, host: usize, deadline: Duration) {
        let record = self.loss.hosts.at_mut(host);
        record.drain = Some(Drain { deadline: Some(deadline), leaving: Leaving::Drains });
    }

    /// Whether nobody waits for anything of a host that cannot move: what is left is lost with its process, and encoded again.
    pub fn is_idle(&self, host: usize) -> bool {
        let awaited = |number: &u64| {
            let Some(context) = self.loss.contexts.get(*number) else { return false };
            let moving = context.held_by(host).iter().any(|block| context.migration_targets().contains_key(block));
            moving || !context.is_ready() || self.loss.jobs.ask(*number, None)
        };
        self.loss.jobs.count_on(host) == 0 && !self.loss.contexts.on_host(host).iter().any(awaited)
    }

    /// Takes away what a host still has, and tells it to end: for good where an operator gives it no work.
    pub fn depart(&mut self, host: usize) {
        self.loss.vacate(host, ("drained", "it was asked to end".into()));
        self.order_to_end(host);
    }

    /// Tells a host to end, and notes that it was told.
    pub fn order_to_end(&mut self, host: usize) {
        let record = self.loss.hosts.at_mut(host);
        record.drain = Some(Drain { deadline: None, leaving: Leaving::Told });
        record.kept.ordered_to_end = true;
        let command = match record.kept.scheduling {
            Scheduling::Open => HostCommand::Leave,
            Scheduling::Cordoned | Scheduling::Draining | Scheduling::Removed => HostCommand::Shutdown,
        };
        let kept = record::host(record);
        self.loss.out.push(SupervisorCommand::Persist(kept));
        self.loss.orders().send(host, command);
    }

    /// A host will not come back: what it had goes to others now.
    pub fn remove(&mut self, host: usize) {
        self.loss.lose(host, ("removed", "an operator removed it".into()));
        self.loss.hosts.at_mut(host).coming_since = None;
    }

    /// Has a host's node start it, if it is not there.
    pub fn start(&mut self, host: usize) {
        let record = self.loss.hosts.at(host);
        if record.connection.is_none()
            && let Some(connection) = self.loss.hosts.node_of(host)
        {
            let command = HostCommand::Start { host: record.spec.name.clone() };
            self.loss.out.push(SupervisorCommand::Send { connection, command });
        }
    }
}
