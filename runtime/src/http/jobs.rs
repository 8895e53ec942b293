//! `/api/v1/jobs`: submit, list, look, watch, cancel.

use std::time::Duration;

use actix_web::{
    HttpResponse, Responder, delete, get, post,
    web::{Data, Json, Path, Query},
};
use asterism_actors::{
    api::{JobRequest, JobState},
    supervisor::{JobFilter, Listener},
};
use bytes::Bytes;
use futures_util::stream;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use super::{AdminState, error::Refusal, intake::Taken};

/// Most jobs of one list.
pub const MAX_LISTED: usize = 500;

/// The answer to a submission.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Submitted {
    /// The job's id.
    pub id: String,
}

#[post("/jobs")]
pub async fn submit(state: Data<AdminState>, taken: Taken<JobRequest>) -> Result<impl Responder, Refusal> {
    let (request, _share) = taken.into_parts();
    let id = state.supervisor.submit(request).await?;
    Ok(HttpResponse::Accepted().json(Submitted { id }))
}

/// The query of a list.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Listing {
    /// States, parted by commas; absent: any.
    state: Option<String>,
    /// Jobs submitted after the one of this id.
    after: Option<String>,
    /// At most so many.
    limit: Option<usize>,
}

#[get("/jobs")]
pub async fn list(state: Data<AdminState>, listing: Query<Listing>) -> Result<impl Responder, Refusal> {
    let Listing { state: states, after, limit } = listing.into_inner();
    let one = |name: &str| {
        let known = serde_json::from_value::<JobState>(name.to_uppercase().into());
        known.map_err(|_| {
            let known = "pending, running, succeeded, failed or cancelled";
            Refusal::invalid(format!("state is {}, expected {known}", name.escape_debug()))
        })
    };
    let states = states.as_deref().unwrap_or_default().split(',').filter(|name| !name.is_empty());
    let states = states.take(MAX_LISTED).map(one).collect::<Result<Vec<_>, _>>()?;
    let limit = limit.unwrap_or(MAX_LISTED);
    if !(1..=MAX_LISTED).contains(&limit) {
        return Err(Refusal::invalid(format!("limit is {limit}, expected 1 to {MAX_LISTED}; give after=ID for more")));
    }
    Ok(Json(state.supervisor.jobs(JobFilter { states, after, limit }).await?))
}

#[get("/jobs/{id}")]
pub async fn status(state: Data<AdminState>, id: Path<String>) -> Result<impl Responder, Refusal> {
    Ok(Json(state.supervisor.status(&id).await?))
}

#[get("/jobs/{id}/events")]
pub async fn events(state: Data<AdminState>, id: Path<String>) -> Result<impl Responder, Refusal> {
    let source = state.supervisor.watch(&id).await?;
    Ok(HttpResponse::Ok().content_type("application/x-ndjson").streaming(stream::unfold(source, next_line)))
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

type Line = Result<Bytes, std::convert::Infallible>;

/// After how long without an event an empty line says that the stream lives.
const HEARTBEAT: Duration = Duration::from_secs(10);

async fn next_line(mut source: Listener) -> Option<(Line, Listener)> {
    let mut line = match timeout(HEARTBEAT, source.next()).await {
        Ok(event) => serde_json::to_vec(&event?).expect("an event is plain values"),
        Err(_) => Vec::new(),
    };
    line.push(b'\n');
    Some((Ok(Bytes::from(line)), source))
}
