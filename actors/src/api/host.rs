//! Hosts and the cluster as clients see them: plain values.

mod gpu;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{SelfTestReport, SelfTestState};
pub use gpu::{GpuReading, GpuStatus, MOST_GPUS};

/// A host's role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Encodes shards and answers phase-2 queries over them.
    Context,
    /// Encodes the query and generates.
    Query,
    /// Waits to take a lost host's place.
    Spare,
}

/// How a host is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum HostHealth {
    /// Its process has not connected yet.
    Starting,
    /// Connected, loading the model.
    Loading,
    /// Ready for work.
    Ready,
    /// Heartbeats are late.
    Suspect,
    /// Declared dead.
    Dead,
}

/// Whether a host takes new work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Scheduling {
    /// It does.
    #[default]
    Open,
    /// It keeps what it has and takes nothing new.
    Cordoned,
    /// What it has moves to others.
    Draining,
    /// It will not come back: nobody waits for it, and nothing tells of it.
    Removed,
}

/// A host as `status` shows it.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct HostStatus {
    /// Name.
    pub name: String,
    /// Role.
    pub role: Role,
    /// Machine it runs on.
    #[serde(default)]
    pub node: String,
    /// Whether it takes new work.
    #[serde(default)]
    pub scheduling: Scheduling,
    /// Times that its process was started again.
    #[serde(default)]
    pub restarts: u32,
    /// Shards it holds or encodes.
    #[serde(default)]
    pub shards: usize,
    /// Device, such as `cpu`.
    pub device: String,
    /// The name of its model in the cluster file, where that has one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub model: String,
    /// Health.
    pub health: HostHealth,
    /// Process id, once connected.
    pub pid: Option<u32>,
    /// Address peers reach it at, once connected.
    pub address: Option<String>,
    /// Where peers reach it, the best way first, each as `TRANSPORT at ADDRESS`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<String>,
    /// Links that it opened to other hosts and that are up, by what carries them, as it last told.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub data_links: Vec<DataLinks>,
    /// Seconds since its last heartbeat.
    pub heartbeat_age_s: Option<f64>,
    /// Threads that it computes with now, where it computes on the CPU and has said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<u64>,
    /// What decides the bits of its results: device, kernels, compute type, build. Shards of a job go to hosts of equal words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numerics: Option<String>,
    /// Version of the protocol that it and the supervisor settled on, while it is connected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<u16>,
    /// The build of what it computes with, which hosts of one program and device have alike.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<String>,
    /// Seconds that its clock is ahead of the supervisor's, as it last told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_offset_s: Option<f64>,
    /// KV bytes held.
    pub kv_bytes: u64,
    /// KV bytes of shards that nobody asks for any more, kept in case that they are asked for again.
    #[serde(default)]
    pub idle_kv_bytes: u64,
    /// Why it is dead or not ready, in one line.
    pub cause: Option<String>,
    /// What it computes slower than its equals or than before, in one clause. A host that waits for another is not slow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slow: Option<String>,
    /// How many times longer than it should that takes it; 1 where it is not slow.
    #[serde(default = "not_slow")]
    pub slowdown: f64,
    /// Since when it is not there, or that it never was, in one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub absent: Option<String>,
}

fn not_slow() -> f64 {
    1.0
}

/// Links of a host to other hosts that one transport carries for one reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct DataLinks {
    /// Transport by name.
    pub transport: String,
    /// Better ways that they do not take, each with the cause; empty where there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// How many.
    pub links: usize,
}

impl std::fmt::Display for DataLinks {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.why.as_str() {
            "" => write!(formatter, "{} over {}", self.links, self.transport),
            why => write!(formatter, "{} over {}, since {why}", self.links, self.transport),
        }
    }
}

impl HostStatus {
    /// Why it is not there, not ready or slow, as far as that is known.
    pub fn explained(&self) -> Option<String> {
        let parts: Vec<&str> =
            [&self.absent, &self.cause, &self.slow].into_iter().flatten().map(String::as_str).collect();
        (!parts.is_empty()).then(|| parts.join(": "))
    }
}

/// The cluster as `status` shows it.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ClusterStatus {
    /// Cluster name.
    pub name: String,
    /// Model by name.
    pub model: String,
    /// What tells it from every other: of its configuration, tokenizer and weights. Absent while these are hashed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_digest: Option<String>,
    /// Every model where there are several, the first of which is that of requests that name none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<ModelStatus>,
    /// Default method by name.
    pub method: String,
    /// Runtime version.
    pub version: String,
    /// Whether every host is ready.
    pub ready: bool,
    /// Whether a job of some model would be planned and answered now, with as many hosts as `[supervisor] ready_when` asks for.
    #[serde(default)]
    pub answers: bool,
    /// Hosts of the cluster file that were removed since.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<String>,
    /// Hosts in the order of the cluster file.
    pub hosts: Vec<HostStatus>,
    /// GPUs of the nodes' machines, where their agents can read them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<GpuStatus>,
    /// Jobs waiting.
    pub jobs_pending: usize,
    /// Jobs running.
    pub jobs_running: usize,
    /// Its latest self-test, where there was one or has to be one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub self_test: Option<SelfTestReport>,
    /// What clients of OpenAI's API keep, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored: Option<StoredStatus>,
}

/// One of several models.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ModelStatus {
    /// What requests call it.
    pub name: String,
    /// What tells it from every other. Absent while its weights are hashed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Whether a job for it would be planned and answered now.
    pub answers: bool,
}

/// What clients keep in the data_dir: files and batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StoredStatus {
    /// Bytes of all.
    pub bytes: u64,
    /// The most that they may be.
    pub max_bytes: u64,
    /// Bytes of the key that has the most.
    pub largest_key_bytes: u64,
    /// The most that those of one key may be.
    pub max_bytes_per_key: u64,
}

impl ClusterStatus {
    /// Whether every host is ready, and no self-test has to pass that has not ended.
    pub fn is_settled(&self) -> bool {
        let ended = |test: &SelfTestReport| matches!(test.state, SelfTestState::Passed | SelfTestState::Wrong);
        self.ready && self.self_test.as_ref().is_none_or(ended)
    }

    /// Whether a self-test found it wrong.
    pub fn is_wrong(&self) -> bool {
        self.self_test.as_ref().is_some_and(|test| test.state == SelfTestState::Wrong)
    }
}

/// Phase-1 progress of one context host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HostProgress {
    /// Host name.
    pub host: String,
    /// Tokens of this job done; a token counts a layer's share at a time.
    pub done_tokens: usize,
    /// Tokens of this job in all, prefixes included.
    pub total_tokens: usize,
}
