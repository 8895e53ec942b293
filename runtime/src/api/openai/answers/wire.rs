//! Answers as OpenAI's clients read them: plain JSON. Decides nothing.

use std::sync::Arc;

use asterism_actors::{
    api::{FinishReason, HostProgress, JobStatus, RecoveryStatus},
    supervisor::ModelFront,
};
use serde_json::{Value, json};

use crate::api::openai::requests::logprobs::{self, TokenProbability, token_probabilities};

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
    /// Characters of tokens whose probabilities were told.
    reported: usize,
}

impl Head {
    /// Of the job `id` of `model`.
    pub fn new(kind: RequestKind, id: &str, created: u64, model: &Arc<ModelFront>) -> Self {
        let digits = id.strip_prefix("job-").unwrap_or(id);
        let prefix = if kind == RequestKind::Chat { "chatcmpl-" } else { "cmpl-" };
        Self { kind, id: format!("{prefix}{digits}"), created, model: model.clone(), reported: 0 }
    }

    /// The answer in one piece.
    pub fn whole(&mut self, status: &JobStatus) -> Value {
        let (reason, logprobs) = (reason(status.finish_reason), self.logprobs(token_probabilities(status).as_deref()));
        let choice = match self.kind {
            RequestKind::Chat => json!({
                "index": 0,
                "message": { "role": "assistant", "content": status.text, "refusal": null },
                "logprobs": logprobs,
                "finish_reason": reason,
            }),
            RequestKind::Text => {
                json!({ "index": 0, "text": status.text, "logprobs": logprobs, "finish_reason": reason })
            }
        };
        let object = if self.kind == RequestKind::Chat { "chat.completion" } else { "text_completion" };
        self.with(object, json!({ "choices": [choice], "usage": usage(status) }))
    }

    /// What a stream begins with, if anything.
    pub fn first(&self) -> Option<Value> {
        (self.kind == RequestKind::Chat)
            .then(|| self.choice(json!({ "role": "assistant", "content": "" }), Value::Null, None))
    }

    /// More of the answer, and its tokens where it is known how likely they were.
    pub fn delta(&mut self, text: &str, stated: Option<&[TokenProbability<'_>]>) -> Value {
        let logprobs = self.logprobs(stated);
        match self.kind {
            RequestKind::Chat => self.choice(json!({ "content": text }), logprobs, None),
            RequestKind::Text => self.choice(json!(text), logprobs, None),
        }
    }

    /// All of an answer that nobody has heard yet.
    pub fn all(&mut self, status: &JobStatus) -> Value {
        self.delta(&status.text, token_probabilities(status).as_deref())
    }

    fn logprobs(&mut self, stated: Option<&[TokenProbability<'_>]>) -> Value {
        let Some(stated) = stated else { return Value::Null };
        let bytes = |id| self.model.token_bytes(id);
        match self.kind {
            RequestKind::Chat => logprobs::of_chat(stated, bytes),
            RequestKind::Text => logprobs::of_text(stated, bytes, &mut self.reported),
        }
    }

    /// Why it ends.
    pub fn last(&self, status: &JobStatus) -> Value {
        let nothing = if self.kind == RequestKind::Chat { json!({}) } else { json!("") };
        self.choice(nothing, Value::Null, Some(reason(status.finish_reason)))
    }

    /// Tokens, at the end of a stream that tells them.
    pub fn usage(&self, status: &JobStatus) -> Value {
        self.chunk(json!({ "choices": [], "usage": usage(status) }))
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
            "choices": [{ "index": 0, field: stated, "logprobs": logprobs, "finish_reason": reason }],
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

fn reason(reason: Option<FinishReason>) -> &'static str {
    match reason {
        Some(FinishReason::Length) => "length",
        Some(FinishReason::Stop) | None => "stop",
    }
}

/// Tokens of context and query, those of them that hosts had already, and those of the answer.
fn usage(status: &JobStatus) -> Value {
    let (prompt, generated) = (status.context_tokens + status.query_tokens, status.generated_tokens);
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": { "cached_tokens": status.cached_tokens },
    })
}
