//! Messages of a conversation, and the tools that it may name. Renders nothing.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Whose message it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Speaker {
    /// Whoever set the model up.
    System,
    /// Who asks.
    User,
    /// The model.
    Assistant,
    /// A tool that the model called.
    Tool,
}

impl Speaker {
    /// As templates call it.
    pub(super) fn role(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }

    /// Whether the model answers it: a question, or what a tool came to.
    pub fn is_answered(self) -> bool {
        matches!(self, Self::User | Self::Tool)
    }
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatTurn {
    /// Whose.
    pub speaker: Speaker,
    /// What it says.
    pub text: String,
    /// What it has beside that, if anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tooling: Option<Box<Tooling>>,
}

/// What a message has to do with tools.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tooling {
    /// The message says nothing, which is other than an empty text.
    pub is_mute: bool,
    /// Tools that the model calls.
    pub calls: Vec<ToolCall>,
    /// Of a tool's message, the call that it answers.
    pub call_id: Option<String>,
    /// And the tool's name.
    pub name: Option<String>,
}

/// A call of a tool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    /// Its id.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// Its arguments: an object, or whatever text was said in place of one.
    pub arguments: Value,
}

impl ChatTurn {
    /// A message that says this.
    pub fn new(speaker: Speaker, text: impl Into<String>) -> Self {
        Self { speaker, text: text.into(), tooling: None }
    }

    /// Bytes of its texts, about.
    pub fn bytes(&self) -> usize {
        let call = |call: &ToolCall| call.name.len() + call.arguments.to_string().len();
        let calls = |tooling: &Tooling| tooling.calls.iter().map(call).sum::<usize>();
        self.text.len() + self.tooling.as_deref().map_or(0, calls)
    }
}
