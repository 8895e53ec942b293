//! Answers as OpenAI's clients read them: plain JSON. Decides nothing.

use asterism_actors::api::{FinishReason, HostProgress, JobStatus, RecoveryStatus};
use serde_json::{Value, json};

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Text,
}

/// What every piece of an answer has.
#[derive(Clone, Debug)]
pub struct Head {
    kind: Kind,
    id: String,
    created: u64,
    model: String,
}

impl Head {
    /// Of the job `id` of `model`.
    pub fn new(kind: Kind, id: &str, (created, model): (u64, &str)) -> Self {
        let digits = id.strip_prefix("job-").unwrap_or(id);
        let prefix = if kind == Kind::Chat { "chatcmpl-" } else { "cmpl-" };
        Self { kind, id: format!("{prefix}{digits}"), created, model: model.to_owned() }
    }

    /// The answer in one piece.
    pub fn whole(&self, status: &JobStatus) -> Value {
        let reason = reason(status.finish_reason);
        let choice = match self.kind {
            Kind::Chat => json!({
                "index": 0,
                "message": { "role": "assistant", "content": status.text, "refusal": null },
                "logprobs": null,
                "finish_reason": reason,
            }),
            Kind::Text => json!({ "index": 0, "text": status.text, "logprobs": null, "finish_reason": reason }),
        };
        let object = if self.kind == Kind::Chat { "chat.completion" } else { "text_completion" };
        self.with(object, json!({ "choices": [choice], "usage": usage(status) }))
    }

    /// What a stream begins with, if anything.
    pub fn first(&self) -> Option<Value> {
        (self.kind == Kind::Chat).then(|| self.choice(json!({ "role": "assistant", "content": "" }), None))
    }

    /// More of the answer.
    pub fn delta(&self, text: &str) -> Value {
        match self.kind {
            Kind::Chat => self.choice(json!({ "content": text }), None),
            Kind::Text => self.choice(json!(text), None),
        }
    }

    /// Why it ends.
    pub fn last(&self, status: &JobStatus) -> Value {
        let nothing = if self.kind == Kind::Chat { json!({}) } else { json!("") };
        self.choice(nothing, Some(reason(status.finish_reason)))
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

    fn choice(&self, said: Value, reason: Option<&str>) -> Value {
        let field = if self.kind == Kind::Chat { "delta" } else { "text" };
        self.chunk(json!({
            "choices": [{ "index": 0, field: said, "logprobs": null, "finish_reason": reason }],
        }))
    }

    fn chunk(&self, body: Value) -> Value {
        self.with(if self.kind == Kind::Chat { "chat.completion.chunk" } else { "text_completion" }, body)
    }

    fn with(&self, object: &str, mut body: Value) -> Value {
        for (name, value) in [
            ("id", json!(self.id)),
            ("object", json!(object)),
            ("created", json!(self.created)),
            ("model", json!(self.model)),
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
