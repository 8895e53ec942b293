//! `/health` and `/version`, which balancers and benchmarks ask before anything else. Both are for everybody, and tell nothing else.

use actix_web::{
    HttpResponse, Responder, get,
    web::{Data, Json},
};
use serde_json::json;

use crate::api::openai::ApiState;

/// Whether requests are taken now: 200, or 503.
#[get("/health")]
pub async fn health(state: Data<ApiState>) -> impl Responder {
    let ready = match state.supervisor.silence() {
        None => state.supervisor.cluster().await.is_ok_and(|cluster| cluster.ready),
        Some(_) => false,
    };
    let open = ready && state.supervisor.admission_gate().closed().is_none();
    if open { HttpResponse::Ok().finish() } else { HttpResponse::ServiceUnavailable().finish() }
}

#[get("/version")]
pub async fn version() -> impl Responder {
    Json(json!({ "version": env!("CARGO_PKG_VERSION") }))
}
