//! A node of a simulated cluster: the link of a node agent as it is, and what starts and ends hosts behind it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use asterism_actors::{
    HostConfig,
    messages::{HostMessage, HostRole},
    node::{self, NodeLink, NodeOrder},
};
use tokio::{sync::mpsc, time::sleep};

use crate::cluster::{Cluster, Exit, supervisor_address};

const FIRST_WAIT: Duration = Duration::from_millis(200);
const LONGEST_WAIT: Duration = Duration::from_secs(2);
/// Hosts that the supervisor could not tell to end have so long to end by themselves.
const GRACE: Duration = Duration::from_secs(2);

/// Runs a node until the supervisor ends it.
pub async fn run(cluster: Arc<Cluster>, node: usize, mut exits: mpsc::UnboundedReceiver<Exit>) {
    let transport = cluster.bind_node(node);
    let config = HostConfig::new(&format!("node-{node}"), HostRole::Node, supervisor_address(), 1);
    let NodeLink { mut orders, exits: printed } = node::start(config, transport.clone(), Box::new(Vec::new));
    let hosts = (0..cluster.scenario.nodes.len()).filter(|host| cluster.scenario.nodes[*host] == node);
    let mut waits: BTreeMap<usize, Duration> = hosts.map(|host| (host, FIRST_WAIT)).collect();
    let later = |host: usize, start: u64, wait: Duration| {
        let cluster = cluster.clone();
        tokio::spawn(async move {
            sleep(wait).await;
            cluster.start_host(host, start);
        });
    };
    waits.keys().for_each(|host| later(*host, 1, cluster.draw(0, 300)));
    loop {
        tokio::select! {
            biased;
            order = orders.recv() => match order {
                Some(NodeOrder::Kill { host, start }) => {
                    let number = cluster.scenario.config.hosts.iter().position(|spec| spec.name == host);
                    cluster.note(|| format!("node-{node} is to end {host} ({start})"));
                    number.map(|number| cluster.kill_host(number, Some(start), false));
                }
                // Each is started again here whenever it ends, and as it was.
                Some(NodeOrder::Start { .. } | NodeOrder::Configure(_)) => {}
                Some(NodeOrder::Refused { reason }) => return cluster.fail(format!("node-{node} is refused: {reason}")),
                Some(NodeOrder::Shutdown) | None => break,
            },
            exit = exits.recv() => {
                let Some((host, start, cause)) = exit else { break };
                let name = cluster.scenario.config.hosts[host].name.clone();
                let _ = printed.send(HostMessage::Exited { host: name, start, cause, restarting: true });
                let wait = waits.get_mut(&host).expect("it is of this node");
                later(host, start + 1, *wait);
                *wait = (2 * *wait).min(LONGEST_WAIT);
            }
        }
    }
    transport.close();
    sleep(GRACE).await;
    waits.keys().for_each(|host| {
        cluster.kill_host(*host, None, false);
    });
}
