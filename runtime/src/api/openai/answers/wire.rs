//! Answers as OpenAI's clients read them: plain JSON. Decides nothing.

use std::sync::Arc;

use asterism_actors::{
    api::{FinishReason, HostProgress, JobStatus, RecoveryStatus},
    supervisor::ModelFront,
};
use serde_json::{Value, json};

use super::calls::{self, AnswerCall, AnswerPiece, AnswerReader};
use crate::api::openai::requests::{
    logprobs::{self, TextOffset, TokenProbability, token_probabilities},
    shape::{AnswerShape, PromptEcho},
};

/// Tokens of a prompt and of an answer.
type TokensOf<'a> = (Vec<TokenProbability<'a>>, Vec<TokenProbability<'a>>);

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Text,
}

/// What every piece of an answer has.
#[derive(Clone)]
pub struct Head {
    kind: RequestKind,
    id: String,
    created: u64,
    model: Arc<ModelFront>,
    /// Which of a request's answers it is.
    index: usize,
    shape: AnswerShape,
    /// Where the next token begins that is told.
    offset: TextOffset,
}

impl Head {
    /// Of the job `id` of `model`.
    pub fn new(kind: RequestKind, id: &str, created: u64, model: &Arc<ModelFront>) -> Self {
        let digits = id.strip_prefix("job-").unwrap_or(id);
        let prefix = if kind == RequestKind::Chat { "chatcmpl-" } else { "cmpl-" };
        let (id, model) = (format!("{prefix}{digits}"), model.clone());
        Self { kind, id, created, model, index: 0, shape: AnswerShape::default(), offset: TextOffset::default() }
    }

    /// Of another of a request's answers, with what is told of it.
    pub fn of_choice(&self, index: usize, shape: AnswerShape) -> Self {
        Self { index, shape, ..self.clone() }
    }

    /// The answer in one piece.
    pub fn whole(&mut self, status: &JobStatus) -> Value {
        self.together(vec![self.clone().answer(status)], &usage(status))
    }

    /// All answers of a request in one piece.
    pub fn together(&self, choices: Vec<Value>, usage: &Value) -> Value {
        let object = if self.kind == RequestKind::Chat { "chat.completion" } else { "text_completion" };
        let mut prompts = None;
        let choices: Vec<Value> = choices
            .into_iter()
            .map(|mut choice| {
                // A chat has one prompt, whose tokens are told beside its answers.
                if self.kind == RequestKind::Chat {
                    prompts = choice.as_object_mut().and_then(|choice| choice.remove("prompt_logprobs"));
                }
                choice
            })
            .collect();
        let mut body = json!({ "choices": choices, "usage": usage });
        if let Some(prompts) = prompts {
            body["prompt_logprobs"] = prompts;
        }
        self.with(object, body)
    }

    /// One answer, of which there may be several.
    pub fn answer(mut self, status: &JobStatus) -> Value {
        let reason = reason(status.finish_reason);
        let (prompt, answer) = token_probabilities(status);
        let bytes = |id| self.model.token_bytes(id);
        let told = self.shape.prompt_logprobs.map(|most| logprobs::of_prompt(&prompt, most as usize, bytes));
        let mut choice = match self.kind {
            RequestKind::Chat => {
                let (text, calls) = calls::whole(self.shape.tools.as_deref(), (&self.id, self.index), &status.text);
                let reason = if calls.is_empty() || reason != "stop" { reason } else { CALLED };
                json!({
                    "index": self.index,
                    "message": message(text, &calls),
                    "logprobs": self.logprobs(&answer),
                    "finish_reason": reason,
                })
            }
            RequestKind::Text => {
                let (text, logprobs) = (self.echoed(&status.text), self.echoed_logprobs((prompt, answer)));
                json!({ "index": self.index, "text": text, "logprobs": logprobs, "finish_reason": reason })
            }
        };
        if let Some(told) = told {
            choice["prompt_logprobs"] = told;
        }
        choice
    }

    /// The prompt's text before that of the answer, where it is told.
    fn echoed(&self, text: &str) -> String {
        let prompt = self.shape.echo.as_ref().and_then(|echo| echo.text.as_deref());
        format!("{}{text}", prompt.unwrap_or_default())
    }

    /// How likely tokens were, those of an echoed prompt among them.
    fn echoed_logprobs(&mut self, (prompt, answer): TokensOf<'_>) -> Value {
        let Some(most) = self.shape.logprobs else { return Value::Null };
        let bytes = |id| self.model.token_bytes(id);
        match self.shape.echo.as_ref().filter(|echo| echo.text.is_some()) {
            Some(PromptEcho { first, .. }) => {
                let all = [prompt, answer].concat();
                logprobs::of_text(Some(*first), (&all, most), bytes, &mut self.offset)
            }
            None => logprobs::of_text(None, (&answer, most), bytes, &mut self.offset),
        }
    }

    /// What a stream begins with, if anything.
    pub fn first(&self) -> Option<Value> {
        (self.kind == RequestKind::Chat)
            .then(|| self.choice(json!({ "role": "assistant", "content": "" }), Value::Null, None))
    }

    /// The text of the prompt, where a stream tells it first.
    pub fn prompt(&mut self) -> Option<Value> {
        let echo = self.shape.echo.as_ref()?;
        let text = echo.text.clone()?;
        let logprobs = match self.shape.logprobs {
            // Tokens follow one by one.
            Some(most) => {
                logprobs::of_text(Some(echo.first), (&[], most), |id| self.model.token_bytes(id), &mut self.offset)
            }
            None => Value::Null,
        };
        Some(self.choice(json!(text), logprobs, None))
    }

