//! How a chat or a completion is worded as a stream of chunks. Knows no job's way.

use asterism_actors::api::{HostProgress, JobStatus, RecoveryStatus, TokenLogprobs};
use bytes::Bytes;
use serde::Serialize;

use super::{running::outcome, stream, wire::Head};
use crate::api::http::error::Refusal;

const DONE: Bytes = Bytes::from_static(b"data: [DONE]\n\n");

/// A chat or a completion as it is streamed.
pub struct ChatVoice {
    head: Head,
    /// Whether tokens are told at the end.
    usage: bool,
    has_spoken: bool,
}

impl ChatVoice {
    /// Whose chunks begin with `head`.
    pub fn new(head: Head, usage: bool) -> Self {
        Self { head, usage, has_spoken: false }
    }
}

impl stream::StreamFormat for ChatVoice {
    fn opening(&mut self) -> Vec<Bytes> {
        self.head.first().iter().map(data).collect()
    }

    fn token(&mut self, id: u32, text: &str, logprobs: Option<&TokenLogprobs>) -> Option<Bytes> {
        self.has_spoken = true;
        let stated = logprobs.map(|logprobs| [(id, logprobs)]);
        Some(data(&self.head.delta(text, stated.as_ref().map(|stated| &stated[..]))))
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
        // A job that had ended before anybody listened says all of it now.
        let unsaid = (!self.has_spoken && !status.text.is_empty()).then(|| self.head.all(&status));
        let usage = self.usage.then(|| self.head.usage(&status));
        let stated = unsaid.into_iter().chain([self.head.last(&status)]).chain(usage);
        stated.map(|stated| data(&stated)).chain([DONE]).collect()
    }

    fn broken(&mut self, refusal: &Refusal) -> Vec<Bytes> {
        vec![data(&refusal.envelope(None)), DONE]
    }
}

fn data(stated: &impl Serialize) -> Bytes {
    let json = serde_json::to_string(stated).expect("plain values are JSON");
    Bytes::from(format!("data: {json}\n\n"))
}
