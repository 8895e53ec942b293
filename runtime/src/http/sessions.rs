//! `/api/v1/sessions`: create, list, look, extend, drop. A session is asked through `/api/v1/jobs`.

use actix_web::{
    HttpResponse, Responder, delete, get, post,
    web::{Data, Json, Path},
};
use asterism_actors::{JobError, api::SessionRequest};

use super::{AdminState, Extension, error::Refusal};

#[post("/sessions")]
pub async fn create(state: Data<AdminState>, request: Json<SessionRequest>) -> Result<impl Responder, Refusal> {
    Ok(HttpResponse::Accepted().json(state.supervisor.create_session(request.into_inner()).await?))
}

#[get("/sessions")]
pub async fn list(state: Data<AdminState>) -> Result<impl Responder, Refusal> {
    Ok(Json(state.supervisor.sessions().await?))
}

#[get("/sessions/{name}")]
pub async fn show(state: Data<AdminState>, name: Path<String>) -> Result<impl Responder, Refusal> {
    Ok(Json(state.supervisor.session(&name).await?))
}

#[post("/sessions/{name}/extend")]
pub async fn extend(
    state: Data<AdminState>,
    name: Path<String>,
    body: Json<Extension>,
) -> Result<impl Responder, Refusal> {
    if !(body.ttl_s.is_finite() && body.ttl_s > 0.0) {
        let message = format!("ttl_s = {} is no time to live; give seconds above 0", body.ttl_s);
        return Err(JobError::Invalid { param: "ttl_s", message }.into());
    }
    Ok(Json(state.supervisor.extend_session(&name, body.ttl_s).await?))
}

#[delete("/sessions/{name}")]
pub async fn end(state: Data<AdminState>, name: Path<String>) -> Result<impl Responder, Refusal> {
    state.supervisor.drop_session(&name).await?;
    Ok(HttpResponse::NoContent())
}
