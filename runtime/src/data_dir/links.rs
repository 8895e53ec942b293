//! The links of a cluster as they were measured last, as a file, and the islands that come of them where no label names one. Measures
//! nothing.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use asterism_actors::{
    api::LinkSpeed,
    supervisor::{ISLAND_LABEL, MeasuredHost, island_of, measured_islands},
};
use serde::{Deserialize, Serialize};

use crate::{
    cluster::{Cluster, Host, file::Role},
    data_dir::{self, private},
};

/// Version of the file.
const FORMAT: u32 = 1;
/// Names of an island's hosts that are listed; of more it gives the number.
const HOSTS_LISTED: usize = 8;

#[derive(Serialize, Deserialize)]
struct Measured {
    version: u32,
    links: Vec<LinkSpeed>,
}

/// Where it lies, for all supervisors of a cluster.
pub fn path(cluster: &Cluster) -> PathBuf {
    data_dir::shared(cluster).join("links.json")
}

/// Keeps what was measured.
pub fn keep(cluster: &Cluster, links: &[LinkSpeed]) -> io::Result<PathBuf> {
    let path = path(cluster);
    private::make(path.parent().unwrap_or(Path::new(".")))?;
    let measured = Measured { version: FORMAT, links: links.to_vec() };
    private::replace(&path, &serde_json::to_vec_pretty(&measured)?)?;
    Ok(path)
}

/// What islands that were measured are known by, in words.
pub const BY_LINKS: &str = "links that `bench links` measured";

/// The same cluster, whose hosts have the islands that were measured as labels where no label names one; and these, by host.
pub fn with_islands(mut cluster: Cluster) -> (Cluster, BTreeMap<String, String>) {
    let links = read(&path(&cluster)).unwrap_or_else(|cause| {
        tracing::warn!("{cause}");
        Vec::new()
    });
    let holders = cluster.hosts.iter().filter(|host| host.role != Role::Query);
    let hosts: Vec<MeasuredHost> =
        holders.map(|Host { name, node, labels, .. }| MeasuredHost { name, node, island: island_of(labels) }).collect();
    let islands = measured_islands(&links, &hosts);
    for host in &mut cluster.hosts {
        if let Some(island) = islands.get(&host.name) {
            host.labels.insert(ISLAND_LABEL.to_owned(), island.clone());
        }
    }
    (cluster, islands)
}

/// Islands of hosts, in words, and what they are known by.
pub fn in_words(islands: &BTreeMap<String, String>, known_by: &str) -> Vec<String> {
    let mut hosts: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    islands.iter().for_each(|(host, island)| hosts.entry(island).or_default().push(host));
    let words = |(island, hosts): (&str, Vec<&str>)| {
        let listed = hosts.iter().take(HOSTS_LISTED).copied().collect::<Vec<_>>().join(", ");
        let more = match hosts.len().saturating_sub(HOSTS_LISTED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        format!("island {island}, by {known_by}: {listed}{more}")
    };
    hosts.into_iter().map(words).collect()
}

/// What was measured; nothing where nothing was.
fn read(path: &Path) -> Result<Vec<LinkSpeed>, String> {
    let unread = |cause: &dyn std::fmt::Display| {
        format!("{}, which has the links measured last: {cause}; run `asterism bench links`", path.display())
    };
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(unread(&error)),
    };
    let measured: Measured = serde_json::from_slice(&bytes).map_err(|error| unread(&error))?;
    match measured.version {
        FORMAT => Ok(measured.links),
        other => Err(unread(&format!("it has version {other}, expected {FORMAT}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_islands_are_labels_where_there_are_none() {
        let folder = tempfile::tempdir().unwrap();
        let nodes = (0..3).map(|at| format!("[[node]]\nname = \"m{at}\"\naddress = \"10.0.0.{at}\"\n"));
        let hosts = (0..3).map(|at| format!("[[host]]\nname = \"c{at}\"\nrole = \"context\"\nnode = \"m{at}\"\n"));
        let query = "[[host]]\nname = \"q\"\nrole = \"query\"\nnode = \"m0\"\n";
        let text: String =
            ["version = 1\n".to_owned()].into_iter().chain(nodes).chain(hosts).collect::<String>() + query;
        let mut cluster = Cluster::resolve(&crate::cluster::file::parse(&text, []).unwrap(), folder.path()).unwrap();
        cluster.data_dir = folder.path().join("data");
        assert_eq!(with_islands(cluster.clone()), (cluster.clone(), BTreeMap::new()));
        let link = |from: &str, to: &str, rate| LinkSpeed {
            from: from.into(),
            to: to.into(),
            bytes_per_s: Some(rate),
            ..LinkSpeed::default()
        };
        keep(&cluster, &[link("c0", "c1", 9e9), link("c1", "c2", 1e9), link("c2", "c0", 1e9)]).unwrap();
        let (filled, islands) = with_islands(cluster.clone());
        let named: Vec<Option<&str>> = filled.hosts.iter().map(|host| island_of(&host.labels)).collect();
        assert_eq!(named, [Some("near-m0"), Some("near-m0"), None, None]);
        assert_eq!(islands.len(), 2);
        fs::write(path(&cluster), "{\"version\": 2, \"links\": []}").unwrap();
        assert!(
            read(&path(&cluster)).unwrap_err().contains("it has version 2, expected 1; run `asterism bench links`")
        );
        assert_eq!(with_islands(cluster.clone()).0, cluster);
    }
}
