//! `/api/v1/sessions`: create, list, look, append, extend, drop. A session is asked through `/api/v1/jobs`.

use actix_web::{
    HttpResponse, Responder, delete, get,
    http::header::LOCATION,
    post,
    web::{Data, Json, Path, Query},
};
use asterism_actors::api::{AppendRequest, SessionRequest, SessionState, SessionStatus};

use crate::api::{
    admin::{AdminState, Extension, lists::ListQuery},
    http::{
        body::intake::{Body, Taken},
        error::Refusal,
    },
};

#[post("/sessions")]
pub async fn create(state: Data<AdminState>, taken: Taken<SessionRequest>) -> Result<impl Responder, Refusal> {
    let (request, _share) = taken.into_parts();
    let session = state.supervisor.create_session(request).await?;
    let made = (LOCATION, format!("/api/v1/sessions/{}", session.name));
    Ok(HttpResponse::Accepted().insert_header(made).json(session))
}

#[get("/sessions")]
pub async fn list(state: Data<AdminState>, listing: Query<ListQuery>) -> Result<impl Responder, Refusal> {
    let states: Vec<SessionState> = listing.states("encoding, ready, recovering or failed")?;
    let (limit, mut sessions) = (listing.limit()?, Vec::new());
    let mut pages = state.supervisor.session_pages(listing.into_inner().after).await?;
    while let Some(page) = pages.next().await? {
        let wanted = |session: &SessionStatus| states.is_empty() || states.contains(&session.state);
        sessions.extend(page.into_iter().filter(wanted));
        if sessions.len() >= limit {
            break;
        }
    }
    sessions.truncate(limit);
    Ok(Json(sessions))
}

#[get("/sessions/{name}")]
pub async fn show(state: Data<AdminState>, name: Path<String>) -> Result<impl Responder, Refusal> {
    Ok(Json(state.supervisor.session(&name).await?))
}

#[post("/sessions/{name}/extend")]
pub async fn extend(
    state: Data<AdminState>,
    name: Path<String>,
    body: Body<Extension>,
) -> Result<impl Responder, Refusal> {
    Ok(Json(state.supervisor.extend_session(&name, body.0.ttl_s).await?))
}

#[post("/sessions/{name}/append")]
pub async fn append(
    state: Data<AdminState>,
    name: Path<String>,
    taken: Taken<AppendRequest>,
) -> Result<impl Responder, Refusal> {
    let (request, _share) = taken.into_parts();
    Ok(HttpResponse::Accepted().json(state.supervisor.append_session(&name, request).await?))
}

#[delete("/sessions/{name}")]
pub async fn end(state: Data<AdminState>, name: Path<String>) -> Result<impl Responder, Refusal> {
    state.supervisor.drop_session(&name).await?;
    Ok(HttpResponse::NoContent())
}
