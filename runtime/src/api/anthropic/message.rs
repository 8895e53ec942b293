//! Answers as the Messages API words them, in one piece. Decides nothing.

use asterism_actors::api::{FinishReason, JobStatus};
use serde_json::{Value, json};

use crate::api::openai::{
    answers::calls::{self, AnswerCall},
    requests::shape::AnswerShape,
};

/// An answer's id, of its job's.
pub fn id(status: &JobStatus) -> String {
    format!("msg_{}", status.id.strip_prefix("job-").unwrap_or(&status.id))
}

/// An answer with what it says and calls.
pub fn whole(status: &JobStatus, shape: &AnswerShape) -> Value {
    let (text, calls) = calls::whole(shape.tools.as_deref(), (&status.id, 0), &status.text);
    let mut content = Vec::new();
    if calls.is_empty() || !text.trim().is_empty() {
        content.push(json!({ "type": "text", "text": text }));
    }
    let call =
        |call: &AnswerCall| json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": call.value() });
    content.extend(calls.iter().map(call));
    let mut message = begun(status);
    message["content"] = content.into();
    message["stop_reason"] = stop_reason(status, !calls.is_empty()).into();
    message["usage"] = usage(status);
    message
}

/// An answer that says nothing yet.
pub fn begun(status: &JobStatus) -> Value {
    let mut usage = usage(status);
    usage["output_tokens"] = 0.into();
    json!({
        "id": id(status),
        "type": "message",
        "role": "assistant",
        "model": status.model,
        "content": [],
        "stop_reason": null,
        "stop_sequence": null,
        "usage": usage,
    })
}

/// Why it ended. A stop sequence and the end of the model's turn are told as one.
pub fn stop_reason(status: &JobStatus, has_called: bool) -> &'static str {
    match status.finish_reason {
        Some(FinishReason::Length) => "max_tokens",
        _ if has_called => "tool_use",
        _ => "end_turn",
    }
}

/// Tokens: those that hosts had already stand apart.
pub fn usage(status: &JobStatus) -> Value {
    let prompt = status.context_tokens + status.query_tokens;
    json!({
        "input_tokens": prompt.saturating_sub(status.cached_tokens),
        "cache_read_input_tokens": status.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": status.generated_tokens,
    })
}
