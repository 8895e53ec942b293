//! Answers as the Messages API words them, in one piece. Decides nothing.

use std::sync::Arc;

use asterism_actors::{
    api::{FinishReason, JobStatus},
    supervisor::ModelFront,
};
use serde_json::{Value, json};

use crate::api::openai::{
    answers::calls::{self, AnswerCall},
    requests::shape::AnswerShape,
};

/// An answer's id, of its job's.
pub fn id(status: &JobStatus) -> String {
    format!("msg_{}", status.id.strip_prefix("job-").unwrap_or(&status.id))
}

/// What a request says of how its answer is worded.
#[derive(Clone)]
pub struct MessageShape {
    /// Tools that it may call.
    pub shape: AnswerShape,
    /// Texts that end it.
    pub stops: Vec<String>,
    /// Whose tokens it is made of.
    pub model: Arc<ModelFront>,
}

/// An answer with what it says and calls.
pub fn whole(status: &JobStatus, asked: &MessageShape) -> Value {
    let (text, calls) = calls::whole(asked.shape.tools.as_deref(), (&status.id, 0), &status.text);
    let mut content = Vec::new();
    if calls.is_empty() || !text.trim().is_empty() {
        content.push(json!({ "type": "text", "text": text }));
    }
    let call =
        |call: &AnswerCall| json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": call.value() });
    content.extend(calls.iter().map(call));
    let mut message = begun(status);
    message["content"] = content.into();
    (message["stop_reason"], message["stop_sequence"]) = stop_reason(status, !calls.is_empty(), asked);
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

/// `stop_reason` and `stop_sequence`: why it ended.
pub fn stop_reason(status: &JobStatus, has_called: bool, asked: &MessageShape) -> (Value, Value) {
    let sequence = match status.finish_reason {
        Some(FinishReason::Length) => return ("max_tokens".into(), Value::Null),
        _ => stopped_by(&status.tokens, &asked.stops, |id| asked.model.token_bytes(id)),
    };
    match sequence {
        Some(sequence) => ("stop_sequence".into(), sequence.into()),
        None if has_called => ("tool_use".into(), Value::Null),
        None => ("end_turn".into(), Value::Null),
    }
}

/// Which of these texts the last token of an answer completes: where it does, the answer ended by that.
fn stopped_by<'s>(tokens: &[u32], stops: &'s [String], bytes: impl Fn(u32) -> Vec<u8>) -> Option<&'s str> {
    let longest = stops.iter().map(String::len).max()?;
    let mut end: Vec<u8> = Vec::new();
    let last = bytes(*tokens.last()?).len();
    for id in tokens.iter().rev() {
        end.splice(..0, bytes(*id));
        if end.len() >= longest + last {
            break;
        }
    }
    let ends_in_last = |stop: &&String| {
        let found = end.windows(stop.len().max(1)).rposition(|part| part == stop.as_bytes());
        found.filter(|at| at + stop.len() > end.len() - last)
    };
    stops
        .iter()
        .filter_map(|stop| Some((ends_in_last(&stop)?, stop)))
        .min_by_key(|(at, _)| *at)
        .map(|(_, stop)| stop.as_str())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_that_ended_an_answer_is_found_in_its_last_token() {
        let bytes = |id: u32| [&b"sea"[..], b" E", b"ND. ", b"."][id as usize].to_vec();
        let stops = ["END".to_owned(), ".".to_owned()];
        assert_eq!(stopped_by(&[0, 1, 2], &stops, bytes), Some("END"));
        assert_eq!(stopped_by(&[0, 3], &stops, bytes), Some("."));
        for (tokens, stops) in [(&[0, 1][..], &stops[..]), (&[2, 0], &stops), (&[], &stops), (&[3], &[])] {
            assert_eq!(stopped_by(tokens, stops, bytes), None, "{tokens:?}");
        }
    }
}
