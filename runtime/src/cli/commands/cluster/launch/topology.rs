//! From an allocation to the cluster file of its cluster: a node each, a context host a task, a query host on the first. Pure.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

use asterism_actors::supervisor::{ISLAND_LABEL, RACK_LABEL};

use super::allocation::{AllocatedNode, Allocation, LeafKind};
use crate::cluster::file::{ApiSection, ClusterFile, Device, HostSection, NodeSection, Role};

/// What the allocation does not tell.
#[derive(Clone, Debug)]
pub struct Site {
    /// Addresses of its nodes, in their order.
    pub addresses: Vec<IpAddr>,
    /// Free ports of the first node: for hosts, for joining nodes, for the admin API at 127.0.0.1.
    pub ports: [u16; 3],
    /// The supervisor's data_dir, which is there again after a requeue.
    pub data_dir: PathBuf,
}

/// `base` with the allocation's nodes and hosts in the place of its own. A host is what the first one of its role in `base` is.
pub fn topology(base: &ClusterFile, allocation: &Allocation, site: &Site) -> ClusterFile {
    let mut file = base.clone();
    let [listen, join, admin] = site.ports;
    let first = site.addresses.first().copied().expect("an allocation has a node");
    file.cluster.listen = SocketAddr::new(first, listen).to_string();
    file.cluster.data_dir = Some(site.data_dir.clone());
    file.security.join_listen = Some(SocketAddr::new(first, join).to_string());
    // Who names an address wants that one; the usual one may be another job's.
    let usual = ApiSection::default().admin_listen;
    if base.api.admin_listen == usual {
        let host = usual.rsplit_once(':').map_or("127.0.0.1", |(host, _)| host);
        file.api.admin_listen = format!("{host}:{admin}");
    }
    let address = |(node, address): (&AllocatedNode, &IpAddr)| NodeSection {
        name: node.name.clone(),
        address: address.to_string(),
        labels: labels(node),
    };
    file.nodes = allocation.nodes.iter().zip(&site.addresses).map(address).collect();
    let pattern = |role| base.hosts.iter().find(|host| host.role == role).cloned();
    let context = pattern(Role::Context);
    file.hosts = ranks(allocation).map(|rank| rank.host(context.as_ref())).collect();
    file.hosts.push(query_host(&file.hosts[0], pattern(Role::Query).as_ref()));
    file
}

/// What placement is to know of where a node is.
fn labels(node: &AllocatedNode) -> BTreeMap<String, String> {
    let Some(leaf) = &node.leaf else { return BTreeMap::new() };
    let keys: &[&str] = match leaf.kind {
        LeafKind::Switch => &[ISLAND_LABEL, RACK_LABEL],
        LeafKind::Block => &[ISLAND_LABEL],
    };
    keys.iter().map(|key| ((*key).to_owned(), leaf.name.clone())).collect()
}

/// One task.
struct Rank<'a> {
    number: usize,
    of_node: usize,
    node: &'a AllocatedNode,
}

fn ranks(allocation: &Allocation) -> impl Iterator<Item = Rank<'_>> {
    let tasks = allocation.nodes.iter().flat_map(|node| (0..node.tasks).map(move |of_node| (of_node, node)));
    tasks.enumerate().map(|(number, (of_node, node))| Rank { number, of_node, node })
}

impl Rank<'_> {
    fn host(&self, pattern: Option<&HostSection>) -> HostSection {
        let gpus = self.node.gpus_per_task;
        let mut devices: Vec<_> = (self.of_node * gpus..(self.of_node + 1) * gpus).map(Device::Cuda).collect();
        let mut host = HostSection {
            node: Some(self.node.name.clone()),
            process: None,
            port: 0,
            ..pattern.cloned().unwrap_or_else(|| HostSection::new("", Role::Context))
        };
        host.name = format!("context-{}", self.number);
        match devices.len() {
            0 => {}
            1 => (host.device, host.devices) = (devices.pop(), None),
            _ => (host.device, host.devices) = (None, Some(devices)),
        }
        host
    }
}

/// Beside the first context host. On a GPU in its process, so that they have one copy of the weights.
fn query_host(first: &HostSection, pattern: Option<&HostSection>) -> HostSection {
    let mut host = HostSection {
        name: "query-0".into(),
        node: first.node.clone(),
        process: None,
        port: 0,
        ..pattern.cloned().unwrap_or_else(|| HostSection::new("", Role::Query))
    };
    let on_gpu = matches!(first.device, Some(Device::Cuda(_))) || first.devices.is_some();
    if on_gpu {
        (host.device, host.devices) = (first.device, first.devices.clone());
        host.process = Some(first.name.clone());
    }
    host
}

#[cfg(test)]
mod tests {
    use super::{super::allocation::Leaf, *};
    use crate::cluster::{Cluster, file};
    use std::path::Path;

    fn made(base: &str, tasks: &[usize], gpus_per_task: usize) -> (String, Cluster) {
        made_of(base, tasks, gpus_per_task, &[])
    }

