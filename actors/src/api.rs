//! What a client sends to the supervisor and receives from it: plain values, JSON on the admin API.

pub mod bounds;
mod host;
mod links;
mod logprobs;
mod placement;
mod prompt;
mod self_test;
mod session;
mod session_state;
mod timings;
mod trace_context;
mod waiting;

use std::collections::BTreeMap;

use asterism_models::{QuerySeparator, Sampling, TemplateDate};
use asterism_plan::MethodConfig;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use host::{
    ClusterStatus, DataLinks, GpuReading, GpuStatus, HostHealth, HostProgress, HostStatus, MOST_GPUS, ModelStatus,
    Role, Scheduling, StoredStatus,
};
pub use links::{LinkSpeed, LinksReport, LinksState};
pub use logprobs::{TokenLogprobs, TopLogprob};
pub use placement::{Arrangement, PlacementPolicy};
pub use prompt::Prompt;
pub use self_test::{SelfTestCheck, SelfTestReport, SelfTestState, Verdict};
pub use session::{AppendRequest, Appending, SessionHost, SessionRequest, SessionStatus};
pub use session_state::SessionState;
pub use timings::{HostTiming, Timings};
pub use trace_context::{JobTrace, NoTraceContext, TraceContext};
pub use waiting::{AwaitedHost, Waiting};

pub use crate::error::ErrorBody;

/// A job: a context, a question about it, and how to answer.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JobRequest {
    /// Idempotency key: the same request with the same id again returns the first job, another request is refused. Absent:
    /// the supervisor makes an id.
    #[serde(default)]
    pub id: Option<String>,
    /// The document. Texts are tokenised as one with the query. Absent when a session is named.
    #[serde(default)]
    pub context: Option<Prompt>,
    /// A session to ask, instead of a context.
    #[serde(default)]
    pub session: Option<String>,
    /// The model that answers, by its name; absent: the session's, or else the cluster's first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The question.
    pub query: Prompt,
    /// Attention method and its sizes; absent: the cluster's default.
    #[serde(default)]
    pub method: Option<MethodConfig>,
    /// Whether the method's block size may leave context hosts without work; otherwise such a job is refused.
    #[serde(default)]
    pub allow_idle_hosts: bool,
    /// Most tokens to generate.
    #[serde(default = "default_max_tokens")]
    #[schemars(range(min = 1))]
    pub max_tokens: usize,
    /// Greedy by default.
    #[serde(default)]
    pub sampling: Sampling,
    /// Strings that end the answer; the answer does not contain them.
    #[serde(default)]
    pub stop: Vec<String>,
    /// Whether it is told how likely each token of the answer was, and how many of the likeliest beside it, at most 20.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = bounds::TOP_LOGPROBS))]
    pub logprobs: Option<u32>,
    /// Whether the query is the whole prompt, of which no context host encodes a part: it is told how likely each of its tokens
    /// behind the first was, before the answer's, by attention that leaves nothing out. Neither a context nor a session, nor the
    /// chat template go with it; such a job may ask for no further token.
    #[serde(default, skip_serializing_if = "is_false")]
    pub prompt_logprobs: bool,
    /// Go on after the model's end-of-sequence tokens (fixtures and benchmarks).
    #[serde(default)]
    pub ignore_eos: bool,
    /// Whether the model's chat template is applied; it needs context and query as text. Special tokens' names in them are text
    /// then, where raw text names tokens.
    #[serde(default = "yes")]
    pub chat_template: bool,
    /// What stands between context and query where both are text, a part of the query's tokens; absent: what the session or
    /// else the cluster has. Token ids are never separated.
    #[serde(default)]
    pub query_separator: Option<QuerySeparator>,
    /// The date that the chat template is told, in UTC, such as `2026-11-25`; absent: the session's or the cluster's, or else the
    /// time at which the job was submitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub template_date: Option<TemplateDate>,
    /// How its shards lie over the hosts, and which hosts may have them.
    #[serde(default)]
    pub placement: PlacementPolicy,
    /// Seconds after which the job fails with `timeout`.
    #[serde(default)]
    #[schemars(range(min = bounds::SHORTEST_S, max = bounds::LONGEST_REQUEST_TIME.as_secs_f64()))]
    pub timeout_s: Option<f64>,
    /// Free labels, shown by `job list`.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Whether the context is taken to come again with more behind it, and is encoded in a form of which all later ones have what
    /// they begin with.
    #[serde(default, skip_serializing_if = "Reuse::is_none")]
    pub reuse: Reuse,
    /// What sets its context apart: no request with another salt, or with none, shares anything of it, and those with the same do,
    /// as far as they are of one key. At most 256 bytes. A session has no salt, and is asked without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = bounds::SALT_BYTES))]
    pub cache_salt: Option<String>,
    /// The span of the request that brought it, which headers tell and no body.
    #[serde(skip)]
    pub trace: Option<TraceContext>,
}

impl JobRequest {
    /// Bytes of its texts.
    pub fn bytes(&self) -> usize {
        self.context.as_ref().map_or(0, Prompt::bytes) + self.query.bytes()
    }

    /// A question about a context, or about a session named later, with every default.
    pub fn new(context: Option<Prompt>, query: Prompt) -> Self {
        Self {
            id: None,
            context,
            session: None,
            model: None,
            query,
            method: None,
            allow_idle_hosts: false,
            max_tokens: default_max_tokens(),
            sampling: Sampling::default(),
            stop: Vec::new(),
            logprobs: None,
            prompt_logprobs: false,
            ignore_eos: false,
            chat_template: yes(),
            query_separator: None,
            template_date: None,
            placement: PlacementPolicy::default(),
            timeout_s: None,
            labels: BTreeMap::new(),
            reuse: Reuse::None,
            cache_salt: None,
            trace: None,
        }
    }
}

