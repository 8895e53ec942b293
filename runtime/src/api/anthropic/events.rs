//! An answer as the events of the Messages API: a message of blocks, one after the other. Knows no job's way.

use asterism_actors::api::{HostProgress, JobStatus, RecoveryStatus, TokenLogprobs};
use bytes::Bytes;
use serde_json::{Value, json};

use super::message::{self, MessageShape};
use crate::api::{
    http::error::Refusal,
    openai::answers::{
        calls::{AnswerPiece, AnswerReader},
        running::outcome,
        stream::StreamFormat,
    },
};

/// A message as it is streamed.
pub struct MessageVoice {
    status: JobStatus,
    asked: MessageShape,
    reader: AnswerReader,
    /// Bytes of the answer that were told.
    told: usize,
    /// Blocks that were begun, and whether the last of them is one of text and open.
    blocks: usize,
    open: Option<BlockKind>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockKind {
    Text,
    Call,
}

impl MessageVoice {
    /// Of a job, with what is told of its answer.
    pub fn new(status: JobStatus, asked: MessageShape) -> Self {
        let reader = AnswerReader::new(asked.shape.tools.as_deref(), (&status.id, 0));
        Self { status, asked, reader, told: 0, blocks: 0, open: None }
    }

    fn begin(&mut self, kind: BlockKind, block: Value, to: &mut Vec<Bytes>) {
        self.end_block(to);
        to.push(event("content_block_start", json!({ "index": self.blocks, "content_block": block })));
        self.blocks += 1;
        self.open = Some(kind);
    }

    fn delta(&self, delta: Value) -> Bytes {
        event("content_block_delta", json!({ "index": self.blocks.saturating_sub(1), "delta": delta }))
    }

    fn end_block(&mut self, to: &mut Vec<Bytes>) {
        if self.open.take().is_some() {
            to.push(event("content_block_stop", json!({ "index": self.blocks - 1 })));
        }
    }

    fn pieces(&mut self, pieces: Vec<AnswerPiece>) -> Vec<Bytes> {
        let mut to = Vec::new();
        for piece in pieces {
            match piece {
                AnswerPiece::Text(text) => {
                    if self.open != Some(BlockKind::Text) {
                        self.begin(BlockKind::Text, json!({ "type": "text", "text": "" }), &mut to);
                    }
                    to.push(self.delta(json!({ "type": "text_delta", "text": text })));
                }
                AnswerPiece::Call { id, name, .. } => {
                    let block = json!({ "type": "tool_use", "id": id, "name": name, "input": {} });
                    self.begin(BlockKind::Call, block, &mut to);
                }
                AnswerPiece::Arguments { json, .. } => {
                    to.push(self.delta(json!({ "type": "input_json_delta", "partial_json": json })));
                }
            }
        }
        to
    }
}

impl StreamFormat for MessageVoice {
    fn opening(&mut self) -> Vec<Bytes> {
        vec![event("message_start", json!({ "message": message::begun(&self.status) })), event("ping", json!({}))]
    }

    fn token(&mut self, _: u32, text: &str, _: Option<&TokenLogprobs>) -> Option<Bytes> {
        if text.is_empty() {
            return None;
        }
        self.told += text.len();
        let pieces = self.reader.push(text);
        joined(self.pieces(pieces))
    }

    fn progress(&mut self, _: &[HostProgress], _: u64) -> Option<Bytes> {
        Some(event("ping", json!({})))
    }

    fn recovery(&mut self, _: &RecoveryStatus) -> Option<Bytes> {
        Some(event("ping", json!({})))
    }

