//! A question of a benchmark: where it stands in the run, what is asked, and how the answer counts.

use super::{EvalRecord, Metric, PublishedQuestion, Task};

/// One question, the same for every method.
#[derive(Clone, Debug, PartialEq)]
pub struct EvalQuestion {
    /// `ruler`, `babilong`, `niah`, `longbench`, `infinitebench`, `real`, or `file`.
    pub suite: String,
    /// Tokens asked for; 0 when the question was given as it is.
    pub length: usize,
    /// Tells the questions of a task and length apart: the seed, or the place in its file.
    pub sample: u64,
    /// Task, context and query.
    pub record: EvalRecord,
    /// What an answer must hold.
    pub gold: Vec<String>,
    /// How it is scored.
    pub metric: Metric,
    /// Most tokens of the answer.
    pub max_tokens: usize,
    /// Of what it is made from, in hexadecimal: questions of one digest are the same.
    pub digest: String,
}

/// Where a question stands in a run.
#[derive(Clone, Copy, Debug)]
pub struct QuestionPlace {
    /// The suite.
    pub suite: &'static str,
    /// Tokens asked for.
    pub length: usize,
    /// The seed, or the place in its file.
    pub sample: u64,
}

impl EvalQuestion {
    /// One of a file.
    pub fn published(place: QuestionPlace, given: PublishedQuestion) -> Self {
        let PublishedQuestion { record, gold, metric, max_tokens, .. } = given;
        Self { gold, ..Self::with(place, record, metric, max_tokens) }
    }

    /// A record that was generated.
    pub fn generated(place: QuestionPlace, record: EvalRecord, task: Task) -> Self {
        Self::with(place, record, Metric::of(task), task.answer_tokens())
    }

    /// A record with a metric; its gold strings are those of the record.
    pub fn with(place: QuestionPlace, record: EvalRecord, metric: Metric, max_tokens: usize) -> Self {
        let gold = record.gold().into_iter().map(str::to_owned).collect();
        let QuestionPlace { suite, length, sample } = place;
        Self { suite: suite.to_owned(), length, sample, record, gold, metric, max_tokens, digest: String::new() }
    }
}
