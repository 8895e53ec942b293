//! What the supervisor is told once, at its start. Resolved values: no file, no defaults.

use std::time::Duration;

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
}

/// What happens to a job whose host dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// It fails with `host_lost`; every other host and job goes on.
    Fail,
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
