//! Why a conversation is not rendered, in words for whoever asked. Judges no template.

use serde::{Deserialize, Serialize};

use crate::ModelError;

/// Why a conversation is not rendered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TemplateRefusal {
    /// The template cannot be run, or what it writes is no such conversation.
    Unfit(String),
    /// The template refuses the conversation, in its own words.
    Raised(String),
    /// The template takes more instructions, bytes, memory or time than a template may.
    Limit(String),
}

impl TemplateRefusal {
    pub(super) fn cause(&self) -> String {
        match self {
            Self::Unfit(cause) | Self::Limit(cause) => cause.clone(),
            Self::Raised(words) => format!("it refuses the conversation: {words}"),
        }
    }
}

impl From<TemplateRefusal> for ModelError {
    fn from(refusal: TemplateRefusal) -> Self {
        let cause = refusal.cause();
        match refusal {
            TemplateRefusal::Unfit(_) | TemplateRefusal::Raised(_) => Self::Template { cause },
            TemplateRefusal::Limit(_) => Self::TemplateLimit { cause },
        }
    }
}
