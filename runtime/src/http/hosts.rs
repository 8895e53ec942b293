//! `/api/v1/hosts`: list, look, cordon, uncordon, drain, replace.

use std::time::Duration;

use actix_web::{
    Responder, get, post,
    web::{Data, Json, Path},
};
use asterism_actors::api::{HostStatus, Scheduling, bounds};

use super::{AdminState, Drain, Replacement, error::Refusal};

#[get("/hosts")]
pub async fn list(state: Data<AdminState>) -> Result<impl Responder, Refusal> {
    Ok(Json(state.supervisor.cluster().await?.hosts))
}

#[get("/hosts/{name}")]
pub async fn show(state: Data<AdminState>, name: Path<String>) -> Result<impl Responder, Refusal> {
    Ok(Json(state.supervisor.host(&name).await?))
}

#[post("/hosts/{name}/cordon")]
pub async fn cordon(state: Data<AdminState>, name: Path<String>) -> Result<impl Responder, Refusal> {
    schedule(&state, &name, Scheduling::Cordoned, None).await
}

#[post("/hosts/{name}/uncordon")]
pub async fn uncordon(state: Data<AdminState>, name: Path<String>) -> Result<impl Responder, Refusal> {
    schedule(&state, &name, Scheduling::Open, None).await
}

#[post("/hosts/{name}/drain")]
pub async fn drain(
    state: Data<AdminState>,
    name: Path<String>,
    body: Option<Json<Drain>>,
) -> Result<impl Responder, Refusal> {
    let seconds = body.and_then(|body| body.deadline_s);
    let deadline = seconds.map(|seconds| bounds::seconds_or_none("deadline_s", seconds)).transpose()?;
    schedule(&state, &name, Scheduling::Draining, deadline).await
}

#[post("/hosts/{name}/replace")]
pub async fn replace(
    state: Data<AdminState>,
    name: Path<String>,
    body: Json<Replacement>,
) -> Result<impl Responder, Refusal> {
    Ok(Json(state.supervisor.replace_host(&name, &body.spare).await?))
}

async fn schedule(
    state: &AdminState,
    name: &str,
    scheduling: Scheduling,
    deadline: Option<Duration>,
) -> Result<Json<HostStatus>, Refusal> {
    Ok(Json(state.supervisor.schedule_host(name, scheduling, deadline).await?))
}
