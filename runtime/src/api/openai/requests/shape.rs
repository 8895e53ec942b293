//! How an answer is worded beside what its job says: what a request asked to be told. Words nothing.

use std::sync::Arc;

use super::tools::Tools;

/// What is told of an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AnswerShape {
    /// How many of the likeliest tokens beside each of the answer, where that is told.
    pub logprobs: Option<u32>,
    /// The same of the prompt's tokens.
    pub prompt_logprobs: Option<u32>,
    /// The prompt, where its text or tokens are told.
    pub echo: Option<PromptEcho>,
    /// Tools that the answer may call.
    pub tools: Option<Arc<Tools>>,
}

/// A prompt that is told with the answer.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptEcho {
    /// Its first token, which nothing tells the probability of.
    pub first: u32,
    /// Its text, where it stands before the answer's.
    pub text: Option<String>,
}

impl AnswerShape {
    /// How many of the likeliest tokens the job is to tell, if any.
    pub fn most_logprobs(&self) -> Option<u32> {
        self.logprobs.max(self.prompt_logprobs)
    }
}
