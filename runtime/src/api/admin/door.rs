//! Who called the supervisor and got no link: why a host of the cluster file is not there, as far as its machine's address
//! tells. Refuses nobody itself.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use asterism_actors::{
    api::{HostHealth, HostStatus},
    metric::{self, TransportMetrics},
};
use asterism_transport::{Observer, Place, certificates::Member};

use crate::cluster::Cluster;

/// For how long it is told that somebody was turned away.
const RECENT: Duration = Duration::from_secs(60);

/// Counts what the supervisor's transport does, and remembers whom it turned away last.
pub struct PeerRefusals {
    metrics: TransportMetrics,
    /// Addresses of the cluster's machines, but of those that it knows by a name; strangers are not remembered.
    nodes: BTreeMap<String, Option<IpAddr>>,
    /// Every process that shows a certificate.
    members: BTreeSet<String>,
    turned_away: Mutex<BTreeMap<IpAddr, (Instant, String)>>,
}

impl PeerRefusals {
    /// Of a cluster whose supervisor speaks over `transport`.
    pub fn new(cluster: &Cluster, transport: &'static str) -> Arc<Self> {
        let address = |place: &Place| if let Place::Address(address) = place { Some(*address) } else { None };
        let hosts = cluster.hosts.iter().map(|host| (host.node.clone(), address(&host.address.place)));
        let (metrics, nodes) = (TransportMetrics::new(transport), hosts.collect());
        let members = crate::certificates::members::members(cluster).map(|(_, name)| name.to_owned()).collect();
        Arc::new(Self { metrics, nodes, members, turned_away: Mutex::default() })
    }

    /// Adds why hosts are not there whose machine was turned away lately.
    pub fn explain(&self, hosts: &mut [HostStatus]) {
        let turned_away = self.turned_away.lock().unwrap_or_else(PoisonError::into_inner);
        let known = |host: &HostStatus| {
            let address = self.nodes.get(&host.node).copied().flatten()?;
            turned_away.get(&address).filter(|(when, _)| when.elapsed() < RECENT).map(|reported| (address, reported))
        };
        for host in hosts.iter_mut().filter(|host| host.health == HostHealth::Starting) {
            if let Some((address, (when, cause))) = known(host) {
                let ago = when.elapsed().as_secs();
                host.cause = Some(format!("a process at {address} was refused {ago} s ago ({cause})"));
            }
        }
    }
}

impl Observer for PeerRefusals {
    fn bytes(&self, sent: bool, bytes: usize) {
        self.metrics.bytes(sent, bytes);
    }

    fn rejected(&self, reason: &'static str) {
        self.metrics.rejected(reason);
    }

    fn shown(&self, member: &Member, ends: SystemTime) {
        if self.members.contains(&member.name) {
            let ends = ends.duration_since(UNIX_EPOCH).unwrap_or_default();
            metrics::gauge!(metric::CERTIFICATE_EXPIRY, "host" => member.name.clone()).set(ends.as_secs_f64());
        }
    }

    fn turned_away(&self, peer: SocketAddr, cause: &str) {
        if self.nodes.values().any(|address| *address == Some(peer.ip())) {
            let mut turned_away = self.turned_away.lock().unwrap_or_else(PoisonError::into_inner);
            turned_away.insert(peer.ip(), (Instant::now(), cause.to_owned()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::cluster::{file as cluster_file, sample::SAMPLE};

    #[test]
    fn a_host_that_is_not_there_is_explained_by_its_machine() {
        let cluster = Cluster::resolve(&cluster_file::parse(SAMPLE, []).unwrap(), Path::new("/")).unwrap();
        let door = PeerRefusals::new(&cluster, "quic");
        let host = |health: &str| -> HostStatus {
            serde_json::from_value(serde_json::json!({
                "name": "context-0", "role": "context", "node": "local", "device": "cpu", "health": health, "pid": null,
                "address": null, "heartbeat_age_s": null, "kv_bytes": 0, "cause": null, "absent": "never seen",
            }))
            .unwrap()
        };
        let mut hosts = [host("starting"), host("ready")];
        door.turned_away("192.0.2.7:9".parse().unwrap(), "a stranger");
        door.explain(&mut hosts);
        assert_eq!(hosts[0].explained().as_deref(), Some("never seen"));
        door.turned_away("127.0.0.1:9".parse().unwrap(), "unknown CA");
        door.explain(&mut hosts);
        let stated = hosts[0].explained().unwrap();
        assert_eq!(stated, "never seen: a process at 127.0.0.1 was refused 0 s ago (unknown CA)");
        assert_eq!(hosts[1].cause, None);
    }
}
