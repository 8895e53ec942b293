//! A host of the resolved cluster, and what its names and addresses may be. Resolves nothing itself.

use std::{collections::BTreeMap, net::SocketAddr};

use asterism_kernels::KernelChoice;
use asterism_transport::{PlacePort, certificates::MemberRole};

use crate::cluster::{
    error::ClusterError,
    file::{Devices, Role},
};

/// The least memory that can be meant for a host: below it a unit was forgotten.
pub(crate) const LEAST_MEMORY: u64 = 1 << 20;

/// More threads than machines have cores.
pub(crate) const MOST_THREADS: usize = 1024;

/// The label that every host has: its name.
pub const NAME_LABEL: &str = "host";

/// One host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Unique name.
    pub name: String,
    /// Node it runs on.
    pub node: String,
    /// Process that it runs in: its own name where it shares none.
    pub process: String,
    /// What it does.
    pub role: Role,
    /// The name of its model, where that has one.
    pub model: Option<String>,
    /// Where it computes.
    pub devices: Devices,
    /// Where peers reach it; port 0: chosen by the operating system.
    pub address: PlacePort,
    /// Threads it computes with; `None`: a share of its node's cores, see [`Cluster::threads_of`].
    pub threads: Option<usize>,
    /// Which instructions it computes with on the CPU.
    pub kernels: KernelChoice,
    /// Bytes that its weights and KV may take; `None`: unlimited.
    pub memory_limit: Option<u64>,
    /// What jobs may ask of their hosts.
    pub labels: BTreeMap<String, String>,
}

impl Host {
    /// Who its process is, as its certificate says.
    pub fn member(&self) -> (MemberRole, &str) {
        let role = match self.role {
            Role::Context => MemberRole::Context,
            Role::Query => MemberRole::Query,
            Role::Spare => MemberRole::Spare,
        };
        (role, &self.name)
    }
}

pub(crate) fn socket_address(key: &str, text: &str) -> Result<SocketAddr, ClusterError> {
    text.parse().map_err(|_| ClusterError::Address {
        key: key.into(),
        got: text.into(),
        expected: "an IP address and a port such as 127.0.0.1:7400",
    })
}
