//! Messages of a conversation. Renders nothing.

use serde::{Deserialize, Serialize};

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
}

impl Speaker {
    /// As templates call it.
    pub(super) fn role(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
        }
    }
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatTurn {
    /// Whose.
    pub speaker: Speaker,
    /// What it says.
    pub text: String,
}
