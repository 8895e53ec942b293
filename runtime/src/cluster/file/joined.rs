//! Nodes that are in no cluster file: they joined a running cluster with hosts of their own. Pure: reads no file.

use std::{collections::BTreeMap, net::IpAddr};

use serde::{Deserialize, Serialize};

use super::{ClusterFile, FileError, HostSection, NodeSection, parse};

/// Nodes that joined, with their hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct JoinedNodes {
    /// The nodes.
    #[serde(rename = "node")]
    nodes: Vec<NodeSection>,
    /// Their hosts, each of which names its node.
    #[serde(rename = "host")]
    hosts: Vec<HostSection>,
}

impl JoinedNodes {
    /// A cluster file with them.
    pub fn laid_over(&self, base: &ClusterFile) -> ClusterFile {
        let mut file = base.clone();
        if self.nodes.is_empty() {
            return file;
        }
        if let [only] = &base.nodes[..] {
            // Beside others it has to be named.
            file.hosts.iter_mut().for_each(|host| host.node = host.node.take().or_else(|| Some(only.name.clone())));
        }
        file.nodes.extend(self.nodes.iter().cloned());
        file.hosts.extend(self.hosts.iter().cloned());
        file
    }

    /// Those that are neither in a cluster file by now nor named here.
    pub fn without(&self, base: &ClusterFile, names: &[String]) -> Self {
        let gone =
            |node: &str| names.iter().any(|name| name == node) || base.nodes.iter().any(|known| known.name == node);
        let hosts = self.hosts.iter().filter(|host| host.node.as_deref().is_some_and(|node| !gone(node)));
        Self {
            nodes: self.nodes.iter().filter(|node| !gone(&node.name)).cloned().collect(),
            hosts: hosts.cloned().collect(),
        }
    }

    /// These and a node at an address, with hosts as the text of `[[host]]` sections has them, in place of those that it had.
    ///
    /// # Errors
    /// When the text is none of hosts, or the cluster file has the node.
    pub fn with(&self, base: &ClusterFile, (node, address): (&str, IpAddr), hosts: &str) -> Result<Self, FileError> {
        if base.nodes.iter().any(|known| known.name == node) {
            return Err(FileError::Line {
                line: 1,
                cause: format!("node '{node}' is in the cluster file, with its hosts: leave --hosts out"),
            });
        }
        let offered = parse(&format!("version = 1\n{hosts}"), [])?;
        let mut joined = self.without(base, &[node.to_owned()]);
        let (name, address) = (node.to_owned(), address.to_canonical().to_string());
        joined.nodes.push(NodeSection { name, address, labels: BTreeMap::new() });
        let own = offered.hosts.into_iter().map(|host| HostSection { node: Some(node.to_owned()), ..host });
        joined.hosts.extend(own);
        Ok(joined)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{Cluster, sample::SAMPLE};

    #[test]
    fn a_node_comes_goes_and_gives_way_to_the_file() {
        let base = parse(SAMPLE, []).unwrap();
        let west = ("west", "10.0.0.3".parse().unwrap());
        let hosts = "[[host]]\nname = \"west-context-0\"\nrole = \"context\"\ndevice = \"cpu\"\n";
        let joined = JoinedNodes::default().with(&base, west, hosts).unwrap();
        let cluster = Cluster::resolve(&joined.laid_over(&base), std::path::Path::new("/")).unwrap();
        let host = cluster.host("west-context-0").unwrap();
        assert_eq!((host.node.as_str(), host.address.place.to_string()), ("west", "10.0.0.3".into()));
        assert_eq!(cluster.host("context-0").unwrap().node, "local");
        let kept: JoinedNodes = toml::from_str(&toml::to_string(&joined).unwrap()).unwrap();
        assert_eq!(kept, joined);
        let again = joined.with(&base, west, &hosts.replace("context-0", "context-1")).unwrap();
        assert!(again.hosts.len() == 1 && again.hosts[0].name == "west-context-1", "in the place of what it had");
        assert_eq!(joined.without(&base, &["west".into()]), JoinedNodes::default());
        let taken = joined.laid_over(&base);
        assert_eq!(joined.without(&taken, &[]), JoinedNodes::default(), "the file has it now");
        assert!(joined.with(&taken, west, hosts).unwrap_err().to_string().contains("leave --hosts out"));
        assert!(joined.with(&base, west, "[[hots]]").is_err());
    }
}
