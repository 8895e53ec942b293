//! `/api/v1/events`: what happens in the cluster, as server-sent events. Who was cut off goes on behind the last that it received.

use std::{convert::Infallible, time::Duration};

use actix_web::{
    HttpRequest, HttpResponse, Responder, get,
    http::header::CACHE_CONTROL,
    web::{Data, Query},
};
use asterism_actors::{
    api::bounds,
    cluster_event::{ClusterEvent, EventId},
    supervisor::EventListener,
};
use bytes::Bytes;
use futures_util::stream;
use serde::Deserialize;
use tokio::time::timeout;

use crate::api::{admin::AdminState, http::error::Refusal};

/// What a client that was cut off sends.
const LAST_EVENT_ID: &str = "last-event-id";
/// After so much silence a comment says that the stream lives.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// When a client that was cut off comes back.
const RETRY_EVENT: &[u8] = b"retry: 2000\n\n";

/// Behind the `?`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EventsQuery {
    after: Option<String>,
    follow: Option<String>,
}

#[get("/events")]
pub async fn events(
    state: Data<AdminState>,
    wanted: Query<EventsQuery>,
    request: HttpRequest,
) -> Result<impl Responder, Refusal> {
    let after = wanted.after(&request)?;
    let follow = wanted.follow()?;
    let listener = state.supervisor.events(after).await?;
    let reported = ClusterEventStream { listener, follow, opened: false };
    Ok(HttpResponse::Ok()
        .content_type("text/event-stream")
        .insert_header((CACHE_CONTROL, "no-cache"))
        .insert_header(("x-accel-buffering", "no"))
        .streaming(stream::unfold(reported, next)))
}

impl EventsQuery {
    /// Behind which event; a header says it of a client that was cut off, whatever it asked at first.
    fn after(&self, request: &HttpRequest) -> Result<Option<EventId>, Refusal> {
        let header = request.headers().get(LAST_EVENT_ID).map(|value| String::from_utf8_lossy(value.as_bytes()));
        let read = |param: &'static str, text: &str| {
            let refused = |error| Refusal::invalid(param, format!("{param} is '{}': {error}", bounds::shown(text)));
            text.parse().map(Some).map_err(refused)
        };
        match (header.as_deref().filter(|text| !text.is_empty()), &self.after) {
            (Some(text), _) => read("Last-Event-ID", text),
            (None, Some(text)) => read("after", text),
            (None, None) => Ok(None),
        }
    }

    fn follow(&self) -> Result<bool, Refusal> {
        match self.follow.as_deref() {
            None | Some("true") => Ok(true),
            Some("false") => Ok(false),
            Some(got) => {
                let got = bounds::shown(got);
                Err(Refusal::invalid("follow", format!("follow is '{got}', expected true or false")))
            }
        }
    }
}

/// A listener to the cluster, on its way to a client.
struct ClusterEventStream {
    listener: EventListener,
    follow: bool,
    opened: bool,
}

async fn next(mut reported: ClusterEventStream) -> Option<(Result<Bytes, Infallible>, ClusterEventStream)> {
    let piece = if !std::mem::replace(&mut reported.opened, true) {
        Bytes::from_static(RETRY_EVENT)
    } else if reported.follow {
        match timeout(KEEP_ALIVE, reported.listener.next()).await {
            Ok(event) => worded(&*event?),
            Err(_) => Bytes::from_static(b": keep-alive\n\n"),
        }
    } else {
        worded(&*reported.listener.ready()?)
    };
    Some((Ok(piece), reported))
}

fn worded(event: &ClusterEvent) -> Bytes {
    let value = serde_json::to_value(event).expect("an event is plain values");
    let name = value["event"].as_str().unwrap_or_default();
    Bytes::from(format!("id: {}\nevent: {name}\ndata: {value}\n\n", event.id))
}
