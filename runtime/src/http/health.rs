//! `/livez`, `/readyz` and `/metrics`: for probes and scrapers, without a token.

use std::{fmt::Write, time::Duration};

use actix_web::{HttpRequest, HttpResponse, Responder, get, http::header::ContentType, web::Data};
use asterism_actors::{api::HostHealth, metric};
use tokio::time::timeout;

use super::AdminState;
use crate::metrics;

/// An actor that does not answer within this time hangs.
const ALIVE_WITHIN: Duration = Duration::from_secs(1);

/// The supervisor's actor answers, or will once the disk has its journal: a listener alone proves nothing.
#[get("/livez")]
pub async fn live(state: Data<AdminState>) -> impl Responder {
    match timeout(ALIVE_WITHIN, state.supervisor.cluster()).await {
        Ok(Ok(_)) => HttpResponse::Ok().body("ok\n"),
        Ok(Err(_)) => HttpResponse::ServiceUnavailable().body("supervisor stopping\n"),
        Err(_) if state.supervisor.waits_for_disk() => HttpResponse::Ok().body("ok, waits for the journal's disk\n"),
        Err(_) => HttpResponse::ServiceUnavailable().body("supervisor hangs\n"),
    }
}

#[get("/readyz")]
pub async fn ready(state: Data<AdminState>, request: HttpRequest) -> impl Responder {
    let Ok(cluster) = state.supervisor.cluster().await else {
        return HttpResponse::ServiceUnavailable().body("supervisor stopping\n");
    };
    let mut body = String::new();
    if request.query_string().split('&').any(|part| part.split('=').next() == Some("verbose")) {
        for host in &cluster.hosts {
            let mark = if host.health == HostHealth::Ready { '+' } else { '-' };
            let health = format!("{:?}", host.health).to_lowercase();
            let cause = host.cause.as_deref().map(|cause| format!(": {cause}")).unwrap_or_default();
            writeln!(body, "[{mark}] {} {health}{cause}", host.name).expect("a String takes every line");
        }
    }
    body += if cluster.ready { "ready\n" } else { "not ready\n" };
    let mut response = if cluster.ready { HttpResponse::Ok() } else { HttpResponse::ServiceUnavailable() };
    response.insert_header(ContentType::plaintext()).body(body)
}

#[get("/metrics")]
pub async fn scrape(state: Data<AdminState>) -> impl Responder {
    if let Ok(cluster) = state.supervisor.cluster().await {
        metric::record_cluster(&cluster);
    }
    HttpResponse::Ok().content_type(prometheus::TEXT_FORMAT).body(metrics::render())
}
