//! Sessions as clients see them: plain values.

use asterism_models::{QuerySeparator, TemplateDate};
use asterism_plan::MethodConfig;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ErrorBody, HostProgress, PlacementPolicy, Prompt, SessionState, Waiting, bounds};

/// A context to encode once and ask many times.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionRequest {
    /// Its name: letters, digits, `-`, `_` and `.`, at most 64.
    pub name: String,
    /// The document.
    pub context: Prompt,
    /// The model that encodes it and answers, by its name; absent: the cluster's first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Attention method and its sizes; absent: the cluster's default.
    #[serde(default)]
    pub method: Option<MethodConfig>,
    /// Whether the method's block size may leave context hosts without work.
    #[serde(default)]
    pub allow_idle_hosts: bool,
    /// Whether the model's chat template is applied.
    #[serde(default = "super::yes")]
    pub chat_template: bool,
    /// What stands before each of its questions that names nothing else; absent: the cluster's, and none where the context is
    /// token ids.
    #[serde(default)]
    pub query_separator: Option<QuerySeparator>,
    /// The date that the chat template is told for all of its questions, in UTC, such as `2026-11-25`; absent: the cluster's, or
    /// else the time at which it was created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub template_date: Option<TemplateDate>,
    /// Seconds until it ends by itself; absent: the cluster's default.
    #[serde(default)]
    #[schemars(range(min = bounds::SHORTEST_S, max = bounds::LONGEST_REQUEST_TIME.as_secs_f64()))]
    pub ttl_s: Option<f64>,
    /// Which hosts its shards may go to.
    #[serde(default)]
    pub placement: PlacementPolicy,
}

/// What a session goes on with.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AppendRequest {
    /// Text, which goes on where the session's ends, or token ids, which are taken as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<Prompt>,
    /// A question to the session that was answered, by its job: it and its answer are appended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
}

/// A session as `session show` shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SessionStatus {
    /// Name.
    pub name: String,
    /// State.
    pub state: SessionState,
    /// Model by name.
    #[serde(default)]
    pub model: String,
    /// Method by name.
    pub method: String,
    /// Context tokens.
    pub context_tokens: usize,
    /// Of these, tokens that were not encoded for it, since hosts held the same already: what it was before the last append,
    /// or another context.
    #[serde(default)]
    pub cached_tokens: usize,
    /// What is being appended; questions see nothing of it yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub appending: Option<Appending>,
    /// Why the last append came to nothing, if it did: the session is as it was before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub append_error: Option<ErrorBody>,
    /// Who holds what.
    pub hosts: Vec<SessionHost>,
    /// Bytes of KV over all hosts.
    pub kv_bytes: u64,
    /// Questions asked.
    pub hits: u64,
    /// Seconds that encoding took.
    pub encode_s: f64,
    /// What it waits for, while nobody encodes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<Waiting>,
    /// How far each host is, while it is encoded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub progress: Vec<HostProgress>,
    /// Seconds until it ends by itself.
    pub expires_s: f64,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorBody>,
}

/// An append under way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Appending {
    /// Context tokens that the session has after it.
    pub context_tokens: usize,
    /// What it waits for, while nobody encodes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<Waiting>,
    /// How far each host is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub progress: Vec<HostProgress>,
}

/// A host's part of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SessionHost {
    /// Host name.
    pub host: String,
    /// Shards it holds.
    pub shards: usize,
    /// Context tokens it keeps.
    pub kept_tokens: usize,
    /// Bytes of KV it keeps.
    pub kv_bytes: u64,
}
