//! Questions of files: this program's records, and the files of RULER, LongBench and InfiniteBench as they are published. Tells
//! them apart by the keys of a line. Asks nothing.

mod infinitebench;
mod longbench;
pub(crate) mod published_question;
mod ruler;
mod template;

use std::path::Path;

use asterism_models::QuerySeparator;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use super::{EvalError, EvalRecord, HaystackSource, Metric, read_haystack, record::of_line};
use published_question::BENCHMARK_ANSWER_TOKENS;
pub use published_question::PublishedQuestion;

/// The questions of a file of one JSON object a line; blank lines are skipped.
///
/// # Errors
/// [`EvalError::Read`], [`EvalError::Line`] with the first line that is no question, [`EvalError::NoRecords`].
pub fn read_questions(path: impl AsRef<Path>) -> Result<Vec<PublishedQuestion>, EvalError> {
    let path = path.as_ref();
    let text = read_haystack(path)?;
    let (task, lines) = (task_of(path), text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()));
    let questions = lines
        .map(|(index, line)| {
            let refused = |reason| EvalError::Line { path: path.to_owned(), line: index + 1, reason };
            question(line, &task).and_then(checked).map_err(refused)
        })
        .collect::<Result<Vec<_>, _>>()?;
    if questions.is_empty() { Err(EvalError::NoRecords { path: path.to_owned() }) } else { Ok(questions) }
}

/// What a published file's name says of its task: RULER's folders are named by it, other files are.
fn task_of(path: &Path) -> String {
    let name = |path: &Path| path.file_stem().map(|name| name.to_string_lossy().into_owned());
    let stem = name(path).unwrap_or_default();
    let folder = || path.parent().and_then(name).filter(|name| !name.is_empty());
    match stem.as_str() {
        "validation" | "test" | "train" | "data" => folder().unwrap_or(stem),
        _ => stem,
    }
}

/// Reads a line by the format that its keys are of.
fn question(line: &str, task: &str) -> Result<PublishedQuestion, String> {
    let keys: Map<String, Value> = of_line(line)?;
    let has = |key: &str| keys.contains_key(key);
    if has("input_context") || has("input_query") {
        own(typed(keys)?)
    } else if has("input") && has("outputs") {
        ruler::question(typed(keys)?, task)
    } else if has("context") && has("answers") {
        longbench::question(typed(keys)?, task)
    } else if has("context") && has("input") && has("answer") {
        infinitebench::question(typed(keys)?, task)
    } else {
        let found: Vec<&str> = keys.keys().map(String::as_str).collect();
        Err(format!("its keys are {}", if found.is_empty() { "none".to_owned() } else { found.join(", ") }))
    }
}

fn typed<T: DeserializeOwned>(keys: Map<String, Value>) -> Result<T, String> {
    serde_json::from_value(Value::Object(keys)).map_err(|error| error.to_string())
}

/// A record of this program's form. Other keys are ignored.
#[derive(Deserialize)]
struct Own {
    #[serde(default = "unnamed")]
    task: String,
    input_context: String,
    input_query: String,
    query_separator: Option<QuerySeparator>,
    #[serde(default = "yes")]
    chat_template: bool,
    answer: Value,
    #[serde(default)]
    context_tokens: usize,
    haystack: Option<HaystackSource>,
}

fn yes() -> bool {
    true
}

fn unnamed() -> String {
    "unnamed".to_owned()
}

fn own(own: Own) -> Result<PublishedQuestion, String> {
    let Own { task, input_context, input_query, query_separator, chat_template, answer, context_tokens, haystack } =
        own;
    let strings = match answer {
        Value::String(text) => Err(text),
        Value::Array(texts) => Ok(texts),
        other => return Err(format!("answer is {other}; expected a string or a list of strings")),
    };
    let (answer, list) = match strings {
        Err(text) => (text, None),
        Ok(texts) => {
            let text = |value: Value| match value {
                Value::String(text) => Ok(text),
                other => Err(format!("answer has {other}; expected a list of strings")),
            };
            let texts = texts.into_iter().map(text).collect::<Result<Vec<_>, _>>()?;
            (texts.join(", "), Some(texts))
        }
    };
    let record = EvalRecord {
        task,
        input_context,
        input_query,
        query_separator,
        chat_template,
        answer,
        context_tokens,
        haystack,
    };
    let gold = list.unwrap_or_else(|| record.gold().into_iter().map(str::to_owned).collect());
    Ok(PublishedQuestion { suite: "file", record, gold, metric: Metric::All, max_tokens: BENCHMARK_ANSWER_TOKENS })
}

/// Refuses what cannot be asked or scored.
fn checked(given: PublishedQuestion) -> Result<PublishedQuestion, String> {
    let EvalRecord { input_context, input_query, .. } = &given.record;
    let empty = |text: &str| text.trim().is_empty();
    let (context, query) = match given.suite {
        "file" => ("input_context", "input_query"),
        "ruler" => ("input, before its question,", "input"),
        _ => ("context", "input"),
    };
    if empty(input_context) {
        return Err(format!("{context} is empty"));
    }
    if empty(input_query) {
        return Err(format!("{query} is empty"));
    }
    if given.gold.iter().all(|gold| empty(gold)) {
        return Err("its answer is empty".to_owned());
    }
    Ok(given)
}

#[cfg(test)]
mod tests;
