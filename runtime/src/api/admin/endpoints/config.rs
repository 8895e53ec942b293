//! `/api/v1/config`: another cluster file for the cluster that runs. What it changes is not decided here.

use actix_web::{
    Responder,
    http::StatusCode,
    post,
    web::{Data, Json},
};

use crate::api::{
    admin::{AdminState, bodies::ApplyConfig, running::ApplyError},
    http::{body::intake::Taken, error::Refusal},
};

#[post("/config")]
pub async fn apply(state: Data<AdminState>, body: Taken<ApplyConfig>) -> Result<impl Responder, Refusal> {
    let (ApplyConfig { file, without, dry_run }, _share) = body.into_parts();
    let applied = state.file.apply(&state.supervisor, (&file, &without), dry_run).await;
    Ok(Json(applied.map_err(refused)?))
}

fn refused(error: ApplyError) -> Refusal {
    match error {
        ApplyError::File(_) | ApplyError::Cluster(_) | ApplyError::Refused(_) => Refusal::invalid("file", error),
        ApplyError::NeedsRestart { .. } => Refusal::of(StatusCode::CONFLICT, "needs_restart", error),
        ApplyError::Supervisor(error) => error.into(),
        ApplyError::Kept { .. } => Refusal::failed("config_store", error),
    }
}
