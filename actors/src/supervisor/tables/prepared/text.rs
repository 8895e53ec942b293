//! What a session keeps of its text, so that what comes behind it has the ids of the whole. Tokenises nothing.

use asterism_models::Passage;
use serde::{Deserialize, Serialize};

/// The end of a session's text, from a border on that nothing behind it moves, and what was asked about it since. The document
/// itself is not kept: its ids are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionText {
    /// The text from the border to where the document ends.
    pub rest: Passage,
    /// Tokens before the border. What the session holds more is found again in what `rest` and all behind it come to.
    pub certain: usize,
    /// How what comes behind it is written.
    pub continuation: Continuation,
    /// Questions with their answers, oldest first.
    pub turns: Vec<KeptTurn>,
    /// What was appended behind the last answer.
    pub opened: String,
}

/// How the text of a session goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Continuation {
    /// The document begins a message, and all is rendered by the chat template.
    Rendered,
    /// Behind the document, as a message is: it names no special token.
    Message,
    /// Behind the document, as raw text.
    Raw,
}

/// A question about a session, and its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptTurn {
    /// With what separates it.
    pub question: String,
    /// Without the token that ends it.
    pub answer: String,
}

/// A question that a session has answered, to be appended.
#[derive(Clone, Debug, Default)]
pub struct Answered {
    /// Its tokens, and those of the answer.
    pub ids: Vec<u32>,
    /// The texts of both, where the question was asked as one.
    pub turn: Option<KeptTurn>,
}

impl SessionText {
    /// Bytes that it takes.
    pub fn bytes(&self) -> u64 {
        let turns: usize = self.turns.iter().map(|turn| turn.question.len() + turn.answer.len()).sum();
        (self.rest.written().text().len() + turns + self.opened.len()) as u64
    }
}
