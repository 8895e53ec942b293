//! `/api/v1/self-test`: begin one, and see how it stands.

use actix_web::{
    HttpResponse, Responder, get, post,
    web::{Data, Json},
};

use crate::api::admin::AdminState;

#[post("/self-test")]
pub async fn start(state: Data<AdminState>) -> impl Responder {
    HttpResponse::Accepted().json(state.self_test.start())
}

#[get("/self-test")]
pub async fn show(state: Data<AdminState>) -> impl Responder {
    Json(state.self_test.report())
}
