//! `/api/v1/jobs`: submit, list, look, watch, cancel.

use std::time::Duration;

use actix_web::{
    HttpRequest, HttpResponse, Responder, delete, get,
    http::{
        StatusCode,
        header::{ContentType, LOCATION},
    },
    post,
    web::{Data, Json, Path, Query},
};
use asterism_actors::{
    JobError,
    api::{JobEvent, JobPhase, JobRequest, Waiting, bounds},
    supervisor::{JobFilter, JobPages, Listener, Supervisor},
};
use bytes::Bytes;
use futures_util::stream;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use crate::api::{
    admin::{AdminState, lists::ListQuery},
    http::{body::intake::Taken, error::Refusal, span::RequestSpan},
};

/// The answer to a submission.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Submitted {
    /// The job's id.
    pub id: String,
}

#[post("/jobs")]
pub async fn submit(
    state: Data<AdminState>,
    taken: Taken<JobRequest>,
    of: HttpRequest,
) -> Result<impl Responder, Refusal> {
    let (mut request, _share) = taken.into_parts();
    bounds::no_own_labels(&request.labels)?;
    let mut span = RequestSpan::of(&of, "submit");
    request.trace = span.as_ref().map(RequestSpan::context);
    let id = state.supervisor.submit(request).await.map_err(Refusal::from).inspect_err(|refusal| {
        span.iter_mut().for_each(|span| span.refused(refusal));
    })?;
    span.iter_mut().for_each(|span| span.answered(StatusCode::ACCEPTED));
    let made = (LOCATION, format!("/api/v1/jobs/{id}"));
    Ok(HttpResponse::Accepted().insert_header(made).json(Submitted { id }))
}

#[get("/jobs")]
pub async fn list(state: Data<AdminState>, listing: Query<ListQuery>) -> Result<impl Responder, Refusal> {
    let states = listing.states("pending, running, succeeded, failed or cancelled")?;
    let (limit, oldest_first) = (listing.limit()?, listing.oldest_first()?);
    let filter = JobFilter { states, after: listing.into_inner().after, oldest_first, limit };
    let reported = Listed { pages: state.supervisor.job_pages(filter).await?, began: false };
    Ok(HttpResponse::Ok().content_type(ContentType::json()).streaming(stream::unfold(Some(reported), next_page)))
}

#[get("/jobs/{id}")]
pub async fn status(state: Data<AdminState>, id: Path<String>) -> Result<impl Responder, Refusal> {
    Ok(Json(state.supervisor.status(&id).await?))
}

#[get("/jobs/{id}/events")]
pub async fn events(state: Data<AdminState>, id: Path<String>) -> Result<impl Responder, Refusal> {
    let source = state.supervisor.watch(&id).await?;
    let reported = JobEventStream {
        source,
        supervisor: state.supervisor.clone(),
        id: id.into_inner(),
        waiting: None,
        due: JOBS_AT_ONCE,
    };
    Ok(HttpResponse::Ok().content_type("application/x-ndjson").streaming(stream::unfold((reported, 0), next_line)))
}

#[delete("/jobs/{id}")]
pub async fn delete(state: Data<AdminState>, id: Path<String>) -> Result<impl Responder, Refusal> {
    cancelled(&state, &id).await
}

#[post("/jobs/{id}/cancel")]
pub async fn cancel(state: Data<AdminState>, id: Path<String>) -> Result<impl Responder, Refusal> {
    cancelled(&state, &id).await
}

async fn cancelled(state: &AdminState, id: &str) -> Result<impl Responder + use<>, Refusal> {
    state.supervisor.cancel(id).await?;
    Ok(Json(state.supervisor.status(id).await?))
}

/// A list on its way, of which no more is in memory than is being sent.
struct Listed {
    pages: JobPages,
    began: bool,
}

async fn next_page(reported: Option<Listed>) -> Option<(Result<Bytes, JobError>, Option<Listed>)> {
    let mut reported = reported?;
    let jobs = match reported.pages.next().await {
        Ok(jobs) => jobs,
        // The list is cut off, and no reader takes what it has for all.
        Err(error) => return Some((Err(error), None)),
    };
    let mut piece = String::new();
    for job in jobs.iter().flatten() {
        piece.push(if std::mem::replace(&mut reported.began, true) { ',' } else { '[' });
        piece += &serde_json::to_string(job).expect("a status is plain values");
    }
    let ends = jobs.is_none();
    if ends {
        piece.push_str(if reported.began { "]" } else { "[]" });
    }
    Some((Ok(piece.into()), (!ends).then_some(reported)))
}

type EventLine = Result<Bytes, std::convert::Infallible>;

/// After how many looks without an event an empty line says that the stream lives.
const HEARTBEAT: u32 = 10;
/// How long nothing is heard of a job before it is asked what it waits for.
const LOOK_AFTER: Duration = Duration::from_secs(1);
/// The same after it has entered a phase in which jobs wait.
const JOBS_AT_ONCE: Duration = Duration::from_millis(50);

/// A listener to a job, and what it has received of its waiting.
struct JobEventStream {
    source: Listener,
    supervisor: Supervisor,
    id: String,
    waiting: Option<Waiting>,
    due: Duration,
}

impl JobEventStream {
    /// The next event; none when for a while nothing happened that is new, and nothing at all at the end.
    async fn next(&mut self) -> Option<Option<JobEvent>> {
        let heard = timeout(self.due, self.source.next()).await;
        self.due = LOOK_AFTER;
        let event = match heard {
            Ok(event) => event?,
            // A supervisor that is about to end says nothing any more.
            Err(_) => {
                let waiting = self.supervisor.waiting(&self.id).await.unwrap_or_default();
                let update = std::mem::replace(&mut self.waiting, waiting.clone()) != waiting;
                return Some(update.then_some(JobEvent::Waiting { waiting }));
            }
        };
        if matches!(event, JobEvent::Phase { phase: JobPhase::Queued | JobPhase::Recovering }) {
            self.due = JOBS_AT_ONCE;
        }
        Some(Some(event))
    }
}

async fn next_line((mut reported, mut silent): (JobEventStream, u32)) -> Option<(EventLine, (JobEventStream, u32))> {
    let mut line = loop {
        match reported.next().await? {
            Some(event) => break serde_json::to_vec(&event).expect("an event is plain values"),
            None if silent >= HEARTBEAT => break Vec::new(),
            None => silent += 1,
        }
    };
    line.push(b'\n');
    Some((Ok(Bytes::from(line)), (reported, 0)))
}
