//! `cluster.toml` as typed. Says what a line means and whether it parses; what the lines add up to is `cluster.rs`'s.

pub mod changes;
mod device;
pub(crate) mod error;
mod host;
mod joined;
mod models;
mod numbers;
mod observability;
mod paths;
mod read;
pub mod sample;
mod standby;

use std::{collections::BTreeMap, path::PathBuf};

use asterism_actors::supervisor::MixedNumerics;
use asterism_plan::MethodConfig;
use serde::{Deserialize, Serialize};

pub use super::file::error::FileError;
use crate::cluster::size::Bytes;
pub use device::{Device, Devices};
pub use host::{HostSection, Role};
pub use joined::JoinedNodes;
pub use models::{ModelSection, ModelSections};
pub use numbers::{ComputeType, DType, KvDType};
pub use observability::{LogFormat, ObservabilitySection};
pub use paths::{anchored, with_own_paths};
pub use read::parse;
pub use standby::StandbySection;

/// The whole file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterFile {
    /// Version of this format: 1.
    pub version: u32,
    /// `[cluster]`
    #[serde(default)]
    pub cluster: ClusterSection,
    /// `[model]`, or several `[[model]]`
    #[serde(default)]
    pub model: ModelSections,
    /// `[models]`: what goes with the model.
    #[serde(default, skip_serializing_if = "is_default")]
    pub models: ModelsSection,
    /// `[attention.METHOD]`: exactly one table.
    #[serde(default)]
    pub attention: MethodConfig,
    /// `[transport]`
    #[serde(default)]
    pub transport: TransportSection,
    /// `[security]`
    #[serde(default)]
    pub security: SecuritySection,
    /// `[supervisor]`
    #[serde(default)]
    pub supervisor: SupervisorSection,
    /// `[standby]`: several supervisors, of which one leads.
    #[serde(default, skip_serializing_if = "is_default")]
    pub standby: StandbySection,
    /// `[sessions]`
    #[serde(default)]
    pub sessions: SessionsSection,
    /// `[serving]`
    #[serde(default, skip_serializing_if = "is_default")]
    pub serving: ServingSection,
    /// `[api]`
    #[serde(default)]
    pub api: ApiSection,
    /// `[observability]`
    #[serde(default)]
    pub observability: ObservabilitySection,
    /// `[[node]]`: the machines.
    #[serde(default, rename = "node")]
    pub nodes: Vec<NodeSection>,
    /// `[[host]]`: the host processes.
    #[serde(default, rename = "host")]
    pub hosts: Vec<HostSection>,
}

/// `[cluster]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClusterSection {
    /// Name of the cluster.
    pub name: String,
    /// Where certificates, logs and the lock live; relative to the file. Absent: `.asterism/NAME`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_dir: Option<PathBuf>,
    /// Address hosts reach the supervisor at.
    pub listen: String,
    /// What becomes of a job that no hosts of equal numerics can take: `refuse` or `mark`.
    pub mixed_numerics: MixedNumerics,
}

/// `[models]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelsSection {
    /// `[models.heads.NAME]`: APB's retaining heads, which requests name NAME.
    pub heads: BTreeMap<String, HeadsSection>,
}

/// `[models.heads.NAME]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeadsSection {
    /// A safetensors file, relative to the cluster file.
    pub path: PathBuf,
    /// The `name` of the model that they were trained for; absent: the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

/// `[transport]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TransportSection {
    /// What carries control messages.
    pub control: ControlTransport,
    /// What carries tensors between hosts.
    pub data: DataTransport,
    /// Network interfaces that UCX may take and nobody else reaches. Without one, `auto` has UCX share memory alone and `ucx` take
    /// the interface that has the host's address, unless all hosts are on one node.
    pub interfaces: Vec<String>,
    /// Sockets with threads of their own over which QUIC spreads large payloads; 0: all go over one. None: hosts on GPUs have some where
    /// cores are to spare.
    pub lanes: Option<u16>,
}

