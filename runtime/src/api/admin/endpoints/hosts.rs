//! `/api/v1/hosts`: list, look, cordon, uncordon, drain, restart, remove, replace.

use std::time::Duration;

use actix_web::{
    Responder, get, post,
    web::{Data, Json, Path, Query},
};
use asterism_actors::api::{HostHealth, HostStatus, Role, Scheduling, bounds};

use crate::api::{
    admin::{AdminState, Drain, Replacement, Restart, lists::ListQuery},
    http::{body::intake::Body, error::Refusal},
};

/// How long a host that is restarted may take to give away what it has, where nobody says.
const RESTART_WITHIN: Duration = Duration::from_secs(60);

#[get("/hosts")]
pub async fn list(state: Data<AdminState>, listing: Query<ListQuery>) -> Result<impl Responder, Refusal> {
    let states: Vec<HostHealth> = listing.states("starting, loading, ready, suspect or dead")?;
    let (roles, limit): (Vec<Role>, _) = (listing.roles("context, query or spare")?, listing.limit()?);
    let mut hosts = state.topology().await?.hosts;
    hosts.retain(|host| {
        (states.is_empty() || states.contains(&host.health)) && (roles.is_empty() || roles.contains(&host.role))
    });
    hosts.truncate(limit);
    Ok(Json(hosts))
}

#[get("/hosts/{name}")]
pub async fn show(state: Data<AdminState>, name: Path<String>) -> Result<impl Responder, Refusal> {
    let mut host = state.supervisor.host(&name).await?;
    state.door.explain(std::slice::from_mut(&mut host));
    Ok(Json(host))
}

#[post("/hosts/{name}/cordon")]
pub async fn cordon(state: Data<AdminState>, name: Path<String>) -> Result<impl Responder, Refusal> {
    schedule(&state, &name, Scheduling::Cordoned, None).await
}

#[post("/hosts/{name}/uncordon")]
pub async fn uncordon(state: Data<AdminState>, name: Path<String>) -> Result<impl Responder, Refusal> {
    schedule(&state, &name, Scheduling::Open, None).await
}

#[post("/hosts/{name}/remove")]
pub async fn remove(state: Data<AdminState>, name: Path<String>) -> Result<impl Responder, Refusal> {
    schedule(&state, &name, Scheduling::Removed, None).await
}

#[post("/hosts/{name}/drain")]
pub async fn drain(state: Data<AdminState>, name: Path<String>, body: Body<Drain>) -> Result<impl Responder, Refusal> {
    let seconds = body.0.deadline_s;
    let deadline = seconds.map(|seconds| bounds::seconds_or_none("deadline_s", seconds)).transpose()?;
    schedule(&state, &name, Scheduling::Draining, deadline).await
}

#[post("/hosts/{name}/restart")]
pub async fn restart(
    state: Data<AdminState>,
    name: Path<String>,
    body: Body<Restart>,
) -> Result<impl Responder, Refusal> {
    let seconds = body.0.deadline_s;
    let deadline = seconds.map(|seconds| bounds::seconds_or_none("deadline_s", seconds)).transpose()?;
    Ok(Json(state.supervisor.restart_host(&name, deadline.unwrap_or(RESTART_WITHIN)).await?))
}

#[post("/hosts/{name}/replace")]
pub async fn replace(
    state: Data<AdminState>,
    name: Path<String>,
    body: Body<Replacement>,
) -> Result<impl Responder, Refusal> {
    Ok(Json(state.supervisor.replace_host(&name, &body.0.spare).await?))
}

async fn schedule(
    state: &AdminState,
    name: &str,
    scheduling: Scheduling,
    deadline: Option<Duration>,
) -> Result<Json<HostStatus>, Refusal> {
    Ok(Json(state.supervisor.schedule_host(name, scheduling, deadline).await?))
}
