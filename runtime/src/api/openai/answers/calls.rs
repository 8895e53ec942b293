//! Calls of tools within an answer, as it comes or as a whole. Words them for no client.

use asterism_models::{CallPiece, CallReader};
use serde_json::Value;

use crate::api::openai::requests::tools::{ToolChoice, Tools};

/// A piece of an answer that may call tools.
#[derive(Clone, Debug, PartialEq)]
pub enum AnswerPiece {
    /// Text.
    Text(String),
    /// A call begins: its number, its id and the tool's name.
    Call {
        /// Number.
        index: usize,
        /// Id.
        id: String,
        /// Name.
        name: String,
    },
    /// More of its arguments.
    Arguments {
        /// Number of the call.
        index: usize,
        /// JSON.
        json: String,
    },
}

impl AnswerPiece {
    /// Its text, where it is one.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }
}

/// Reads an answer for calls.
pub struct AnswerReader {
    kind: ReaderKind,
    /// How many calls are told; what follows them is left out.
    most: usize,
    /// What the ids of calls begin with.
    id: String,
    /// Calls of other answers of the request.
    first: usize,
    calls: usize,
}

enum ReaderKind {
    /// There are no tools.
    Plain,
    /// All of it is the arguments of this one.
    Arguments(String),
    /// Calls are found in it.
    Found(CallReader),
}

/// Letters of a job's id within that of a call: as Mistral's templates want it, that has nine in all.
const JOB_LETTERS: usize = 7;

impl AnswerReader {
    /// For the answer `index` of the job with these digits.
    pub fn new(tools: Option<&Tools>, (digits, index): (&str, usize)) -> Self {
        let kind = match tools {
            None => ReaderKind::Plain,
            Some(Tools { choice: ToolChoice::Named(name), .. }) => ReaderKind::Arguments(name.clone()),
            Some(tools) => ReaderKind::Found(CallReader::new(tools.names.clone())),
        };
        let most = if tools.is_none_or(|tools| tools.parallel) { usize::MAX } else { 1 };
        let digits = digits.rsplit('-').next().unwrap_or_default();
        let id = digits.chars().filter(char::is_ascii_alphanumeric).take(JOB_LETTERS).collect();
        Self { kind, most, id, first: 16 * index, calls: 0 }
    }

    /// More of it.
    pub fn push(&mut self, text: &str) -> Vec<AnswerPiece> {
        let told = match &mut self.kind {
            ReaderKind::Plain if text.is_empty() => return Vec::new(),
            ReaderKind::Plain => return vec![AnswerPiece::Text(text.to_owned())],
            ReaderKind::Arguments(name) => {
                let name = name.clone();
                let begins = (self.calls == 0).then(|| self.begin(name));
                let more = (!text.is_empty()).then(|| AnswerPiece::Arguments { index: 0, json: text.to_owned() });
                return begins.into_iter().chain(more).collect();
            }
            ReaderKind::Found(reader) => reader.push(text),
        };
        self.pieces(told)
    }

    /// Nothing more comes.
    pub fn finish(&mut self) -> Vec<AnswerPiece> {
        match &mut self.kind {
            ReaderKind::Found(reader) => {
                let told = reader.finish();
                self.pieces(told)
            }
            _ => Vec::new(),
        }
    }

    /// Whether something was called.
    pub fn has_called(&self) -> bool {
        self.calls > 0
    }

    fn pieces(&mut self, told: Vec<CallPiece>) -> Vec<AnswerPiece> {
        let mut pieces = Vec::new();
        for one in told {
            if self.calls == self.most {
                break;
            }
            match one {
                CallPiece::Text(text) => pieces.push(AnswerPiece::Text(text)),
                CallPiece::Call { name, arguments: json } => {
                    pieces.push(self.begin(name));
                    pieces.push(AnswerPiece::Arguments { index: self.calls - 1, json });
                }
            }
        }
        pieces
    }

    fn begin(&mut self, name: String) -> AnswerPiece {
        let index = self.calls;
        self.calls += 1;
        AnswerPiece::Call { index, id: format!("{}{:02x}", self.id, (self.first + index) % 256), name }
    }
}

/// A call of a whole answer.
#[derive(Clone, Debug, PartialEq)]
pub struct AnswerCall {
    /// Id.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// Arguments, as JSON.
    pub arguments: String,
}

impl AnswerCall {
    /// Its arguments as a value; what is none is an empty object.
    pub fn value(&self) -> Value {
        serde_json::from_str(&self.arguments).unwrap_or_else(|_| Value::Object(Default::default()))
    }
}

/// A whole answer: its text, and what it calls.
pub fn whole(tools: Option<&Tools>, of: (&str, usize), text: &str) -> (String, Vec<AnswerCall>) {
    let mut reader = AnswerReader::new(tools, of);
    let (mut said, mut calls) = (String::new(), Vec::new());
    for piece in reader.push(text).into_iter().chain(reader.finish()) {
        match piece {
            AnswerPiece::Text(text) => said += &text,
            AnswerPiece::Call { id, name, .. } => calls.push(AnswerCall { id, name, arguments: String::new() }),
            AnswerPiece::Arguments { index, json } => {
                calls.get_mut(index).into_iter().for_each(|call| call.arguments += &json);
            }
        }
    }
    (said, calls)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tools(choice: ToolChoice) -> Tools {
        Tools { described: Vec::new(), names: vec!["f".to_owned()], choice, parallel: true }
    }

    #[test]
    fn an_answer_is_text_or_calls_or_arguments() {
        let of = ("job-0123456789", 1);
        let call = r#"<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>"#;
        assert_eq!(whole(None, of, call), (call.to_owned(), Vec::new()));
        let found = AnswerCall { id: "012345610".to_owned(), name: "f".to_owned(), arguments: r#"{"a":1}"#.to_owned() };
        assert_eq!(whole(Some(&tools(ToolChoice::Auto)), of, call), (String::new(), vec![found.clone()]));
        let named = tools(ToolChoice::Named("f".to_owned()));
        assert_eq!(whole(Some(&named), of, r#"{"a":1}"#), (String::new(), vec![found]));
    }

    #[test]
    fn what_follows_the_only_call_is_left_out() {
        let (of, one) = (("job-0123456789", 0), Tools { parallel: false, ..tools(ToolChoice::Auto) });
        let call = |a: usize| format!(r#"{{"name": "f", "arguments": {{"a": {a}}}}}"#);
        let tagged = |a| format!("<tool_call>{}</tool_call>", call(a));
        for text in [
            format!("So: {}\n{} and so on", tagged(1), tagged(2)),
            format!("So: [TOOL_CALLS][{}, {}]", call(1), call(2)),
            format!("So: {} That is it.", tagged(1)),
        ] {
            let (said, calls) = whole(Some(&one), of, &text);
            assert_eq!((said.as_str(), calls.len(), calls[0].arguments.as_str()), ("So: ", 1, r#"{"a":1}"#), "{text}");
        }
        let (said, calls) = whole(Some(&one), of, "Nothing to call.");
        assert_eq!((said.as_str(), calls.len()), ("Nothing to call.", 0));
    }
}
