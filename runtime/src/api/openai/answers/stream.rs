//! An answer as server-sent events, each token as it comes. Waits for nobody who has gone; how it is worded is a voice's business.

use std::{collections::VecDeque, convert::Infallible, time::Duration};

use actix_web::{
    HttpResponse,
    http::{StatusCode, header},
};
use asterism_actors::{
    api::{HostProgress, JobEvent, JobStatus, RecoveryStatus, TokenLogprobs},
    supervisor::Listener,
};
use bytes::Bytes;
use futures_util::{Stream, stream};
use tokio::time::{Instant, sleep};

use super::{connection::ClientConnection, running::RunningJob};
use crate::api::{
    http::error::Refusal,
    openai::{refusal, requests::ask::Streamed},
};

/// After so much silence a comment says that the stream lives.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
const COMMENT: Bytes = Bytes::from_static(b": keep-alive\n\n");

/// The words of a stream: what a client is sent for what a job says.
pub trait StreamFormat {
    /// What comes first.
    fn opening(&mut self) -> Vec<Bytes>;
    /// More of the answer: a token, the text that it completes if any, and how likely it was where that is known.
    fn token(&mut self, id: u32, text: &str, logprobs: Option<&TokenLogprobs>) -> Option<Bytes>;
    /// How far the context is encoded.
    fn progress(&mut self, hosts: &[HostProgress], time_ms: u64) -> Option<Bytes>;
    /// A host that was lost, or what it did goes on elsewhere.
    fn recovery(&mut self, recovery: &RecoveryStatus) -> Option<Bytes>;
    /// The end of a job, whichever it is.
    fn end(&mut self, status: JobStatus) -> Vec<Bytes>;
    /// An end that is not the job's.
    fn broken(&mut self, refusal: &Refusal) -> Vec<Bytes>;
}

/// An answer on its way.
struct AnswerStream {
    running: RunningJob,
    listener: Listener,
    client: ClientConnection,
    voice: Box<dyn StreamFormat>,
    says: Streamed,
    began: Instant,
    ready: VecDeque<Bytes>,
    has_ended: bool,
    /// The client has closed its sending half, and was sent something since.
    is_half_closed: bool,
}

/// Streams what a job says to its client.
pub fn answer(
    job: (RunningJob, Listener),
    client: ClientConnection,
    voice: (Box<dyn StreamFormat>, Streamed),
) -> HttpResponse {
    events(pieces(job, client, voice))
}

/// The pieces of what a job says to its client.
pub fn pieces(
    (running, listener): (RunningJob, Listener),
    client: ClientConnection,
    (mut voice, says): (Box<dyn StreamFormat>, Streamed),
) -> impl Stream<Item = StreamPiece> {
    let (ready, began) = (voice.opening().into(), Instant::now());
    let reported =
        AnswerStream { running, listener, client, voice, says, began, ready, has_ended: false, is_half_closed: false };
    stream::unfold(reported, next)
}

/// Pieces as server-sent events.
pub fn events(pieces: impl Stream<Item = StreamPiece> + 'static) -> HttpResponse {
    HttpResponse::Ok()
        .content_type("text/event-stream")
        .insert_header((header::CACHE_CONTROL, "no-cache"))
        // A proxy that gathers what it passes on would hold tokens up.
        .insert_header(("x-accel-buffering", "no"))
        .streaming(pieces)
}

/// A piece of a stream.
pub type StreamPiece = Result<Bytes, Infallible>;

async fn next(mut reported: AnswerStream) -> Option<(StreamPiece, AnswerStream)> {
    loop {
        if let Some(piece) = reported.ready.pop_front() {
            return Some((Ok(piece), reported));
        }
        if reported.has_ended {
            return None;
        }
        tokio::select! {
            event = reported.listener.next() => reported.on_job_event(event),
            () = reported.client.half_closed(), if !reported.is_half_closed => {
                reported.is_half_closed = true;
                return Some((Ok(COMMENT), reported));
            }
            () = reported.client.closed(), if reported.is_half_closed => return None,
            () = sleep(KEEP_ALIVE) => return Some((Ok(COMMENT), reported)),
        }
    }
}

impl AnswerStream {
    fn on_job_event(&mut self, event: Option<JobEvent>) {
        let stated = match event {
            Some(JobEvent::Token { id, text, logprobs }) => self.voice.token(id, &text, logprobs.as_deref()),
            Some(JobEvent::Progress { hosts }) if self.says.progress => {
                self.voice.progress(&hosts, self.began.elapsed().as_millis() as u64)
            }
            Some(JobEvent::Recovery { recovery }) if self.says.progress => self.voice.recovery(&recovery),
            Some(JobEvent::Finished { status }) => {
                // The head of a stream is sent before its job has ended.
                self.running.ended(&status, StatusCode::OK);
                self.has_ended = true;
                self.ready.extend(self.voice.end(*status));
                None
            }
            None => {
                self.has_ended = true;
                self.ready.extend(self.voice.broken(&refusal::stopping()));
                None
            }
            Some(_) => None,
        };
        self.ready.extend(stated);
    }
}
