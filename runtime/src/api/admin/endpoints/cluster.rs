//! `/api/v1`: topology, version, and the end.

use actix_web::{
    HttpResponse, Responder, get, post,
    web::{Data, Json},
};

use crate::{
    api::{
        admin::{AdminState, bodies::Stopping},
        http::error::Refusal,
    },
    observe::version::Version,
};

#[get("/topology")]
pub async fn topology(state: Data<AdminState>) -> Result<impl Responder, Refusal> {
    Ok(Json(state.topology().await?))
}

#[get("/version")]
pub async fn version() -> impl Responder {
    Json(Version::current())
}

#[post("/shutdown")]
pub async fn shutdown(state: Data<AdminState>) -> impl Responder {
    state.stop_wanted.notify_one();
    HttpResponse::Accepted().json(Stopping { stopping: true })
}
