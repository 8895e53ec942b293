//! The output of a response: messages and calls of functions, one after the other. Sends nothing.

use serde_json::{Value, json};

use crate::api::openai::answers::calls::AnswerPiece;

/// What an answer says and calls, as far as it has come.
#[derive(Debug)]
pub struct ResponseOutput {
    /// What ids end with.
    digits: String,
    items: Vec<OutputItem>,
}

#[derive(Debug)]
enum OutputItem {
    Message(String),
    Call { id: String, name: String, arguments: String },
}

/// What a piece of an answer does to it.
pub enum OutputChange {
    /// An item begins with this text.
    Begun(String),
    /// The last item grows by it.
    Grown(String),
}

impl ResponseOutput {
    /// Of the job with these digits, which said nothing yet.
    pub fn new(digits: &str) -> Self {
        Self { digits: digits.to_owned(), items: Vec::new() }
    }

    /// Whether nothing began yet.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Whether something was called.
    pub fn has_called(&self) -> bool {
        self.items.iter().any(|item| matches!(item, OutputItem::Call { .. }))
    }

    /// Whether the last item is a message.
    pub fn is_at_message(&self) -> bool {
        matches!(self.items.last(), Some(OutputItem::Message(_)))
    }

    /// A message begins.
    pub fn begin_message(&mut self) {
        self.items.push(OutputItem::Message(String::new()));
    }

    /// Whether an item begins with this piece.
    pub fn begins_with(&self, piece: &AnswerPiece) -> bool {
        match piece {
            AnswerPiece::Text(_) => !self.is_at_message(),
            AnswerPiece::Call { .. } => true,
            AnswerPiece::Arguments { .. } => false,
        }
    }

    /// Takes a piece in.
    pub fn push(&mut self, piece: AnswerPiece) -> OutputChange {
        let begins = self.begins_with(&piece);
        let more = match piece {
            AnswerPiece::Call { id, name, .. } => {
                self.items.push(OutputItem::Call { id, name, arguments: String::new() });
                return OutputChange::Begun(String::new());
            }
            AnswerPiece::Text(more) => more,
            AnswerPiece::Arguments { json, .. } => json,
        };
        if begins {
            self.begin_message();
        }
        if let Some(OutputItem::Message(text) | OutputItem::Call { arguments: text, .. }) = self.items.last_mut() {
            *text += &more;
        }
        if begins { OutputChange::Begun(more) } else { OutputChange::Grown(more) }
    }

    /// The last item's number.
    pub fn last(&self) -> usize {
        self.items.len().saturating_sub(1)
    }

    /// Its id.
    pub fn id(&self, at: usize) -> String {
        let kind = if matches!(self.items.get(at), Some(OutputItem::Call { .. })) { "fc" } else { "msg" };
        match at {
            0 => format!("{kind}_{}", self.digits),
            at => format!("{kind}_{}_{at}", self.digits),
        }
    }

    /// The text or the arguments of an item.
    pub fn text(&self, at: usize) -> &str {
        match self.items.get(at) {
            Some(OutputItem::Message(text) | OutputItem::Call { arguments: text, .. }) => text,
            None => "",
        }
    }

    /// An item that nothing was said of.
    pub fn begun(&self, at: usize) -> Value {
        let mut item = self.item(at, "in_progress", &json!([]));
        match self.items.get(at) {
            Some(OutputItem::Call { .. }) => item["arguments"] = "".into(),
            _ => item["content"] = json!([]),
        }
        item
    }

    /// An item; `state` is that of one whose end has not come, or came too early.
    pub fn item(&self, at: usize, state: &str, logprobs: &Value) -> Value {
        let is_whole = |arguments: &str| serde_json::from_str::<Value>(arguments).is_ok();
        let later = at < self.last();
        match self.items.get(at) {
            Some(OutputItem::Call { id, name, arguments }) => json!({
                "type": "function_call",
                "id": self.id(at),
                "call_id": id,
                "name": name,
                "arguments": arguments,
                "status": if later || is_whole(arguments) { "completed" } else { state },
            }),
            item => {
                let text = if let Some(OutputItem::Message(text)) = item { text } else { "" };
                json!({
                    "type": "message",
                    "id": self.id(at),
                    "status": if later { "completed" } else { state },
                    "role": "assistant",
                    "content": [part(text, logprobs)],
                })
            }
        }
    }

    /// All items.
    pub fn items(&self, state: &str, logprobs: &Value) -> Value {
        (0..self.items.len()).map(|at| self.item(at, state, logprobs)).collect()
    }
}

/// A text as a part of a message.
pub fn part(text: &str, logprobs: &Value) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": logprobs })
}
