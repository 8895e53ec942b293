//! What a self-test of the cluster found, as clients see it: plain values.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How a self-test stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SelfTestState {
    /// None was asked for.
    #[default]
    None,
    /// The cluster takes no work before one has passed, and hosts are not there yet.
    Pending,
    /// It runs.
    Running,
    /// What could be judged was right.
    Passed,
    /// Something was wrong.
    Wrong,
    /// Nothing was wrong, and not everything could be done.
    Undone,
}

/// What became of one canary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it must be.
    Right,
    /// Not as it must be.
    Wrong,
    /// Nothing says how it must be.
    Unjudged,
    /// It got no answer, for a cause that may pass.
    Undone,
}

/// One canary and its answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SelfTestCheck {
    /// What was tried, in a few words.
    pub name: String,
    /// Attention method that encoded it.
    pub method: String,
    /// Hosts that encoded it, and the one that answered.
    pub hosts: Vec<String>,
    /// Context tokens.
    pub context_tokens: usize,
    /// Its answer.
    pub text: String,
    /// What that is worth.
    pub verdict: Verdict,
    /// Why, where it is not right.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Seconds it took.
    pub seconds: f64,
}

/// A self-test, while it runs and after.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SelfTestReport {
    /// How it stands.
    pub state: SelfTestState,
    /// Why, where it has not passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// What it is doing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub doing: Option<String>,
    /// Canaries answered.
    pub done: usize,
    /// Canaries in all.
    pub total: usize,
    /// When it ended, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<u64>,
    /// Seconds it took.
    pub seconds: f64,
    /// Each canary; left out where the whole cluster is told of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<SelfTestCheck>,
}

impl SelfTestReport {
    /// The same without its canaries; none where no test was asked for.
    pub fn brief(&self) -> Option<Self> {
        (self.state != SelfTestState::None).then(|| Self { checks: Vec::new(), ..self.clone() })
    }
}