/// What carries control messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ControlTransport {
    /// QUIC.
    #[default]
    Quic,
}

/// What carries tensors between hosts: the queries of phase 2 and their answers, and what shards pass each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DataTransport {
    /// The fastest one both ends have.
    #[default]
    Auto,
    /// QUIC.
    Quic,
    /// UCX, which this build has if it was made with the feature `ucx`.
    Ucx,
}

/// `[security]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SecuritySection {
    /// Whether hosts prove who they are.
    pub mode: SecurityMode,
    /// The cluster's CA certificate (PEM). Absent: made in data_dir by the first `up`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// Each process's certificate chain (PEM), with its name in the place of `{name}`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cert: Option<PathBuf>,
    /// Each process's private key (PEM), likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
    /// A file whose first line every admin request must bear as its token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    /// Where the supervisor gives certificates to nodes with a join token. Absent: nowhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub join_listen: Option<String>,
    /// The admin API may listen beyond this machine without a token: for a closed network only.
    pub allow_open_admin: bool,
}

/// Whether hosts prove who they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SecurityMode {
    /// Both ends show a certificate of the cluster's own CA.
    #[default]
    Mtls,
    /// Encrypted, but anybody may join: for a closed network only.
    Insecure,
}

/// `[supervisor]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SupervisorSection {
    /// Milliseconds between a host's heartbeats; more where 2,048 a second would come from all hosts together.
    pub heartbeat_ms: u64,
    /// Missed heartbeats after which a host is suspect.
    pub suspect_after: u32,
    /// Milliseconds of silence after which a host is dead.
    pub dead_after_ms: u64,
    /// What happens to a job whose host died.
    pub recovery: Recovery,
    /// Times that a host's process is started again.
    pub max_restarts: u32,
    /// Whether the cluster takes no work before a self-test has passed.
    pub self_test: bool,
    /// Seconds that a host which SIGTERM asks to end may take to give its work to others.
    pub stop_grace_s: u64,
    /// Whether shards of sessions move to where they lie better when it is quiet.
    pub rebalance: bool,
    /// Whether hosts that are slow get shards only when others have no room.
    pub avoid_stragglers: bool,
    /// When `/readyz` says so: `"answers"`, `"all"`, or a number of context hosts.
    pub ready_when: ReadyWhen,
}

/// When a cluster counts as ready to answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReadyWhen {
    /// A host encodes and a host generates.
    #[default]
    Answers,
    /// Every host is ready.
    All,
    /// So many context hosts are ready, and a host generates.
    #[serde(untagged)]
    Contexts(usize),
}

/// What happens to a job whose host died.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Recovery {
    /// Its shards are encoded anew on a spare; without one it fails.
    Spare,
    /// Its shards are encoded anew on a spare, or else on the other context hosts.
    #[default]
    Redistribute,
    /// It fails, with code `host_lost`.
    Fail,
}

/// `[sessions]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SessionsSection {
    /// Seconds that a session lives which names no time.
    pub default_ttl_s: u64,
    /// Most KV that sessions may pin over the cluster. Absent: what the hosts' memory allows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_pinned_bytes: Option<Bytes>,
}

/// `[serving]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServingSection {
    /// Jobs that one query host generates at once, where its memory holds them. Absent: 64, or 256 where one is on a GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_generating: Option<usize>,
    /// Whether tokens are guessed from what prompt and answer have had, and several verified in a step.
    pub speculation: Speculation,
    /// Milliseconds that a step of a query host may take, and with it the time between two tokens. Absent: 25 on CPUs, 50 on GPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_interval_ms: Option<u64>,
}

/// Whether query hosts guess tokens. Answers are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Speculation {
    /// Where it pays, by what is measured.
    #[default]
    Auto,
    /// Never.
    Off,
}