    fn made_of(base: &str, tasks: &[usize], gpus_per_task: usize, leaves: &[(&str, LeafKind)]) -> (String, Cluster) {
        let node = |(index, tasks): (usize, &usize)| AllocatedNode {
            name: format!("n{}", index + 1),
            address: String::new(),
            tasks: *tasks,
            gpus_per_task,
            leaf: leaves.get(index).map(|&(name, kind)| Leaf { name: name.to_owned(), kind }),
        };
        let nodes = tasks.iter().enumerate().map(node).collect();
        let allocation = Allocation { job: 17, restarts: 0, submitted_in: "/home/ada".into(), nodes };
        let site = Site {
            addresses: (1..=tasks.len() as u8).map(|last| IpAddr::from([10, 0, 0, last])).collect(),
            ports: [7400, 7402, 7401],
            data_dir: "/shared/supervisor".into(),
        };
        let file = topology(&file::parse(base, []).unwrap(), &allocation, &site);
        let text = toml::to_string_pretty(&file).expect("the typed file is TOML");
        let read = file::parse(&text, []).expect("what is written can be read");
        assert_eq!(read, file);
        (text, Cluster::resolve(&read, Path::new("/shared")).expect("it resolves"))
    }

    #[test]
    fn a_host_each_task_and_a_node_each_node() {
        let (_, cluster) = made("version = 1", &[2, 1], 0);
        let seen: Vec<_> =
            cluster.hosts.iter().map(|host| format!("{} {} {}", host.name, host.node, host.address)).collect();
        assert_eq!(
            seen,
            ["context-0 n1 10.0.0.1:0", "context-1 n1 10.0.0.1:0", "context-2 n2 10.0.0.2:0", "query-0 n1 10.0.0.1:0"],
            "the system chooses ports, so that no two ranks of a node take one"
        );
        assert_eq!(cluster.listen.to_string(), "10.0.0.1:7400");
        assert_eq!(cluster.security.join_listen.unwrap().to_string(), "10.0.0.1:7402");
        assert_eq!(cluster.admin_listen.to_string(), "127.0.0.1:7401");
        assert_eq!(cluster.data_dir, Path::new("/shared/supervisor"));
    }

    #[test]
    fn hosts_know_the_switch_or_block_of_their_node() {
        let leaves = [("s0", LeafKind::Switch), ("b1", LeafKind::Block)];
        let (_, cluster) = made_of("version = 1", &[1, 1, 1], 0, &leaves);
        let seen: Vec<_> = cluster
            .hosts
            .iter()
            .map(|host| (host.name.as_str(), host.labels.get("island").cloned(), host.labels.get("rack").cloned()))
            .collect();
        let of = |name: &str| Some(name.to_owned());
        assert_eq!(
            seen,
            [
                ("context-0", of("s0"), of("s0")),
                ("context-1", of("b1"), None),
                ("context-2", None, None),
                ("query-0", of("s0"), of("s0"))
            ]
        );
    }

    #[test]
    fn each_task_has_its_gpus_and_the_query_host_those_of_the_first() {
        let devices = |tasks: &[usize], gpus| {
            let (_, cluster) = made("version = 1", tasks, gpus);
            let of = |host: &crate::cluster::Host| format!("{} {} {}", host.name, host.process, host.devices);
            cluster.hosts.iter().map(of).collect::<Vec<_>>()
        };
        assert_eq!(
            devices(&[2, 1], 1),
            [
                "context-0 context-0 cuda:0",
                "context-1 context-1 cuda:1",
                "context-2 context-2 cuda:0",
                "query-0 context-0 cuda:0"
            ]
        );
        assert_eq!(
            devices(&[2], 2),
            [
                "context-0 context-0 cuda:0,cuda:1",
                "context-1 context-1 cuda:2,cuda:3",
                "query-0 context-0 cuda:0,cuda:1"
            ]
        );
    }

    #[test]
    fn the_rest_is_what_the_cluster_file_says() {
        let base = "version = 1\n[attention.dense]\n[api]\nlisten = \"127.0.0.1:8000\"\n[[node]]\nname = \"old\"\n\
                    address = \"10.9.9.9\"\n[[host]]\nname = \"a\"\nrole = \"context\"\nmemory_limit = \"2GiB\"\n\
                    port = 7000\n[[host]]\nname = \"b\"\nrole = \"query\"\nthreads = 3\n";
        let (text, cluster) = made(base, &[1, 1], 0);
        assert!(!text.contains("old") && !text.contains("10.9.9.9"), "{text}");
        assert_eq!(cluster.method.name(), "dense");
        assert_eq!(cluster.api.unwrap().listen.port(), 8000);
        let kept: Vec<_> =
            cluster.hosts.iter().map(|host| (host.memory_limit, host.threads, host.address.port)).collect();
        assert_eq!(kept, [(Some(2 << 30), None, 0), (Some(2 << 30), None, 0), (None, Some(3), 0)]);
    }
}
