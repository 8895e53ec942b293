//! InfiniteBench's files: context, input, answer and options, with its prompts for open models, lengths and metrics.
//!
//! The benchmark's lengths are GPT-4's tokens; those of short answers are as `eval infinitebench` has them. Summaries are compared by
//! ROUGE-L of their sentences, Code.Debug's choice by its letter.

use serde::Deserialize;
use serde_json::Number;

use super::{
    published_question::{BENCHMARK_ANSWER_TOKENS, OneOrMany, PublishedQuestion},
    template::Template,
};
use crate::eval::Metric;

/// A line of a task's file.
#[derive(Deserialize)]
pub(super) struct InfiniteBenchLine {
    context: String,
    #[serde(default)]
    input: String,
    answer: OneOrMany<AnswerText>,
    options: Option<Vec<String>>,
}

/// Some answers are numbers.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum AnswerText {
    Text(String),
    Number(Number),
}

impl AnswerText {
    fn into_string(self) -> String {
        match self {
            Self::Text(text) => text,
            Self::Number(number) => number.to_string(),
        }
    }
}

/// How a task is asked.
struct TaskPrompt {
    name: &'static str,
    prompt: Template,
    tokens: usize,
    metric: Metric,
}

const PROMPTS: &[TaskPrompt] = &[
    TaskPrompt {
        name: "passkey",
        prompt: Template(
            "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. I will quiz you \
             about the important information there.\n\n{context}\n\n{input}\n\nThe pass key is",
        ),
        tokens: 15,
        metric: Metric::Integer,
    },
    TaskPrompt {
        name: "number_string",
        prompt: Template(
            "There is an important info hidden inside a lot of irrelevant text. Find it. I will quiz you about the important \
             information there.\n\n{context}\n\n{input}\n\nThe sequence of digits is",
        ),
        tokens: 20,
        metric: Metric::Integer,
    },
    TaskPrompt {
        name: "kv_retrieval",
        prompt: Template(
            "Extract the value corresponding to the specified key in the JSON object below.\n\n{context}\n\n{input}",
        ),
        tokens: 80,
        metric: Metric::Word,
    },
    TaskPrompt {
        name: "longbook_sum_eng",
        prompt: Template("Summarize the book below.\n\n{context}\n\nSummary:"),
        tokens: 1200,
        metric: Metric::Rouge,
    },
    TaskPrompt {
        name: "longbook_choice_eng",
        prompt: Template(
            "Read the book and answer the question.\n\n{context}\n\nQuestion: {input}\nA. {A}\nB. {B}\nC. {C}\nD. {D}\n\nThe \
             letter of the correct answer is",
        ),
        tokens: 40,
        metric: Metric::Letter,
    },
    TaskPrompt {
        name: "longbook_qa_eng",
        prompt: Template(
            "Read the book and answer the question. Be very concise in your answer.\n\n{context}\n\nQuestion: {input}\nAnswer:",
        ),
        tokens: 40,
        metric: Metric::F1,
    },
    TaskPrompt {
        name: "longbook_qa_chn",
        prompt: Template("阅读以下书籍然后回答问题。\n\n{context}\n\n问题：{input}\n答案："),
        tokens: 40,
        metric: Metric::F1OfCharacters,
    },
    TaskPrompt {
        name: "math_find",
        prompt: Template("{prefix}\n\n{context}\n\n{input}"),
        tokens: 5,
        metric: Metric::Number,
    },
    TaskPrompt {
        name: "math_calc",
        prompt: Template(
            "Let us calculate the intermediate values of an expression.\n\nExpression: 1 + 3 + 4\nValues: [1, 4, 8]\n\n\
             Expression: 8 - 3 + 2 - 4\nValues: [8, 5, 7, 3]\n\nExpression: {context}\nValues:",
        ),
        tokens: 30_000,
        metric: Metric::Numbers,
    },
    TaskPrompt {
        name: "code_run",
        prompt: Template(
            "There is a function called {func} in the following Python code.\n\n{context}\n\nPlease compute the exact value of \
             {call}. The value of {call} is",
        ),
        tokens: 10,
        metric: Metric::LastInteger,
    },
    TaskPrompt {
        name: "code_debug",
        prompt: Template(
            "Following is a Python code where exactly one of the functions/methods has a deliberate error that makes it \
             crash.\n\n{context}\n\nOptions:\nA. {A}\nB. {B}\nC. {C}\nD. {D}\n\nThe correct option is:",
        ),
        tokens: 10,
        metric: Metric::Letter,
    },
    TaskPrompt {
        name: "longdialogue_qa_eng",
        prompt: Template(
            "Below is a dialogue script where one random occurrence of a character name is replaced with \"$$MASK$$\", and you \
             should try to guess who that character is.\n\n{context}\n\nThe name that has been replaced with $$MASK$$ is \
             likely",
        ),
        tokens: 40,
        metric: Metric::Speaker,
    },
];

/// A task that the benchmark does not have.
const OTHER_TASK: TaskPrompt = TaskPrompt {
    name: "",
    prompt: Template("{context}\n\n{input}"),
    tokens: BENCHMARK_ANSWER_TOKENS,
    metric: Metric::Any,
};
/// The same with options.
const OTHER_CHOICE: TaskPrompt = TaskPrompt {
    prompt: Template("{context}\n\n{input}\nA. {A}\nB. {B}\nC. {C}\nD. {D}\n\nThe letter of the correct answer is"),
    metric: Metric::Letter,
    ..OTHER_TASK
};

pub(super) fn question(line: InfiniteBenchLine, task: &str) -> Result<PublishedQuestion, String> {
    let InfiniteBenchLine { context, input, answer, options } = line;
    let options = options.unwrap_or_default();
    let other = if options.is_empty() { &OTHER_TASK } else { &OTHER_CHOICE };
    let asked = PROMPTS.iter().find(|asked| asked.name == task).unwrap_or(other);
    let mut gold: Vec<String> = answer.into_vec().into_iter().map(AnswerText::into_string).collect();
    if asked.metric == Metric::Letter {
        gold = letters(&options, &gold)?;
    }
    let call = input.find("func_").map_or("", |at| &input[at..]);
    let call = call.find(')').map_or(call, |end| &call[..=end]);
    let prefix = sought(&input).map(|sought| format!("What is {sought} in the following list?"));
    let mut fields =
        vec![("input", input.as_str()), ("call", call), ("func", call.split('(').next().unwrap_or_default())];
    fields.push(("prefix", prefix.as_deref().unwrap_or("Find a number in the following list.")));
    fields.extend(["A", "B", "C", "D"].into_iter().zip(options.iter().map(String::as_str)));
    let mut record = asked.prompt.record(task, &context, &fields);
    record.answer = gold.join(", ");
    Ok(PublishedQuestion {
        suite: "infinitebench",
        record,
        gold,
        metric: asked.metric.clone(),
        max_tokens: asked.tokens,
    })
}

/// The letter of the option that is the answer.
fn letters(options: &[String], gold: &[String]) -> Result<Vec<String>, String> {
    if options.len() != 4 {
        return Err(format!("it has {} options; expected 4", options.len()));
    }
    let letters = options.iter().zip('A'..='D').filter(|(option, _)| gold.contains(option));
    let letters: Vec<String> = letters.map(|(_, letter)| letter.to_string()).collect();
    if letters.is_empty() { Err("no answer among its options".to_owned()) } else { Ok(letters) }
}

/// What math_find's input asks for: "the second largest number".
fn sought(input: &str) -> Option<String> {
    let from = &input[input.find("The ")?..];
    Some(from[..from.find(" of")?].to_lowercase())
}
