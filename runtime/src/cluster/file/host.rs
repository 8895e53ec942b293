//! `[[host]]` as it is written.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Device;
use crate::cluster::size::Bytes;

/// `[[host]]`: one host, which holds a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostSection {
    /// Name, unique in the cluster.
    pub name: String,
    /// Node it runs on. May be absent when there is one node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Process that it shares with the other hosts of its node that name the same: they hand each other tensors in memory, and end
    /// together. Absent: it has one of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
    /// `context`, `query` or `spare`.
    pub role: Role,
    /// The name of the `[[model]]` that it holds. Absent: the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// `cpu`, or `cuda:N`. Absent: `device` of its model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<Device>,
    /// Several devices of one kind, which share its model: each holds a part of all weights and of all keys. Instead of `device`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub devices: Option<Vec<Device>>,
    /// UDP port; 0: chosen by the operating system.
    #[serde(default)]
    pub port: u16,
    /// Threads. Absent: the node's cores, shared by those of its hosts that compute; all of them for the query host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<usize>,
    /// Instructions of the CPU: `auto`, `portable`, `avx2`, `avx512`, `avx512-bf16` or `amx`. Absent: `auto`, the best
    /// there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernels: Option<String>,
    /// Most memory for weights and KV. Absent: unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<Bytes>,
    /// What jobs may ask of their hosts, such as a rack.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

impl HostSection {
    /// A host of which nothing is said but its name and role.
    pub fn new(name: &str, role: Role) -> Self {
        Self {
            name: name.to_owned(),
            node: None,
            process: None,
            role,
            model: None,
            device: None,
            devices: None,
            port: 0,
            threads: None,
            kernels: None,
            memory_limit: None,
            labels: BTreeMap::new(),
        }
    }
}

/// What a host does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Encodes shards of a context and keeps their KV.
    Context,
    /// Encodes the query and generates.
    Query,
    /// Waits to take the place of a host that is lost.
    Spare,
}
