//! The processes of a cluster: a supervisor's, a node's, its hosts', and what each needs to run. Serves no HTTP itself.

pub(crate) mod calibration;
pub(crate) mod checkpoint;
pub(crate) mod condition;
pub(crate) mod cores;
pub mod device;
pub mod keeper;
pub mod node;
pub mod readiness;
pub mod service;
pub mod template;
pub(crate) mod temporary;
pub mod wiring;

use std::net::UdpSocket;

use crate::cluster::{Cluster, Host};

/// Hosts whose node is this machine: its address can be listened on here.
pub fn local_hosts(cluster: &Cluster) -> Vec<&Host> {
    let is_local =
        |host: &&Host| host.address.place.resolve().and_then(|address| UdpSocket::bind((address, 0))).is_ok();
    cluster.hosts.iter().filter(is_local).collect()
}