fn default_max_tokens() -> usize {
    128
}

fn yes() -> bool {
    true
}

/// Whether a context is taken to come again with more behind it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Reuse {
    /// It is encoded for this question.
    #[default]
    None,
    /// It is encoded for this question, but as a chain where that would be dense attention, which is as exact.
    Exact,
    /// It is: as a chain where dense attention or `auto` was asked for, which is exact.
    Likely,
}

impl Reuse {
    fn is_none(&self) -> bool {
        *self == Self::None
    }
}

/// Where a job stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum JobState {
    /// Waiting for its turn.
    Pending,
    /// Being worked on.
    Running,
    /// Ended with an answer.
    Succeeded,
    /// Ended with an error.
    Failed,
    /// Ended by its user.
    Cancelled,
}

/// What a running job is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum JobPhase {
    /// Waiting for its turn.
    Queued,
    /// Phase 1.
    Encoding,
    /// Phase 2, the query step.
    Querying,
    /// Phase 2, one token at a time.
    Decoding,
    /// A host was lost: its shards are encoded anew, or its part of phase 2 is gone through again.
    Recovering,
}

/// Why a job ended with an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FinishReason {
    /// An end-of-sequence token or a stop string.
    Stop,
    /// `max_tokens` reached.
    Length,
}

fn is_false(value: &bool) -> bool {
    !value
}

fn is_zero(value: &usize) -> bool {
    *value == 0
}

/// A job as `job status` shows it.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct JobStatus {
    /// Job id.
    pub id: String,
    /// When it was submitted, in seconds since 1970.
    #[serde(default)]
    pub created_at: u64,
    /// State.
    pub state: JobState,
    /// Phase, while pending or running.
    #[serde(default)]
    pub phase: Option<JobPhase>,
    /// What it waits for, while nobody works on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<Waiting>,
    /// Method by name; the one taken where `auto` was asked to choose.
    pub method: String,
    /// Why it was taken, where `auto` chose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method_reason: Option<String>,
    /// Model by name.
    pub model: String,
    /// The session asked, if one was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// The date that the model's chat template was told, in UTC, where one was applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub template_date: Option<TemplateDate>,
    /// Context tokens.
    pub context_tokens: usize,
    /// Query tokens.
    pub query_tokens: usize,
    /// Tokens of a session's context that the question gets anew.
    #[serde(default)]
    pub refreshed_tokens: usize,
    /// Context tokens of blocks that hosts held already, of earlier jobs or sessions.
    #[serde(default)]
    pub reused_tokens: usize,
    /// Of these, the ones that were not encoded for it in any way: the question got none of them anew.
    #[serde(default)]
    pub cached_tokens: usize,
    /// Tokens generated so far.
    pub generated_tokens: usize,
    /// Tokens of the prompt that stand in `tokens` and `logprobs` before those of the answer, where they were asked for.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub scored_tokens: usize,
    /// Answer so far.
    pub text: String,
    /// Generated token ids so far.
    pub tokens: Vec<u32>,
    /// How likely each of them was, where that was asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub logprobs: Vec<TokenLogprobs>,
    /// Set once succeeded.
    #[serde(default)]
    pub finish_reason: Option<FinishReason>,
    /// Set once failed.
    #[serde(default)]
    pub error: Option<ErrorBody>,
    /// Labels of the request.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Share of dense attention's pairs that phase 1 did not compute; set once every shard is encoded. Below zero when
    /// prefixes cost more than blocks save.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attention_sparsity: Option<f64>,
    /// Whether hosts worked on it whose results differ in their last bits, so that its tokens may differ from those of another
    /// run.
    #[serde(default, skip_serializing_if = "is_false")]
    pub mixed_numerics: bool,
    /// Hosts lost while the job needed them, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recoveries: Vec<RecoveryStatus>,
    /// Seconds spent so far.
    pub timings: Timings,
}

/// A host lost under a job, and what became of its part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RecoveryStatus {
    /// The host.
    pub host: String,
    /// What it did for the job.
    pub role: Role,
    /// Why it counts as lost: `exited`, `heartbeat`, `disconnected`, `drained` or `stalled`.
    pub reason: String,
    /// Phase that the job was in.
    pub phase: JobPhase,
    /// Seconds that the host had been silent when it was declared dead.
    pub silent_s: f64,
    /// Shards encoded anew, of all jobs' contexts none but this one's.
    pub shards: usize,
    /// Seconds from the declaration until the job went on; none while it has not.
    pub recovered_s: Option<f64>,
}

/// What a watcher of a job hears, in order; the last is `Finished`. One JSON object a line on the admin API.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum JobEvent {
    /// The job moved to another phase.
    Phase {
        /// The phase it is in now.
        phase: JobPhase,
    },
    /// It waits for something, for something else now, or for nothing any more.
    Waiting {
        /// What for.
        waiting: Option<Waiting>,
    },
    /// Phase 1 went on.
    Progress {
        /// Every context host that has work.
        hosts: Vec<HostProgress>,
    },
    /// A token was generated.
    Token {
        /// Its id.
        id: u32,
        /// The text it adds; may be empty while a character is incomplete.
        text: String,
        /// How likely it was, where that was asked for.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        logprobs: Option<Box<TokenLogprobs>>,
    },
    /// A host was lost, or what it did goes on elsewhere (`recovered_s` is set).
    Recovery {
        /// Which, why, and how long it took.
        recovery: RecoveryStatus,
    },
    /// The job ended; its status says how.
    Finished {
        /// The final status.
        status: Box<JobStatus>,
    },
}
