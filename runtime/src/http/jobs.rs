//! `/api/v1/jobs`: submit, list, look, watch, cancel.

use actix_web::{
    HttpResponse, Responder, delete, get, post,
    web::{Data, Json, Path},
};
use asterism_actors::api::{JobEvent, JobRequest};
use bytes::Bytes;
use futures_util::stream;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::UnboundedReceiver;

use super::{AdminState, error::Refusal};

/// The answer to a submission.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Submitted {
    /// The job's id.
    pub id: String,
}

#[post("/jobs")]
pub async fn submit(state: Data<AdminState>, request: Json<JobRequest>) -> Result<impl Responder, Refusal> {
    let id = state.supervisor.submit(request.into_inner()).await?;
    Ok(HttpResponse::Accepted().json(Submitted { id }))
}

#[get("/jobs")]
pub async fn list(state: Data<AdminState>) -> Result<impl Responder, Refusal> {
    Ok(Json(state.supervisor.jobs().await?))
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

async fn next_line(mut source: UnboundedReceiver<JobEvent>) -> Option<(Line, UnboundedReceiver<JobEvent>)> {
    let event = source.recv().await?;
    let mut line = serde_json::to_vec(&event).expect("an event is plain values");
    line.push(b'\n');
    Some((Ok(Bytes::from(line)), source))
}
