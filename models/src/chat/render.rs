//! What is asked of a chat template, and what comes of it. Renders nothing itself.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::date::TemplateDate;
use super::refusal::TemplateRefusal;
use super::turn::{ChatTurn, Speaker};
use crate::Written;

/// What a rendering depends on beside the conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RenderOptions {
    /// How it ends.
    pub ending: Ending,
    /// Where the question begins: a turn, and the byte of its text.
    pub question: Option<(usize, usize)>,
    /// What `strftime_now` tells.
    pub date: TemplateDate,
    /// Tools that the model may call, as OpenAI's clients describe them.
    #[serde(default)]
    pub tools: Vec<Value>,
    /// Further variables: `chat_template_kwargs` of other servers.
    #[serde(default)]
    pub variables: BTreeMap<String, Value>,
}

/// How a rendering ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// Where the model's answer begins: `add_generation_prompt` of transformers.
    #[default]
    Answer,
    /// Within the last message, with which the model goes on: `continue_final_message` of transformers.
    LastMessage,
    /// Behind the last message.
    Conversation,
}

/// A conversation as its template writes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rendered {
    /// All of it.
    pub written: Written,
    /// The byte where the question begins, if [`RenderOptions::question`] asked for it. What stands before it is the same
    /// whatever the question is, as far as the template looks at none.
    pub question_at: Option<usize>,
    /// The template asked for the date.
    pub dated: bool,
}

/// Renders conversations by one chat template, which others wrote: whoever does not trust it renders in a process of its own.
pub trait Render: Send + Sync {
    /// The conversation as the template writes it.
    ///
    /// # Errors
    /// When the template refuses it, cannot be run or takes more than a template may.
    fn render(&self, turns: &[ChatTurn], options: &RenderOptions) -> Result<Rendered, TemplateRefusal>;
}

impl Ending {
    /// The ending that a request asks for: as it says, or else as its last message is an answer to go on with or none.
    ///
    /// # Errors
    /// When it asks for two of them.
    pub fn of(last: Option<&ChatTurn>, continues: Option<bool>, answers: Option<bool>) -> Result<Self, &'static str> {
        let is_answer = last.is_some_and(|last| last.speaker == Speaker::Assistant);
        match (continues, answers) {
            (Some(true), Some(true)) => {
                Err("continue_final_message and add_generation_prompt do not go together: give one of them")
            }
            (Some(true), _) => Ok(Self::LastMessage),
            (None, None) if is_answer => Ok(Self::LastMessage),
            (_, Some(false)) => Ok(Self::Conversation),
            _ => Ok(Self::Answer),
        }
    }
}

impl RenderOptions {
    /// A conversation that the model answers, on this date.
    pub fn on(date: TemplateDate) -> Self {
        Self { ending: Ending::default(), question: None, date, tools: Vec::new(), variables: BTreeMap::new() }
    }

    /// The same, with the byte of a turn's text where the question begins.
    pub fn with_question(self, turn: usize, byte: usize) -> Self {
        Self { question: Some((turn, byte)), ..self }
    }

    /// The same, with another ending.
    pub fn ending(self, ending: Ending) -> Self {
        Self { ending, ..self }
    }
}

impl Rendered {
    /// `text` with the bytes of the names of special tokens that are text there, in order and apart.
    pub(super) fn new(text: String, literals: Vec<Range<usize>>, question_at: Option<usize>) -> Self {
        Self { written: Written::with_literals(text, literals), question_at, dated: false }
    }
}