    /// What reads the answer for calls.
    pub fn reader(&self) -> AnswerReader {
        AnswerReader::new(self.shape.tools.as_deref(), (&self.id, self.index))
    }

    /// A call of a tool, or more of its arguments.
    pub fn call(&self, piece: &AnswerPiece) -> Value {
        let call = match piece {
            AnswerPiece::Call { index, id, name } => {
                json!({ "index": index, "id": id, "type": "function", "function": { "name": name, "arguments": "" } })
            }
            AnswerPiece::Arguments { index, json } => json!({ "index": index, "function": { "arguments": json } }),
            AnswerPiece::Text(text) => return self.choice(json!({ "content": text }), Value::Null, None),
        };
        self.choice(json!({ "tool_calls": [call] }), Value::Null, None)
    }

    /// More of the answer, and its tokens where it is known how likely they were.
    pub fn delta(&mut self, text: &str, stated: &[TokenProbability<'_>]) -> Value {
        let logprobs = self.logprobs(stated);
        match self.kind {
            RequestKind::Chat => self.choice(json!({ "content": text }), logprobs, None),
            RequestKind::Text => self.choice(json!(text), logprobs, None),
        }
    }

    /// Whether tokens are told.
    pub fn has_tokens(&self) -> bool {
        self.shape.logprobs.is_some()
    }

    /// Whether tokens of the prompt are told with those of the answer.
    pub fn echoes_prompt(&self) -> bool {
        self.shape.logprobs.is_some() && self.shape.echo.as_ref().is_some_and(|echo| echo.text.is_some())
    }

    fn logprobs(&mut self, stated: &[TokenProbability<'_>]) -> Value {
        let Some(most) = self.shape.logprobs.filter(|_| !stated.is_empty()) else { return Value::Null };
        let bytes = |id| self.model.token_bytes(id);
        match self.kind {
            RequestKind::Chat => logprobs::of_chat((stated, most), bytes),
            RequestKind::Text => logprobs::of_text(None, (stated, most), bytes, &mut self.offset),
        }
    }

    /// Why it ends.
    pub fn last(&self, status: &JobStatus, has_called: bool) -> Value {
        let nothing = if self.kind == RequestKind::Chat { json!({}) } else { json!("") };
        let reason = match reason(status.finish_reason) {
            "stop" if has_called => CALLED,
            reason => reason,
        };
        self.choice(nothing, Value::Null, Some(reason))
    }

    /// Tokens, at the end of a stream that tells them.
    pub fn usage(&self, usage: &Value) -> Value {
        self.chunk(json!({ "choices": [], "usage": usage }))
    }

    /// How far the context is encoded.
    pub fn progress(&self, hosts: &[HostProgress], time_ms: u64) -> Value {
        self.chunk(json!({ "choices": [], "prompt_progress": progress(hosts, time_ms) }))
    }

    /// A host that was lost, or what it did goes on elsewhere.
    pub fn recovery(&self, recovery: &RecoveryStatus) -> Value {
        self.chunk(json!({ "choices": [], "recovery": recovery }))
    }

    fn choice(&self, stated: Value, logprobs: Value, reason: Option<&str>) -> Value {
        let field = if self.kind == RequestKind::Chat { "delta" } else { "text" };
        self.chunk(json!({
            "choices": [{ "index": self.index, field: stated, "logprobs": logprobs, "finish_reason": reason }],
        }))
    }

    fn chunk(&self, body: Value) -> Value {
        self.with(if self.kind == RequestKind::Chat { "chat.completion.chunk" } else { "text_completion" }, body)
    }

    fn with(&self, object: &str, mut body: Value) -> Value {
        for (name, value) in [
            ("id", json!(self.id)),
            ("object", json!(object)),
            ("created", json!(self.created)),
            ("model", json!(self.model.name)),
        ] {
            body[name] = value;
        }
        body
    }
}

/// `prompt_progress`: tokens in all, and host by host.
pub fn progress(hosts: &[HostProgress], time_ms: u64) -> Value {
    let total: usize = hosts.iter().map(|host| host.total_tokens).sum();
    let processed: usize = hosts.iter().map(|host| host.done_tokens).sum();
    json!({ "total": total, "processed": processed, "time_ms": time_ms, "hosts": hosts })
}

/// Why an answer ends that calls tools.
const CALLED: &str = "tool_calls";

/// An assistant's message.
fn message(text: String, calls: &[AnswerCall]) -> Value {
    if calls.is_empty() {
        return json!({ "role": "assistant", "content": text, "refusal": null });
    }
    let content = if text.trim().is_empty() { Value::Null } else { Value::String(text) };
    let call = |AnswerCall { id, name, arguments }: &AnswerCall| json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } });
    let calls: Vec<Value> = calls.iter().map(call).collect();
    json!({ "role": "assistant", "content": content, "refusal": null, "tool_calls": calls })
}

fn reason(reason: Option<FinishReason>) -> &'static str {
    match reason {
        Some(FinishReason::Length) => "length",
        Some(FinishReason::Stop) | None => "stop",
    }
}

/// Tokens of context and query, those of them that hosts had already, and those of the answer.
pub fn usage(status: &JobStatus) -> Value {
    let (prompt, generated) = (status.context_tokens + status.query_tokens, status.generated_tokens);
    tokens(prompt, generated, status.cached_tokens)
}

/// So many tokens of a prompt, of an answer, and of the prompt those that hosts had.
pub fn tokens(prompt: usize, generated: usize, cached: usize) -> Value {
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": { "cached_tokens": cached },
    })
}
