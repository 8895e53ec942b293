//! What ties an agent to its supervisor: ends of hosts go up, orders come down. Starts and ends nothing itself.

use std::collections::BTreeMap;

use asterism_actors::{
    messages::HostMessage,
    node::{NodeLink, NodeOrder},
};
use asterism_transport::PlacePort;
use tokio::sync::mpsc;

use super::{Fate, HostExit, NodeAgent, Orders};
use crate::{
    cluster::{Cluster, Host},
    error::CliError,
    processes::wiring,
};

/// An agent tied to its supervisor.
pub struct SupervisorTie {
    orders: Orders,
    exits: mpsc::UnboundedReceiver<HostExit>,
    /// Where exits go, by host.
    up: BTreeMap<String, mpsc::UnboundedSender<HostMessage>>,
    ordered: mpsc::UnboundedReceiver<NodeOrder>,
}

impl SupervisorTie {
    /// Joins the supervisor at `listen` once for each node that `hosts` are on.
    pub fn new(
        cluster: &Cluster,
        hosts: &[&Host],
        listen: &PlacePort,
        (agent, exits): (&NodeAgent, mpsc::UnboundedReceiver<HostExit>),
    ) -> Result<Self, CliError> {
        let (order, ordered) = mpsc::unbounded_channel();
        let mut links = BTreeMap::new();
        let mut up = BTreeMap::new();
        for host in hosts {
            if !links.contains_key(&host.node) {
                let of_node = |name: &str| cluster.host(name).is_some_and(|other| other.node == host.node);
                let mut watched = agent.watched(of_node);
                let look = Box::new(move || watched.look());
                let NodeLink { orders: mut from, exits } = wiring::node_link(cluster, &host.node, listen, look)?;
                let order = order.clone();
                tokio::spawn(async move {
                    while let Some(ordered) = from.recv().await {
                        if order.send(ordered).is_err() {
                            return;
                        }
                    }
                });
                links.insert(host.node.clone(), exits);
            }
            up.insert(host.name.clone(), links[&host.node].clone());
        }
        Ok(Self { orders: agent.orders(), exits, up, ordered })
    }

    /// Carries news and orders until the supervisor ends the cluster.
    ///
    /// # Errors
    /// When the supervisor does not want this node.
    pub async fn hold(mut self) -> Result<(), CliError> {
        loop {
            tokio::select! {
                Some(exit) = self.exits.recv() => self.report(exit),
                order = self.ordered.recv() => match order {
                    Some(NodeOrder::Kill { host, start }) => self.orders.kill(&host, start),
                    Some(NodeOrder::Start { host }) => self.orders.start(&host),
                    Some(NodeOrder::Refused { reason }) => {
                        return Err(CliError::unreachable(format!("the supervisor refuses this node: {reason}"))
                            .hint("give supervisor and node the same cluster file"));
                    }
                    Some(NodeOrder::Shutdown) | None => return Ok(()),
                },
            }
        }
    }

    fn report(&self, exit: HostExit) {
        log(&exit);
        let restarting = exit.restarting();
        let HostExit { host, start, mut cause, fate } = exit;
        if let Fate::GivenUp { reason } = fate {
            cause = format!("{cause} ({reason})");
        }
        if let Some(up) = self.up.get(&host) {
            // A link that has ended was told to: nobody wants the news.
            let _ = up.send(HostMessage::Exited { host, start, cause, restarting });
        }
    }
}

fn log(HostExit { host, start, cause, fate }: &HostExit) {
    match fate {
        Fate::Finished => tracing::info!(host, start, cause, "host ended"),
        Fate::Restarting { after } => {
            tracing::warn!(host, start, cause, wait_s = after.as_secs_f64(), "host is started again");
        }
        Fate::GivenUp { reason } => tracing::error!(host, start, cause, reason, "host is not started again"),
    }
}
