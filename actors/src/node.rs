//! The link of a node agent to its supervisor: heartbeats and exits up, orders down. Starts and ends no process.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use asterism_transport::Transport;
use tokio::{
    sync::mpsc::{self, UnboundedReceiver, UnboundedSender},
    time::Instant,
};

use crate::{
    error::HostError,
    host::{
        HostConfig,
        joining::{self, Backoff, Joined},
    },
    messages::{Hello, HostCommand, HostMessage, Settings},
};

/// An exit that was said so long before a link ended was heard.
const HEARD_AFTER: Duration = Duration::from_secs(5);

/// What the supervisor wants of a node agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeOrder {
    /// End a host's process at once; it was declared dead.
    Kill {
        /// Host.
        host: String,
        /// Number of its process; another one is left alone.
        start: u64,
    },
    /// Start a host's process, unless it runs or is about to.
    Start {
        /// Host.
        host: String,
    },
    /// Do something otherwise from now on.
    Configure(Settings),
    /// End all hosts and the agent. The link is closed.
    Shutdown,
    /// The supervisor does not want this node. The link is closed.
    Refused {
        /// Why.
        reason: String,
    },
}

/// A node agent's end of the link. Dropping `orders` closes the link.
pub struct NodeLink {
    /// What the supervisor wants; ends after [`NodeOrder::Shutdown`] and [`NodeOrder::Refused`].
    pub orders: UnboundedReceiver<NodeOrder>,
    /// Where the agent puts [`HostMessage::Exited`]; said once the supervisor listens.
    pub exits: UnboundedSender<HostMessage>,
}

/// What a node sees of its hosts at a heartbeat.
pub type NodeView = Box<dyn FnMut() -> Vec<HostMessage> + Send>;

/// Joins the supervisor as the node that `config` names, and joins again for as long as it takes whenever it is lost. What `look`
/// finds goes with each heartbeat.
pub fn start(config: HostConfig, transport: Arc<dyn Transport>, look: NodeView) -> NodeLink {
    let (ordered, orders) = mpsc::unbounded_channel();
    let (exits, exited) = mpsc::unbounded_channel();
    let wanted = ordered.clone();
    let agent = Agent { config, transport, ordered, exited, stated: VecDeque::new(), cluster: 0, look };
    tokio::spawn(async move {
        tokio::select! {
            biased;
            () = agent.run() => {}
            () = wanted.closed() => {}
        }
    });
    NodeLink { orders, exits }
}

struct Agent {
    config: HostConfig,
    transport: Arc<dyn Transport>,
    ordered: UnboundedSender<NodeOrder>,
    exited: UnboundedReceiver<HostMessage>,
    /// Exits that the supervisor may not have received, the oldest first, and when they were sent.
    stated: VecDeque<(Instant, HostMessage)>,
    cluster: u64,
    look: NodeView,
}

impl Agent {
    async fn run(mut self) {
        let (mut backoff, mut stated) = (Backoff::default(), String::new());
        loop {
            let hello = Hello { cluster: self.cluster, ..self.config.hello(Vec::new()) };
            match joining::join(hello, &self.config.supervisor, self.transport.as_ref()).await {
                Ok(joined) => {
                    (self.cluster, backoff) = (joined.cluster, Backoff::default());
                    let Some(cause) = self.serve(joined).await else { return };
                    tracing::warn!(node = %self.config.name, %cause, "the supervisor is lost");
                }
                Err(HostError::Refused { reason, .. }) => {
                    let _ = self.ordered.send(NodeOrder::Refused { reason });
                    return;
                }
                Err(error) => {
                    let error = error.to_string();
                    if stated != error {
                        tracing::warn!(node = %self.config.name, error, "the supervisor is not there; tries on");
                        stated = error;
                    }
                }
            }
            tokio::time::sleep(backoff.next()).await;
        }
    }

    /// Serves one link; returns why it ended, or nothing when the agent is to end.
    async fn serve(&mut self, mut joined: Joined) -> Option<String> {
        let mut ticks = tokio::time::interval(joined.heartbeat);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        for (stated, exit) in &mut self.stated {
            *stated = Instant::now();
            joined.outbox.send(exit.clone());
        }
        loop {
            tokio::select! {
                biased;
                command = joined.inbox.receive() => match command {
                    Ok(HostCommand::Kill { host, start }) => {
                        self.ordered.send(NodeOrder::Kill { host, start }).ok()?;
                    }
                    Ok(HostCommand::Start { host }) => self.ordered.send(NodeOrder::Start { host }).ok()?,
                    Ok(HostCommand::Configure { settings }) => match Settings::read(&settings) {
                        Ok(settings) => self.ordered.send(NodeOrder::Configure(settings)).ok()?,
                        Err(cause) => tracing::warn!(cause, "what this node is to change cannot be read"),
                    },
                    Ok(HostCommand::Shutdown) => {
                        let _ = self.ordered.send(NodeOrder::Shutdown);
                        return None;
                    }
                    Ok(other) => tracing::warn!(command = ?other, "a command that is not for a node"),
                    Err(cause) => return Some(cause.to_string()),
                },
                exit = self.exited.recv() => {
                    let exit = exit?;
                    joined.outbox.send(exit.clone());
                    self.stated.push_back((Instant::now(), exit));
                }
                _ = ticks.tick() => {
                    joined.outbox.send(HostMessage::Heartbeat { kv_bytes: 0, idle_bytes: 0 });
                    (self.look)().into_iter().for_each(|seen| joined.outbox.send(seen));
                    self.stated.retain(|(stated, _)| stated.elapsed() < HEARD_AFTER);
                }
            }
        }
    }
}
