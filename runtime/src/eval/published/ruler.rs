//! RULER's files as its prepare.py writes them: the whole prompt in one text, which is cut where its question begins.

use serde::Deserialize;

use super::{published_question::PublishedQuestion, template::parted};
use crate::eval::{EvalRecord, Metric};

/// A line of `TASK/validation.jsonl`. Its length is that of RULER's tokenizer and is not looked at.
#[derive(Deserialize)]
pub(super) struct RulerLine {
    input: String,
    outputs: Vec<String>,
    /// Since 2025 apart from the input.
    #[serde(default)]
    answer_prefix: String,
}

/// How questions begin, how they are scored, most tokens of an answer. vt's tokens are doubled, as in `eval ruler`.
const RULER_QUESTIONS: &[(&str, Metric, usize)] = &[
    ("\nWhat is the special magic ", Metric::All, 128),
    ("\nWhat are all the special magic ", Metric::All, 128),
    ("\nQuestion: Find all variables ", Metric::All, 60),
    ("\nQuestion: What are the 10 most common ", Metric::All, 120),
    ("\nQuestion: Do not provide any explanation. ", Metric::All, 50),
    ("\nAnswer the question based on the given documents.", Metric::Any, 32),
];
/// Of tasks that RULER does not have: the last of these, the first that there is.
const OTHERS: &[&str] = &["\nQuestion:", "\n\n", "\n"];
const OTHER_TOKENS: usize = 128;

pub(super) fn question(line: RulerLine, task: &str) -> Result<PublishedQuestion, String> {
    let RulerLine { input, outputs, answer_prefix } = line;
    let known =
        RULER_QUESTIONS.iter().filter_map(|(begins, metric, tokens)| Some((input.rfind(begins)?, metric, *tokens)));
    let (at, metric, max_tokens) = match known.max_by_key(|(at, ..)| *at) {
        Some((at, metric, tokens)) => (at, metric.clone(), tokens),
        None => {
            let text = input.trim_end();
            let at = OTHERS.iter().find_map(|begins| text.rfind(begins));
            (at.ok_or("input is one line, of which no end can be told for the question")?, Metric::All, OTHER_TOKENS)
        }
    };
    // The white space between the two belongs to neither.
    let context = input[..at].trim_end();
    let (separator, query) = parted(&input[context.len()..]);
    let record = EvalRecord {
        task: task.to_owned(),
        input_context: context.to_owned(),
        input_query: format!("{query}{answer_prefix}"),
        query_separator: Some(separator),
        chat_template: true,
        answer: outputs.join(", "),
        context_tokens: 0,
        haystack: None,
    };
    Ok(PublishedQuestion { suite: "ruler", record, gold: outputs, metric, max_tokens })
}
