//! `/api/v1/sessions`: create, list, look, extend, drop.

use actix_web::{
    HttpResponse, Responder, delete, get, post,
    web::{Data, Json, Path},
};
use asterism_actors::api::SessionRequest;

use super::{AdminState, bodies::Extension, error::Refusal};

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
    Ok(Json(state.supervisor.extend_session(&name, body.ttl_s).await?))
}

#[delete("/sessions/{name}")]
pub async fn drop(state: Data<AdminState>, name: Path<String>) -> Result<impl Responder, Refusal> {
    state.supervisor.drop_session(&name).await?;
    Ok(Json(serde_json::json!({ "dropped": name.as_str() })))
}
