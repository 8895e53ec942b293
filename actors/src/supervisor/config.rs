//! What the supervisor is configured with, once, at its start. Resolved values: no file, no defaults.

use std::{collections::BTreeMap, time::Duration};

use asterism_kernels::KvType;
use asterism_models::{FrontDigest, WeightsDigest};
use asterism_plan::{Calibration, MethodConfig};

use crate::{api::Role, supervisor::placement::MixedNumerics};

/// What the supervisor knows of the cluster before any host connects.
#[derive(Clone, Debug)]
pub struct SupervisorConfig {
    /// Cluster name.
    pub cluster: String,
    /// Its models. The first, of which there is always one, is that of requests that name none.
    pub models: Vec<ServedModel>,
    /// Hosts in the order of the cluster file.
    pub hosts: Vec<HostSpec>,
    /// Method of a job that names none.
    pub method: MethodConfig,
    /// When a host that says nothing is given up.
    pub liveness: Liveness,
    /// Contexts that are encoded at once, or wait for a query host.
    pub max_running: usize,
    /// Beyond these, more begin as long as all that is encoded takes no longer than this, about.
    pub encode_ahead: Duration,
    /// Jobs that one query host generates at once, and as many again of keys for which nothing else is generated.
    pub max_generating: usize,
    /// Whether query hosts guess tokens from what the prompt and the answer have, and verify several in a step.
    pub speculates: bool,
    /// Jobs that may wait, and sessions that there may be.
    pub max_queue: usize,
    /// Bytes that the contexts and questions of all jobs and sessions may take here.
    pub max_queue_bytes: u64,
    /// Who takes the work of a host that is lost.
    pub recovery: Recovery,
    /// Whether hosts that are slow get shards only when others have no room.
    pub avoid_stragglers: bool,
    /// When the cluster counts as ready to answer.
    pub ready_when: ReadyWhen,
    /// Whether shards of sessions move to where they lie better when it is quiet.
    pub rebalance: bool,
    /// How long a job waits for a host to take lost work.
    pub patience: Duration,
    /// Limits of sessions.
    pub sessions: SessionLimits,
    /// What becomes of a job that no hosts of equal numerics can take.
    pub mixed_numerics: MixedNumerics,
}

/// A model that hosts serve.
#[derive(Clone, Debug)]
pub struct ServedModel {
    /// What its hosts and contexts are labelled with: its name in the cluster file, or nothing where it has none there.
    pub label: String,
    /// What requests call it.
    pub name: String,
    /// What of the model tokens and plans depend on.
    pub digest: FrontDigest,
    /// Its weights, where they have been hashed already.
    pub weights: Option<WeightsDigest>,
    /// Type of activations, and what is kept of keys and values.
    pub kv: KvType,
    /// How fast context hosts are, where that was measured.
    pub speeds: Option<Calibration>,
}

/// The label of hosts and contexts that names their model.
pub const MODEL_LABEL: &str = "asterism.model";

/// The model that labels name: the one without a name where they name none.
pub fn model_of(labels: &BTreeMap<String, String>) -> &str {
    labels.get(MODEL_LABEL).map_or("", String::as_str)
}

/// When a host that says nothing is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Liveness {
    /// Time between heartbeats.
    pub heartbeat: Duration,
    /// Missed heartbeats after which a host is suspect.
    pub suspect_after: u32,
    /// Silence after which a host is dead.
    pub dead_after: Duration,
    /// How long a restarted supervisor waits for hosts to come back, beyond `dead_after`.
    pub rejoin: Duration,
}

/// Limits of sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionLimits {
    /// How long one lives that names no time.
    pub default_ttl: Duration,
    /// Most bytes of keys and values over all sessions and hosts.
    pub max_pinned_bytes: Option<u64>,
}

/// When a cluster counts as ready to answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadyWhen {
    /// A host encodes and a host generates, whichever.
    #[default]
    Answers,
    /// Every host is ready.
    All,
    /// So many context hosts are ready, and a host generates.
    Contexts(usize),
}

/// Who takes the work of a host that is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// Nobody: its jobs fail with `host_lost`; every other host and job goes on.
    Fail,
    /// Hosts of its role and spares.
    Spare,
    /// Any host, of its role first, then spares: every host loads all of the model.
    Redistribute,
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
    /// Most bytes of weights, keys and values.
    pub memory_limit: Option<u64>,
    /// Bytes of weights that it holds; none of those of a host named before it, in the same process.
    pub weight_bytes: u64,
    /// What placement may ask for.
    pub labels: BTreeMap<String, String>,
}

impl HostSpec {
    /// The label of its model.
    pub fn model(&self) -> &str {
        model_of(&self.labels)
    }
}

impl SupervisorConfig {
    /// The model of requests that name none.
    pub fn first_model(&self) -> &ServedModel {
        &self.models[0]
    }

    /// The model of a label.
    pub fn model(&self, label: &str) -> Option<&ServedModel> {
        self.models.iter().find(|model| model.label == label)
    }

    /// Whether a label is that of the only model: what waits for its hosts then holds up nothing of others.
    pub fn is_only_model(&self, label: &str) -> bool {
        self.models.len() == 1 && self.models[0].label == label
    }

    /// What jobs are planned for that name no model.
    pub fn context_hosts(&self) -> ContextHosts {
        self.context_hosts_of(self.first_model(), self.hosts.iter())
    }

    /// What jobs of a model are planned for where these are the hosts.
    pub fn context_hosts_of<'a>(&self, model: &ServedModel, hosts: impl Iterator<Item = &'a HostSpec>) -> ContextHosts {
        let own = |host: &&HostSpec| host.role == Role::Context && host.model() == model.label;
        let contexts: Vec<&HostSpec> = hosts.filter(own).collect();
        let device = |host: &&'a HostSpec| (&host.node, &host.device);
        let one_device = contexts.iter().all(|host| device(host) == device(&contexts[0]));
        ContextHosts { count: contexts.len(), one_device, kv: model.kv, speeds: model.speeds }
    }
}

/// The context hosts that a job is planned for.
#[derive(Clone, Copy, Debug)]
pub struct ContextHosts {
    /// How many.
    pub count: usize,
    /// Whether they share a device: the cores of one machine, or one GPU.
    pub one_device: bool,
    /// Type of their keys and values.
    pub kv: KvType,
    /// How fast they are, where that was measured.
    pub speeds: Option<Calibration>,
}