    fn end(&mut self, status: JobStatus) -> Vec<Bytes> {
        let status = match outcome(status) {
            Ok(status) => status,
            Err(refusal) => return self.broken(&refusal),
        };
        // A job that had ended before anybody listened says all of it now, another what it held back.
        let rest = status.text.get(self.told..).unwrap_or_default();
        let mut pieces = if rest.is_empty() { Vec::new() } else { self.reader.push(rest) };
        pieces.extend(self.reader.finish());
        let mut events = self.pieces(pieces);
        self.end_block(&mut events);
        let (reason, sequence) = message::stop_reason(&status, self.reader.has_called(), &self.asked);
        let delta = json!({ "stop_reason": reason, "stop_sequence": sequence });
        events.push(event("message_delta", json!({ "delta": delta, "usage": message::usage(&status) })));
        events.push(event("message_stop", json!({})));
        events
    }

    fn broken(&mut self, refusal: &Refusal) -> Vec<Bytes> {
        vec![event("error", json!(refusal.message_envelope(None)))]
    }
}

fn joined(events: Vec<Bytes>) -> Option<Bytes> {
    (!events.is_empty()).then(|| events.concat().into())
}

fn event(kind: &str, mut body: Value) -> Bytes {
    body["type"] = kind.into();
    Bytes::from(format!("event: {kind}\ndata: {body}\n\n"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use asterism_actors::supervisor::ModelFront;
    use asterism_models::{Checkpoint, TemplateSource};

    use super::*;
    use crate::api::openai::requests::{
        shape::AnswerShape,
        tools::{ToolChoice, Tools},
    };

    fn status(text: &str) -> JobStatus {
        serde_json::from_value(json!({
            "id": format!("job-{}", "a".repeat(32)), "state": "SUCCEEDED", "method": "dense", "model": "m", "context_tokens": 3,
            "query_tokens": 2, "generated_tokens": 2, "text": text, "tokens": [], "finish_reason": "stop", "cached_tokens": 1,
            "timings": {"queue_s": 0.0, "encode_s": 0.0, "query_s": 0.0, "decode_s": 0.0, "total_s": 0.0, "hosts": []},
        }))
        .unwrap()
    }

    fn kinds(events: &[Bytes]) -> Vec<String> {
        let text = events.concat();
        let text = std::str::from_utf8(&text).unwrap();
        text.lines().filter_map(|line| line.strip_prefix("event: ")).map(str::to_owned).collect()
    }

    #[test]
    fn text_and_calls_are_blocks_one_after_the_other() {
        let tools =
            Tools { described: Vec::new(), names: vec!["f".to_owned()], choice: ToolChoice::Auto, parallel: true };
        let model = ModelFront::load(&Checkpoint::embedded().unwrap(), None, TemplateSource::in_process).unwrap();
        let shape = AnswerShape { tools: Some(Arc::new(tools)), ..AnswerShape::default() };
        let shape = MessageShape { shape, stops: Vec::new(), model: Arc::new(model) };
        let text = r#"So: <tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>"#;
        for size in [1, 7, 1000] {
            let mut voice = MessageVoice::new(status(""), shape.clone());
            let mut events = voice.opening();
            let characters: Vec<char> = text.chars().collect();
            for piece in characters.chunks(size) {
                events.extend(voice.token(0, &String::from_iter(piece), None));
            }
            events.extend(voice.end(status(text)));
            let mut kinds = kinds(&events);
            kinds.dedup();
            let expected = [
                "message_start",
                "ping",
                "content_block_start",
                "content_block_delta",
                "content_block_stop",
                "content_block_start",
                "content_block_delta",
                "content_block_stop",
                "message_delta",
                "message_stop",
            ];
            assert_eq!(kinds, expected, "{size}");
            let all = String::from_utf8(events.concat()).unwrap();
            assert!(all.contains(r#""stop_reason":"tool_use""#) && all.contains(r#"{\"a\":1}"#), "{all}");
        }
        let whole = message::whole(&status(text), &shape);
        assert_eq!(whole["content"][1]["input"], json!({"a": 1}));
        assert_eq!(
            (whole["usage"]["input_tokens"].as_u64(), whole["stop_reason"].as_str()),
            (Some(4), Some("tool_use"))
        );
    }
}
