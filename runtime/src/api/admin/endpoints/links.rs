//! `/api/v1/links`: have hosts measure their links, and see what came out.

use actix_web::{
    HttpResponse, Responder, get, post,
    web::{Data, Json},
};

use crate::api::admin::AdminState;

#[post("/links")]
pub async fn measure(state: Data<AdminState>) -> impl Responder {
    HttpResponse::Accepted().json(state.links.start())
}

#[get("/links")]
pub async fn show(state: Data<AdminState>) -> impl Responder {
    Json(state.links.report())
}
