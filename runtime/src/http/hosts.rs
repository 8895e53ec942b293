//! `/api/v1/hosts`: list, look, cordon, uncordon, drain, replace.

use std::time::Duration;

use actix_web::{
    Responder, get, post,
    web::{Data, Json, Path},
};
use asterism_actors::api::Scheduling;

use super::{
    AdminState,
    bodies::{Drain, Replacement},
    error::Refusal,
};

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
    Ok(Json(state.supervisor.schedule_host(&name, Scheduling::Cordoned, None).await?))
}

#[post("/hosts/{name}/uncordon")]
pub async fn uncordon(state: Data<AdminState>, name: Path<String>) -> Result<impl Responder, Refusal> {
    Ok(Json(state.supervisor.schedule_host(&name, Scheduling::Open, None).await?))
}

#[post("/hosts/{name}/drain")]
pub async fn drain(state: Data<AdminState>, name: Path<String>, body: Json<Drain>) -> Result<impl Responder, Refusal> {
    let deadline = body.deadline_s.map(Duration::try_from_secs_f64).transpose().map_err(|error| {
        Refusal::invalid("deadline_s", format!("deadline_s must be a number of seconds from 0: {error}"))
    })?;
    Ok(Json(state.supervisor.schedule_host(&name, Scheduling::Draining, deadline).await?))
}

#[post("/hosts/{name}/replace")]
pub async fn replace(
    state: Data<AdminState>,
    name: Path<String>,
    body: Json<Replacement>,
) -> Result<impl Responder, Refusal> {
    Ok(Json(state.supervisor.replace_host(&name, &body.spare).await?))
}
