//! Who of a cluster has certificates, and where they are kept. Reads none.

use std::{collections::BTreeSet, path::PathBuf};

use asterism_transport::certificates::MemberRole;

use crate::{cluster::Cluster, data_dir};

/// A member of the cluster at hand: what it is there for, and its name.
pub type NamedMember<'a> = (MemberRole, &'a str);

/// The supervisor, as its certificate says.
pub const SUPERVISOR: NamedMember<'static> = (MemberRole::Supervisor, "supervisor");

/// Where the cluster's CA lies when the file names no certificates.
pub fn ca_folder(cluster: &Cluster) -> PathBuf {
    data_dir::shared(cluster).join("certificates")
}

/// Where the certificate of `name` lies.
pub fn identity_folder(cluster: &Cluster, name: &str) -> PathBuf {
    ca_folder(cluster).join("hosts").join(name)
}

/// Every process of the cluster file that shows a certificate, the agents of nodes among them.
pub fn members(cluster: &Cluster) -> impl Iterator<Item = NamedMember<'_>> {
    let nodes: BTreeSet<&str> = cluster.hosts.iter().map(|host| host.node.as_str()).collect();
    let nodes = nodes.into_iter().map(|node| (MemberRole::Node, node));
    cluster.hosts.iter().map(|host| host.member()).chain(nodes).chain([SUPERVISOR])
}
