//! A question as a published file gives it. Reads no file.

use serde::{Deserialize, Serialize};

use crate::eval::{EvalRecord, Metric};

/// Most tokens of an answer to a question whose benchmark says none.
pub(crate) const BENCHMARK_ANSWER_TOKENS: usize = 64;

/// A question of a file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PublishedQuestion {
    /// `file` for records of this program's form, else the benchmark.
    pub suite: &'static str,
    /// Task, context and query.
    pub record: EvalRecord,
    /// What an answer must hold, or alternatives of it, as the metric has it.
    pub gold: Vec<String>,
    /// How it is scored.
    #[serde(skip)]
    pub metric: Metric,
    /// Most tokens of the answer.
    pub max_tokens: usize,
}

/// A string or a number, or several.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

impl<T> OneOrMany<T> {
    pub(crate) fn into_vec(self) -> Vec<T> {
        match self {
            Self::One(value) => vec![value],
            Self::Many(values) => values,
        }
    }
}
