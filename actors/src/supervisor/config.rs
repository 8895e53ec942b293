//! What the supervisor is told once, at its start. Resolved values: no file, no defaults.

use std::{collections::BTreeMap, time::Duration};

use asterism_kernels::DType;
use asterism_plan::MethodConfig;

use crate::api::Role;

/// What the supervisor knows of the cluster before any host connects.
#[derive(Clone, Debug)]
pub struct SupervisorConfig {
    /// Cluster name.
    pub cluster: String,
    /// Model name.
    pub model: String,
    /// Type of activations and cached keys and values.
    pub dtype: DType,
    /// Hosts in the order of the cluster file.
    pub hosts: Vec<HostSpec>,
    /// Method of a job that names none.
    pub method: MethodConfig,
    /// Time between heartbeats.
    pub heartbeat: Duration,
    /// Missed heartbeats after which a host is suspect.
    pub suspect_after: u32,
    /// Silence after which a host is dead.
    pub dead_after: Duration,
    /// Jobs that run at once.
    pub max_running: usize,
    /// Jobs that may wait.
    pub max_queue: usize,
    /// What happens to a job whose host dies.
    pub recovery: Recovery,
    /// Times that one host's process is started again before it is given up.
    pub max_restarts: u32,
    /// What pinned contexts may take.
    pub sessions: SessionLimits,
}

/// What happens to a job whose host dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// Its shards are encoded anew on a spare; without one free it fails.
    Spare,
    /// Its shards are encoded anew on a spare if one is free, else on the other context hosts.
    Redistribute,
    /// It fails with `host_lost`; every other host and job goes on.
    Fail,
}

/// What pinned contexts may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionLimits {
    /// How long a session lives that names no time.
    pub default_ttl: Duration,
    /// Most bytes of KV pinned at once over the cluster; none: only the hosts' memory limits it.
    pub max_pinned_bytes: Option<u64>,
}

/// One host as configured.
#[derive(Clone, Debug)]
pub struct HostSpec {
    /// Name.
    pub name: String,
    /// Role.
    pub role: Role,
    /// Device label.
    pub device: String,
    /// Machine it runs on.
    pub node: String,
    /// Bytes that its weights and KV may take; none: unlimited.
    pub memory_limit: Option<u64>,
    /// What jobs may ask of their hosts.
    pub labels: BTreeMap<String, String>,
}

impl SupervisorConfig {
    /// What jobs are planned for.
    pub fn context_hosts(&self) -> ContextHosts {
        let contexts = || self.hosts.iter().filter(|host| host.role == Role::Context);
        let one_machine = contexts().all(|host| Some(&host.node) == contexts().next().map(|first| &first.node));
        ContextHosts { count: contexts().count(), one_machine, dtype: self.dtype }
    }
}

/// The context hosts that a job is planned for.
#[derive(Clone, Copy, Debug)]
pub struct ContextHosts {
    /// How many.
    pub count: usize,
    /// Whether they share a machine.
    pub one_machine: bool,
    /// Type of their cached keys and values.
    pub dtype: DType,
}
