//! `/livez`, `/readyz` and `/metrics`: for probes and scrapers, without a token.

use std::fmt::Write;

use actix_web::{HttpRequest, HttpResponse, Responder, get, http::header::ContentType, web::Data};
use asterism_actors::{api::HostHealth, metric, supervisor::AdmissionClosed};

use crate::{api::admin::AdminState, observe::metrics};

/// The supervisor's actor goes on, or waits for the disk of its journal: a listener alone proves nothing. The actor itself is
/// not asked, since it may have much to do first.
#[get("/livez")]
pub async fn live(state: Data<AdminState>) -> impl Responder {
    let (mut response, stated) = match state.supervisor.silence() {
        None => (HttpResponse::Ok(), "ok\n".to_owned()),
        Some(_) if state.supervisor.waits_for_disk() => {
            (HttpResponse::Ok(), "ok, waits for the journal's disk\n".to_owned())
        }
        Some(silence) => {
            let stated =
                format!("supervisor hangs or has stopped: it did nothing for {:.1} s\n", silence.as_secs_f64());
            (HttpResponse::ServiceUnavailable(), stated)
        }
    };
    response.insert_header(ContentType::plaintext()).body(stated)
}

/// Whether a job would be planned and answered now. Hosts that are missing are named in any case.
#[get("/readyz")]
pub async fn ready(state: Data<AdminState>, request: HttpRequest) -> impl Responder {
    let Ok(cluster) = state.topology().await else {
        let mut stopping = HttpResponse::ServiceUnavailable();
        return stopping.insert_header(ContentType::plaintext()).body("supervisor stopping\n");
    };
    let mut body = String::new();
    let verbose = request.query_string().split('&').any(|part| part.split('=').next() == Some("verbose"));
    for host in &cluster.hosts {
        if verbose || host.health != HostHealth::Ready {
            let mark = if host.health == HostHealth::Ready { '+' } else { '-' };
            let health = format!("{:?}", host.health).to_lowercase();
            let cause = host.explained().map(|cause| format!(": {cause}")).unwrap_or_default();
            writeln!(body, "[{mark}] {} {health}{cause}", host.name).expect("a String takes every line");
        }
    }
    let closed = state.supervisor.admission_gate().closed();
    let ready = cluster.answers && closed.is_none();
    match closed {
        Some(AdmissionClosed::Wrong(cause)) => body += &format!("self-test: {cause}\n"),
        Some(AdmissionClosed::Untested) => body += "self-test: not passed yet\n",
        None => {}
    }
    body += if ready { "ready\n" } else { "not ready\n" };
    let mut response = if ready { HttpResponse::Ok() } else { HttpResponse::ServiceUnavailable() };
    response.insert_header(ContentType::plaintext()).body(body)
}

#[get("/metrics")]
pub async fn scrape(state: Data<AdminState>) -> impl Responder {
    let mut removed = Vec::new();
    if let Ok(cluster) = state.supervisor.cluster().await {
        metric::record_cluster(&cluster);
        removed = cluster.removed;
    }
    HttpResponse::Ok().content_type(prometheus::TEXT_FORMAT).body(metrics::render(&removed))
}
