//! Answered questions, one JSON object a line: what `--save` writes and `eval report` reads and merges.

use std::{collections::HashMap, path::Path};

use serde::{Deserialize, Serialize};

use super::{EvalError, HaystackSource, Question, read_haystack, record::of_line};

/// One method's answer to one question.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// The question's suite.
    pub suite: String,
    /// Its task.
    pub task: String,
    /// Tokens asked for; 0 when the question was given as it is.
    pub length: usize,
    /// The method as typed.
    pub method: String,
    /// Tells the questions of a task and length apart.
    pub sample: u64,
    /// The model by name.
    pub model: String,
    /// Whether the answer holds the gold strings.
    pub right: bool,
    /// The benchmark's score, from 0 to 1.
    pub score: f64,
    /// What the model said.
    pub answer: String,
    /// What it should hold.
    pub gold: Vec<String>,
    /// Where the prose comes from; absent when there is none, or nobody said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub haystack: Option<HaystackSource>,
    /// Where its time went.
    pub seconds: Seconds,
}

/// Wall clock of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Seconds {
    /// Phase 1.
    pub encode: f64,
    /// Phase 2's query step.
    pub query: f64,
    /// Phase 2's decoding.
    pub decode: f64,
    /// Submission to the end, waiting included.
    pub total: f64,
}

/// A question's place among those of all runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// Its suite.
    pub suite: String,
    /// Its task.
    pub task: String,
    /// Tokens asked for.
    pub length: usize,
    /// Which of the task's questions.
    pub sample: u64,
}

/// What a table counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Scoring {
    /// 1 when the answer holds every gold string, else 0
    Exact,
    /// The benchmark's own score
    Benchmark,
}

impl Answer {
    /// Scores what `model` said with `method`.
    pub fn new(question: &Question, (model, method): (&str, &str), said: &str, seconds: Seconds) -> Self {
        Self {
            suite: question.suite.clone(),
            task: question.record.task.clone(),
            length: question.length,
            method: method.to_owned(),
            sample: question.sample,
            model: model.to_owned(),
            right: question.metric.exact(said, &question.gold),
            score: question.metric.score(said, &question.record.input_query, &question.gold),
            answer: said.to_owned(),
            gold: question.gold.clone(),
            haystack: question.record.haystack,
            seconds,
        }
    }

    /// Its place among the questions of all runs.
    pub fn key(&self) -> Key {
        Key { suite: self.suite.clone(), task: self.task.clone(), length: self.length, sample: self.sample }
    }

    /// What it counts.
    pub fn counts(&self, scoring: Scoring) -> f64 {
        match scoring {
            Scoring::Exact => f64::from(u8::from(self.right)),
            Scoring::Benchmark => self.score,
        }
    }
}

/// One answer each for a question, method and model: the last that was given.
pub fn merged(answers: Vec<Answer>) -> Vec<Answer> {
    let mut places = HashMap::new();
    let mut merged: Vec<Answer> = Vec::new();
    for answer in answers {
        match places.entry((answer.key(), answer.method.clone(), answer.model.clone())) {
            std::collections::hash_map::Entry::Occupied(place) => merged[*place.get()] = answer,
            std::collections::hash_map::Entry::Vacant(place) => {
                place.insert(merged.len());
                merged.push(answer);
            }
        }
    }
    merged
}

/// The answers of a file that `--save` wrote.
///
/// # Errors
/// [`EvalError::Read`], [`EvalError::Data`] with the first line that is no answer.
pub fn read_answers(path: &Path) -> Result<Vec<Answer>, EvalError> {
    let text = read_haystack(path)?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(index, line)| {
            of_line(line).map_err(|reason| EvalError::Data {
                path: path.to_owned(),
                format: "a file of --save",
                reason: format!("line {}: {reason}", index + 1),
            })
        })
        .collect()
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::Write;

    use super::*;

    /// An answer at 4,096 tokens that is right or wrong.
    pub fn answered(task: &str, method: &str, sample: u64, right: bool) -> Answer {
        Answer {
            suite: "ruler".into(),
            task: task.into(),
            length: 4096,
            method: method.into(),
            sample,
            model: "asterism-7m".into(),
            right,
            score: f64::from(u8::from(right)),
            answer: "7".into(),
            gold: vec!["7".into()],
            haystack: None,
            seconds: Seconds { encode: 1.5, query: 0.25, decode: 0.5, total: 2.5 },
        }
    }

    #[test]
    fn the_last_of_duplicates_counts_once() {
        let merged = merged(vec![
            answered("vt", "dense", 1, true),
            answered("vt", "star", 1, true),
            answered("vt", "dense", 1, false),
            Answer { length: 8192, ..answered("vt", "dense", 1, true) },
        ]);
        assert_eq!(merged.len(), 3);
        assert!(!merged[0].right && merged[0].method == "dense");
    }

    #[test]
    fn answers_survive_their_file() {
        let answers = vec![answered("vt", "dense", 1, true), answered("cwe", "star:block_tokens=1024", 2, false)];
        let mut file = tempfile::NamedTempFile::new().unwrap();
        answers.iter().for_each(|answer| writeln!(file, "{}", serde_json::to_string(answer).unwrap()).unwrap());
        assert_eq!(read_answers(file.path()).unwrap(), answers);
        writeln!(file, "{{}}").unwrap();
        let error = read_answers(file.path()).unwrap_err().to_string();
        assert!(error.contains("is not a file of --save: line 3: missing field `suite`"), "{error}");
    }
}
