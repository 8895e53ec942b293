//! `/api/v1/sessions`: create, list, look, extend, drop. A session is asked through `/api/v1/jobs`.

use actix_web::{
    HttpResponse, Responder, delete, get, post,
    web::{Data, Json, Path},
};
use asterism_actors::api::SessionRequest;

use super::{AdminState, Extension, error::Refusal, intake::Taken};

#[post("/sessions")]
pub async fn create(state: Data<AdminState>, taken: Taken<SessionRequest>) -> Result<impl Responder, Refusal> {
    let (request, _share) = taken.into_parts();
    Ok(HttpResponse::Accepted().json(state.supervisor.create_session(request).await?))
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
    Ok(Json(state.supervisor.extend_session(&name, body.ttl_s).await?))
}

#[delete("/sessions/{name}")]
pub async fn end(state: Data<AdminState>, name: Path<String>) -> Result<impl Responder, Refusal> {
    state.supervisor.drop_session(&name).await?;
    Ok(HttpResponse::NoContent())
}
