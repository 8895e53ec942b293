//! An answer as server-sent events, each token as it comes. Waits for nobody who has gone.

use std::{collections::VecDeque, convert::Infallible, time::Duration};

use actix_web::{HttpResponse, http::header};
use asterism_actors::{
    api::{JobEvent, JobStatus},
    supervisor::Listener,
};
use bytes::Bytes;
use futures_util::stream;
use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::{answer::outcome, ask::Streamed, gone::Client, refusal, running::Running, wire::Head};
use crate::http::error::Refusal;

/// After so much silence a comment says that the stream lives.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// An answer on its way.
struct Told {
    running: Running,
    listener: Listener,
    client: Client,
    head: Head,
    says: Streamed,
    began: Instant,
    /// Whether any of the text was sent.
    has_spoken: bool,
    ready: VecDeque<Bytes>,
    has_ended: bool,
}

/// Streams what a job says to its client.
pub fn answer(
    (running, listener): (Running, Listener),
    client: Client,
    (head, says): (Head, Streamed),
) -> HttpResponse {
    let mut ready = VecDeque::new();
    ready.extend(head.first().as_ref().map(data));
    let began = Instant::now();
    let told = Told { running, listener, client, head, says, began, has_spoken: false, ready, has_ended: false };
    HttpResponse::Ok()
        .content_type("text/event-stream")
        .insert_header((header::CACHE_CONTROL, "no-cache"))
        // A proxy that gathers what it passes on would hold tokens up.
        .insert_header(("x-accel-buffering", "no"))
        .streaming(stream::unfold(told, next))
}

type Piece = Result<Bytes, Infallible>;

async fn next(mut told: Told) -> Option<(Piece, Told)> {
    loop {
        if let Some(piece) = told.ready.pop_front() {
            return Some((Ok(piece), told));
        }
        if told.has_ended {
            return None;
        }
        tokio::select! {
            event = told.listener.next() => told.hear(event),
            () = told.client.gone() => return None,
            () = sleep(KEEP_ALIVE) => return Some((Ok(Bytes::from_static(b": keep-alive\n\n")), told)),
        }
    }
}

impl Told {
    fn hear(&mut self, event: Option<JobEvent>) {
        let said = match event {
            Some(JobEvent::Token { text, .. }) if !text.is_empty() => {
                self.has_spoken = true;
                Some(self.head.delta(&text))
            }
            Some(JobEvent::Progress { hosts }) if self.says.progress => {
                Some(self.head.progress(&hosts, self.began.elapsed().as_millis() as u64))
            }
            Some(JobEvent::Recovery { recovery }) if self.says.progress => Some(self.head.recovery(&recovery)),
            Some(JobEvent::Finished { status }) => {
                self.running.ended();
                return self.end(outcome(*status));
            }
            None => return self.end(Err(refusal::stopping())),
            Some(_) => None,
        };
        self.ready.extend(said.as_ref().map(data));
    }

    fn end(&mut self, outcome: Result<JobStatus, Refusal>) {
        self.has_ended = true;
        match outcome {
            Ok(status) => {
                // A job that had ended before anybody listened says all of it now.
                let unsaid = (!self.has_spoken && !status.text.is_empty()).then(|| self.head.delta(&status.text));
                let usage = self.says.usage.then(|| self.head.usage(&status));
                let said = unsaid.into_iter().chain([self.head.last(&status)]).chain(usage);
                self.ready.extend(said.map(|said| data(&said)));
            }
            Err(refusal) => self.ready.push_back(data(&refusal.envelope(None))),
        }
        self.ready.push_back(Bytes::from_static(b"data: [DONE]\n\n"));
    }
}

fn data(said: &impl Serialize) -> Bytes {
    let json = serde_json::to_string(said).expect("plain values are JSON");
    Bytes::from(format!("data: {json}\n\n"))
}
