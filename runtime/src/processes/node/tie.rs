//! What ties an agent to its supervisor: ends of hosts go up, orders come down. Starts and ends nothing itself.

use std::collections::BTreeMap;

use asterism_actors::{
    messages::{HostMessage, Settings},
    node::{NodeLink, NodeOrder},
};
use asterism_transport::{PlacePort, Places};
use tokio::sync::mpsc;

use super::{Fate, HostExit, NodeAgent, Watched};
use crate::{
    certificates::{credentials, renewal},
    cluster::{Cluster, Host},
    error::CliError,
    observe::{gpus::GpuWatch, logging},
    processes::wiring,
};

/// An agent tied to its supervisor.
pub struct SupervisorTie {
    agent: NodeAgent,
    exits: mpsc::UnboundedReceiver<HostExit>,
    /// Where exits go, by node.
    up: BTreeMap<String, mpsc::UnboundedSender<HostMessage>>,
    ordered: mpsc::UnboundedReceiver<NodeOrder>,
    /// Where nodes get certificates, if the cluster file does not say.
    desk: Option<PlacePort>,
}

impl SupervisorTie {
    /// Joins the supervisor at `listen` once for each node that `hosts` are on.
    pub fn new(
        cluster: &Cluster,
        hosts: &[&Host],
        listen: &Places,
        (agent, exits): (&NodeAgent, mpsc::UnboundedReceiver<HostExit>),
    ) -> Result<Self, CliError> {
        let (order, ordered) = mpsc::unbounded_channel();
        let mut links = BTreeMap::new();
        for host in hosts {
            if !links.contains_key(&host.node) {
                let (mut watched, agent, node) = (Watched::default(), agent.clone(), host.node.clone());
                let mut gpus = GpuWatch::of_machine();
                let look = Box::new(move || {
                    let mut seen = watched.look(&agent.of_node(&node));
                    seen.extend(gpus.news());
                    seen
                });
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
        }
        Ok(Self { agent: agent.clone(), exits, up: links, ordered, desk: None })
    }

    /// Hosts that are to be started later get their certificates there.
    #[must_use]
    pub fn certified_at(self, desk: Option<PlacePort>) -> Self {
        Self { desk, ..self }
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
                    Some(NodeOrder::Kill { host, start }) => self.agent.kill(&host, start),
                    Some(NodeOrder::Start { host }) => self.agent.start_host(&host),
                    Some(NodeOrder::Configure(settings)) => {
                        if let Err(error) = self.configure(settings).await {
                            tracing::error!(%error, hint = error.hint, "this node does not do what it was told to do otherwise");
                        }
                    }
                    Some(NodeOrder::Refused { reason }) => {
                        return Err(CliError::unreachable(format!("the supervisor refuses this node: {reason}"))
                            .hint("give supervisor and node the same cluster file"));
                    }
                    Some(NodeOrder::Shutdown) | None => return Ok(()),
                },
            }
        }
    }

    /// Does what the supervisor wants done otherwise: hosts that are new here are started. Those that are in the file no more end when the
    /// supervisor has taken their work.
    async fn configure(&mut self, settings: Settings) -> Result<(), CliError> {
        if let Some(filter) = &settings.log {
            logging::change(filter)?;
        }
        let Some(text) = settings.cluster_file else { return Ok(()) };
        let cluster = self.agent.start_from(&text)?;
        let new = |host: &&Host| self.up.contains_key(&host.node) && !self.agent.keeps(&host.name);
        let hosts: Vec<&Host> = cluster.hosts.iter().filter(new).collect();
        let members: Vec<_> = hosts.iter().map(|host| host.member()).collect();
        credentials::provide(&cluster, members.iter().copied())?;
        for node in self.up.keys() {
            let of_node = hosts.iter().filter(|host| host.node == *node).map(|host| host.member()).collect::<Vec<_>>();
            renewal::bring(&cluster, (node, &of_node), self.desk.as_ref()).await?;
        }
        for host in &hosts {
            tracing::info!(host = host.name, node = host.node, "is new here and started");
        }
        self.agent.add(&cluster, &hosts);
        Ok(())
    }

    fn report(&self, exit: HostExit) {
        log(&exit);
        let restarting = exit.restarting();
        let HostExit { host, start, mut cause, fate } = exit;
        if let Fate::GivenUp { reason } = fate {
            cause = format!("{cause} ({reason})");
        }
        if let Some(up) = self.agent.node_of(&host).and_then(|node| self.up.get(&node)) {
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
