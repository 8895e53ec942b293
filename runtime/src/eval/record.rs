//! Records: a context, a query and the strings an answer must hold, written as one JSON object a line. Reading them is
//! `published.rs`'s.

use std::{fs, path::Path};

use asterism_models::QuerySeparator;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::EvalError;

/// Tasks whose gold strings are single words with spaces between them.
const WORD_TASKS: [&str; 3] = ["cwe", "fwe", "vt"];

/// One question about one context.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EvalRecord {
    /// Task by name; scores are kept by it.
    pub task: String,
    /// The document. BOS is not part of it.
    pub input_context: String,
    /// The question, and where the task has one the start of its answer.
    pub input_query: String,
    /// What stands between the two; absent: the cluster's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub query_separator: Option<QuerySeparator>,
    /// Whether it is asked as a message, where the model has a chat template.
    #[serde(skip_serializing_if = "Clone::clone")]
    pub chat_template: bool,
    /// Gold strings: separated by ", ", in the tasks cwe, fwe and vt by spaces.
    pub answer: String,
    /// Tokens of the context by the tokenizer that sized it; 0 when not known.
    pub context_tokens: usize,
    /// Where the prose comes from; absent when there is none, or nobody said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub haystack: Option<HaystackSource>,
}

/// Where the prose of a record comes from. Scores over different sources do not compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HaystackSource {
    /// A small grammar.
    Generated,
    /// A text that the user gave.
    File,
}

impl EvalRecord {
    /// The strings that an answer must hold.
    pub fn gold(&self) -> Vec<&str> {
        if WORD_TASKS.contains(&self.task.as_str()) {
            self.answer.split_whitespace().collect()
        } else {
            self.answer.split(", ").filter(|gold| !gold.is_empty()).collect()
        }
    }

    /// The task, with a remark when its prose is not the benchmark's.
    pub fn label(&self) -> String {
        match self.haystack {
            Some(HaystackSource::Generated) => format!("{} (generated prose)", self.task),
            Some(HaystackSource::File) | None => self.task.clone(),
        }
    }
}

/// 1 when `answer` holds every gold string of `record`, whatever the case; else 0.
pub fn score(record: &EvalRecord, answer: &str) -> f64 {
    let answer = answer.to_lowercase();
    let right = record.gold().iter().all(|gold| answer.contains(&gold.to_lowercase()));
    f64::from(u8::from(right))
}

/// A UTF-8 text file, whole.
///
/// # Errors
/// [`EvalError::Read`].
pub fn read_haystack(path: impl AsRef<Path>) -> Result<String, EvalError> {
    let path = path.as_ref();
    fs::read_to_string(path).map_err(|source| EvalError::Read { path: path.to_owned(), source })
}

/// A value that stands on one line.
pub(super) fn of_line<T: DeserializeOwned>(line: &str) -> Result<T, String> {
    // Everything stands on one line, so serde_json's own line number would mislead.
    serde_json::from_str(line)
        .map_err(|error| error.to_string().replace(&format!(" at line 1 column {}", error.column()), ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(task: &str, answer: &str) -> EvalRecord {
        EvalRecord {
            task: task.to_owned(),
            input_context: "c".to_owned(),
            input_query: "q".to_owned(),
            query_separator: Some(QuerySeparator::NONE),
            chat_template: true,
            answer: answer.to_owned(),
            context_tokens: 0,
            haystack: None,
        }
    }

    #[test]
    fn every_gold_string_must_be_there() {
        assert_eq!(of("vt", "ABCDE FGHIJ").gold(), ["ABCDE", "FGHIJ"]);
        assert_eq!(of("niah_multivalue", "123, 456").gold(), ["123", "456"]);
        assert_eq!(of("qa", "New York").gold(), ["New York"]);
        assert_eq!(score(&of("niah_multivalue", "123, 456"), " 456 and 123."), 1.0);
        assert_eq!(score(&of("niah_multivalue", "123, 456"), " 456 and 13."), 0.0);
        assert_eq!(score(&of("qa1", "Julie"), "JULIE"), 1.0);
        assert_eq!(score(&of("qa1", "Julie"), ""), 0.0);
    }
}
