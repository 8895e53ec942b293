//! How a chat or a completion is worded as a stream of chunks. Knows no job's way.

use std::sync::{Arc, Mutex, PoisonError};

use asterism_actors::api::{HostProgress, JobStatus, RecoveryStatus, TokenLogprobs};
use bytes::Bytes;
use serde::Serialize;
use serde_json::Value;

use super::{
    calls::{AnswerPiece, AnswerReader},
    running::outcome,
    stream,
    wire::{self, Head},
};
use crate::api::{
    http::error::Refusal,
    openai::requests::logprobs::{TokenProbability, token_probabilities},
};

/// What ends a stream.
pub const DONE: Bytes = Bytes::from_static(b"data: [DONE]\n\n");

/// A chat or a completion as it is streamed.
pub struct ChatVoice {
    head: Head,
    /// What is told of tokens, and to whom.
    usage: StreamUsage,
    /// Bytes of the answer that were told.
    told: usize,
    /// Tokens of the prompt that are still to come before those of the answer.
    prompt_left: usize,
    generated: usize,
    /// What finds calls of tools in it.
    reader: AnswerReader,
}

/// Tokens that a stream tells.
pub struct StreamUsage {
    /// At the end.
    pub at_end: bool,
    /// With each piece: those of the prompt.
    pub so_far: Option<usize>,
    /// Where several answers are one stream's: what they take together, for whoever ends it; and whether this one's prompt counts.
    pub shared: Option<(Arc<Mutex<TokensTaken>>, bool)>,
}

/// What answers take together.
#[derive(Clone, Copy, Debug, Default)]
pub struct TokensTaken {
    /// Tokens of prompts.
    pub prompt: usize,
    /// Tokens of answers.
    pub generated: usize,
    /// Tokens of prompts that hosts had.
    pub cached: usize,
}

impl TokensTaken {
    /// Adds what a job took; its prompt, where it is the first that is asked it.
    pub fn add(&mut self, status: &JobStatus, with_prompt: bool) {
        if with_prompt {
            self.prompt += status.context_tokens + status.query_tokens;
            self.cached += status.cached_tokens;
        }
        self.generated += status.generated_tokens;
    }

    /// As clients read it.
    pub fn usage(&self) -> Value {
        wire::tokens(self.prompt, self.generated, self.cached)
    }
}

impl ChatVoice {
    /// Whose chunks begin with `head`, behind so many tokens of the prompt.
    pub fn new(head: Head, usage: StreamUsage, scored: usize) -> Self {
        let reader = head.reader();
        Self { head, usage, told: 0, prompt_left: scored, generated: 0, reader }
    }

    /// What pieces of the answer say, and the tokens that they came of where it is told how likely those were.
    fn pieces(&mut self, pieces: Vec<AnswerPiece>, stated: &[TokenProbability<'_>]) -> Option<Bytes> {
        let (mut all, mut stated) = (Vec::new(), stated);
        if self.head.has_tokens() && !stated.is_empty() {
            let text: String = pieces.iter().filter_map(AnswerPiece::text).collect();
            let delta = self.head.delta(&text, std::mem::take(&mut stated));
            all.extend_from_slice(&data(&self.counted(delta)));
        }
        let told = self.head.has_tokens() && !all.is_empty();
        for piece in pieces.iter().filter(|piece| !(told && piece.text().is_some())) {
            let delta = match piece {
                AnswerPiece::Text(text) => self.head.delta(text, &[]),
                call => self.head.call(call),
            };
            all.extend_from_slice(&data(&self.counted(delta)));
        }
        (!all.is_empty()).then(|| Bytes::from(all))
    }

    fn counted(&self, mut stated: Value) -> Value {
        if let Some(prompt) = self.usage.so_far {
            stated["usage"] = wire::tokens(prompt, self.generated, 0);
        }
        stated
    }
}

impl stream::StreamFormat for ChatVoice {
    fn opening(&mut self) -> Vec<Bytes> {
        let stated: Vec<Value> = self.head.first().into_iter().chain(self.head.prompt()).collect();
        stated.into_iter().map(|stated| data(&self.counted(stated))).collect()
    }

    fn token(&mut self, id: u32, text: &str, logprobs: Option<&TokenLogprobs>) -> Option<Bytes> {
        let stated: Vec<_> = logprobs.map(|logprobs| (id, logprobs)).into_iter().collect();
        if self.prompt_left > 0 {
            self.prompt_left -= 1;
            return self.head.echoes_prompt().then(|| data(&self.head.delta("", &stated)));
        }
        self.generated += 1;
        self.told += text.len();
        let pieces = if text.is_empty() { Vec::new() } else { self.reader.push(text) };
        self.pieces(pieces, &stated)
    }

    fn progress(&mut self, hosts: &[HostProgress], time_ms: u64) -> Option<Bytes> {
        Some(data(&self.head.progress(hosts, time_ms)))
    }

    fn recovery(&mut self, recovery: &RecoveryStatus) -> Option<Bytes> {
        Some(data(&self.head.recovery(recovery)))
    }

    fn end(&mut self, status: JobStatus) -> Vec<Bytes> {
        let status = match outcome(status) {
            Ok(status) => status,
            Err(refusal) => return self.broken(&refusal),
        };
        // A job that had ended before anybody listened says all of it now, another what it held back.
        let (_, probabilities) = token_probabilities(&status);
        let unheard = if self.told == 0 && self.generated == 0 { &probabilities[..] } else { &[] };
        let rest = status.text.get(self.told..).unwrap_or_default();
        let mut pieces = if rest.is_empty() { Vec::new() } else { self.reader.push(rest) };
        pieces.extend(self.reader.finish());
        self.generated = status.generated_tokens;
        let mut stated: Vec<Bytes> = self.pieces(pieces, unheard).into_iter().collect();
        let last = self.head.last(&status, self.reader.has_called());
        stated.push(data(&self.counted(last)));
        match &self.usage.shared {
            Some((taken, with_prompt)) => {
                taken.lock().unwrap_or_else(PoisonError::into_inner).add(&status, *with_prompt)
            }
            None => {
                stated.extend(self.usage.at_end.then(|| data(&self.head.usage(&wire::usage(&status)))));
                stated.push(DONE);
            }
        }
        stated
    }

    fn broken(&mut self, refusal: &Refusal) -> Vec<Bytes> {
        let ends = self.usage.shared.is_none().then_some(DONE);
        [data(&refusal.envelope(None))].into_iter().chain(ends).collect()
    }
}

/// A piece of a stream.
pub fn data(stated: &impl Serialize) -> Bytes {
    let json = serde_json::to_string(stated).expect("plain values are JSON");
    Bytes::from(format!("data: {json}\n\n"))
}
