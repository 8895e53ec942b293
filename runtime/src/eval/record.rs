//! Records: a context, a query and the strings an answer must hold. Reads them; writing is one JSON object a line.

use std::{fs, path::Path};

use asterism_models::QuerySeparator;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::EvalError;

/// Tasks whose gold strings are single words with spaces between them.
const WORD_TASKS: [&str; 3] = ["cwe", "fwe", "vt"];

/// One question about one context. Unknown fields of a file are ignored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Task by name; scores are kept by it.
    #[serde(default = "unnamed")]
    pub task: String,
    /// The document. BOS is not part of it.
    pub input_context: String,
    /// The question, and where the task has one the start of its answer.
    pub input_query: String,
    /// What stands between the two; absent: nothing, they bring their own joint.
    #[serde(default = "no_separator", skip_serializing_if = "QuerySeparator::is_none")]
    pub query_separator: QuerySeparator,
    /// Gold strings: separated by ", ", in the tasks cwe, fwe and vt by spaces.
    pub answer: String,
    /// Tokens of the context by the tokenizer that sized it; 0 when not known.
    #[serde(default)]
    pub context_tokens: usize,
    /// Where the prose comes from; absent when there is none, or nobody said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
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

impl Record {
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
pub fn score(record: &Record, answer: &str) -> f64 {
    let answer = answer.to_lowercase();
    let right = record.gold().iter().all(|gold| answer.contains(&gold.to_lowercase()));
    f64::from(u8::from(right))
}

/// The records of a JSONL file; blank lines are skipped.
///
/// # Errors
/// [`EvalError::Read`], [`EvalError::Line`] with the first line that is no record, [`EvalError::NoRecords`].
pub fn read_jsonl(path: impl AsRef<Path>) -> Result<Vec<Record>, EvalError> {
    let path = path.as_ref();
    let text = read_haystack(path)?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let records = lines
        .map(|(index, line)| {
            record(line).map_err(|reason| EvalError::Line { path: path.to_owned(), line: index + 1, reason })
        })
        .collect::<Result<Vec<_>, _>>()?;
    if records.is_empty() { Err(EvalError::NoRecords { path: path.to_owned() }) } else { Ok(records) }
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

fn record(line: &str) -> Result<Record, String> {
    let record: Record = of_line(line)?;
    let fields =
        [("input_context", &record.input_context), ("input_query", &record.input_query), ("answer", &record.answer)];
    match fields.iter().find(|(_, value)| value.trim().is_empty()) {
        Some((name, _)) => Err(format!("{name} is empty")),
        None => Ok(record),
    }
}

fn no_separator() -> QuerySeparator {
    QuerySeparator::NONE
}

fn unnamed() -> String {
    "unnamed".to_owned()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn of(task: &str, answer: &str) -> Record {
        Record {
            task: task.to_owned(),
            input_context: "c".to_owned(),
            input_query: "q".to_owned(),
            query_separator: QuerySeparator::NONE,
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

    fn read(text: &str) -> Result<Vec<Record>, EvalError> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        read_jsonl(file.path())
    }

    #[test]
    fn a_line_that_is_no_record_is_named() {
        let good = r#"{"task": "qa1", "input_context": "a", "input_query": "b", "answer": "c", "more": 1}"#;
        assert_eq!(read(&format!("{good}\n\n{good}\n")).unwrap().len(), 2);
        let separated = good.replace("\"more\": 1", "\"query_separator\": \"\\n\\n\"");
        let separators = read(&format!("{good}\n{separated}\n")).unwrap().into_iter().map(|it| it.query_separator);
        assert_eq!(separators.collect::<Vec<_>>(), [QuerySeparator::NONE, QuerySeparator::PARAGRAPH]);
        assert!(!serde_json::to_string(&of("qa1", "a")).unwrap().contains("separator"), "records keep their bytes");
        for (bad, reason) in [
            ("{", "EOF while parsing an object"),
            (r#"{"input_context": "a"}"#, "missing field `input_query`"),
            (r#"{"input_context": "a", "input_query": " ", "answer": "c"}"#, "input_query is empty"),
            (
                r#"{"input_context": "a", "input_query": "b", "answer": 7}"#,
                "invalid type: integer `7`, expected a string",
            ),
        ] {
            match read(&format!("{good}\n\n{bad}\n")).unwrap_err() {
                EvalError::Line { line: 3, reason: got, .. } => assert_eq!(got, reason),
                other => panic!("{other}"),
            }
        }
        assert!(matches!(read("\n\n"), Err(EvalError::NoRecords { .. })));
        assert!(matches!(read_jsonl("no/such/file"), Err(EvalError::Read { .. })));
    }
}