/// `[api]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ApiSection {
    /// Address of OpenAI's API. Absent: there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<String>,
    /// File of the keys that requests to it bear: a name and the SHA-256 of a key on each line. Absent: everybody may ask.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_key_file: Option<PathBuf>,
    /// PEM file of its certificate, and of those between it and its authority. Absent: it speaks plain HTTP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_cert: Option<PathBuf>,
    /// PEM file of that certificate's key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_key: Option<PathBuf>,
    /// Address of the admin API and of /metrics.
    pub admin_listen: String,
    /// PEM file of its certificate; commands that are given this file take no other. Absent: it speaks plain HTTP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin_tls_cert: Option<PathBuf>,
    /// PEM file of that certificate's key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin_tls_key: Option<PathBuf>,
    /// Jobs that may wait, and sessions that there may be; more are told to come again later.
    pub max_queue: usize,
    /// Memory that the contexts and questions of all jobs and sessions may take in the supervisor.
    pub max_queue_bytes: Bytes,
    /// Bytes of files and batches that clients of OpenAI's API may keep in data_dir.
    pub max_stored_bytes: Bytes,
    /// Bytes of these that one key may keep; without keys: everybody together.
    pub max_stored_bytes_per_key: Bytes,
    /// Origins whose pages may ask OpenAI's API in a browser, such as `https://app.example`; `*`: any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow_origins: Vec<String>,
    /// Seconds that a connection to OpenAI's API is kept between its requests.
    pub keep_alive_s: u64,
}

/// `[[node]]`: a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeSection {
    /// Name that hosts refer to.
    pub name: String,
    /// Its IP address.
    pub address: String,
    /// What its hosts are labelled with, beside their own, such as a rack and an island.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

impl ClusterFile {
    /// The name of a host's model, and the model if there is one of that name.
    pub fn model_of<'a>(&'a self, host: &'a HostSection) -> (Option<&'a str>, Option<&'a ModelSection>) {
        match &host.model {
            Some(name) => (Some(name), self.model.iter().find(|model| model.name.as_ref() == Some(name))),
            None => (self.model.first.name.as_deref(), Some(&self.model.first)),
        }
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Default for ClusterFile {
    fn default() -> Self {
        Self {
            version: 1,
            cluster: ClusterSection::default(),
            model: ModelSections::default(),
            models: ModelsSection::default(),
            attention: MethodConfig::default(),
            transport: TransportSection::default(),
            security: SecuritySection::default(),
            supervisor: SupervisorSection::default(),
            standby: StandbySection::default(),
            sessions: SessionsSection::default(),
            serving: ServingSection::default(),
            api: ApiSection::default(),
            observability: ObservabilitySection::default(),
            nodes: Vec::new(),
            hosts: Vec::new(),
        }
    }
}

impl Default for ClusterSection {
    fn default() -> Self {
        Self {
            name: "asterism".into(),
            data_dir: None,
            listen: "127.0.0.1:7400".into(),
            mixed_numerics: MixedNumerics::Refuse,
        }
    }
}

impl Default for SupervisorSection {
    fn default() -> Self {
        Self {
            heartbeat_ms: 250,
            suspect_after: 3,
            dead_after_ms: 1500,
            recovery: Recovery::Redistribute,
            max_restarts: 20,
            self_test: false,
            stop_grace_s: 8,
            rebalance: true,
            avoid_stragglers: false,
            ready_when: ReadyWhen::Answers,
        }
    }
}

impl Default for SessionsSection {
    fn default() -> Self {
        Self { default_ttl_s: 3600, max_pinned_bytes: None }
    }
}

impl Default for ApiSection {
    fn default() -> Self {
        Self {
            listen: None,
            api_key_file: None,
            tls_cert: None,
            tls_key: None,
            admin_listen: "127.0.0.1:7401".into(),
            admin_tls_cert: None,
            admin_tls_key: None,
            max_queue: 1024,
            max_queue_bytes: Bytes(512 << 20),
            max_stored_bytes: Bytes(4 << 30),
            max_stored_bytes_per_key: Bytes(1 << 30),
            allow_origins: Vec::new(),
            keep_alive_s: 75,
        }
    }
}
