//! `/livez`, `/readyz` and `/metrics`: for probes and scrapers, without a token.

use std::{fmt::Write, path::Path};

use actix_web::{
    HttpResponse, Responder, get,
    http::header::ContentType,
    web::{Data, Query},
};
use asterism_actors::{
    api::{ClusterStatus, HostHealth, ModelStatus},
    metric,
    supervisor::AdmissionClosed,
};
use serde::Deserialize;

use crate::{api::admin::AdminState, observe::metrics as exporter};

/// What may stand behind `/readyz?`.
#[derive(Deserialize)]
pub struct ReadyQuery {
    /// There, with whatever value: hosts and models that are well are named, too.
    verbose: Option<String>,
    /// The model that is asked for.
    model: Option<String>,
}

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

/// Whether a job would be planned and answered now: of the model that is named, or of any. Hosts and models that are missing are
/// named in any case.
#[get("/readyz")]
pub async fn ready(state: Data<AdminState>, asked: Query<ReadyQuery>) -> impl Responder {
    let ReadyQuery { verbose, model } = asked.into_inner();
    if let Some(Err(unknown)) = model.as_deref().map(|model| state.supervisor.model_named(Some(model))) {
        return HttpResponse::NotFound().insert_header(ContentType::plaintext()).body(format!("{unknown}\n"));
    }
    let Ok(cluster) = state.topology().await else {
        let mut stopping = HttpResponse::ServiceUnavailable();
        return stopping.insert_header(ContentType::plaintext()).body("supervisor stopping\n");
    };
    let mut body = String::new();
    let verbose = verbose.is_some();
    for host in &cluster.hosts {
        if verbose || host.health != HostHealth::Ready {
            let mark = if host.health == HostHealth::Ready { '+' } else { '-' };
            let health = format!("{:?}", host.health).to_lowercase();
            let cause = host.explained().map(|cause| format!(": {cause}")).unwrap_or_default();
            writeln!(body, "[{mark}] {} {health}{cause}", host.name).expect("a String takes every line");
        }
    }
    for ModelStatus { name, answers, .. } in cluster.models.iter().filter(|model| verbose || !model.answers) {
        let (mark, does) = if *answers { ('+', "answers") } else { ('-', "does not answer") };
        writeln!(body, "[{mark}] model {name} {does}").expect("a String takes every line");
    }
    let closed = state.supervisor.admission_gate().closed();
    let ready = answers(&cluster, model.as_deref()) && closed.is_none();
    match closed {
        Some(AdmissionClosed::Wrong(cause)) => body += &format!("self-test: {cause}\n"),
        Some(AdmissionClosed::Untested) => body += "self-test: not passed yet\n",
        None => {}
    }
    body += if ready { "ready\n" } else { "not ready\n" };
    let mut response = if ready { HttpResponse::Ok() } else { HttpResponse::ServiceUnavailable() };
    response.insert_header(ContentType::plaintext()).body(body)
}

/// Whether a model does, of those there are; none named: whether the cluster does.
fn answers(cluster: &ClusterStatus, model: Option<&str>) -> bool {
    let of = |name: &str| cluster.models.iter().find(|model| model.name == name).map(|model| model.answers);
    model.and_then(of).unwrap_or(cluster.answers)
}

/// What there is of the disk of the journal, where the system tells.
fn record_disk(data_dir: &Path) {
    if let Ok(disk) = rustix::fs::statvfs(data_dir) {
        let bytes = |blocks: u64| blocks as f64 * disk.f_frsize as f64;
        metrics::gauge!(metric::DISK_SIZE_BYTES).set(bytes(disk.f_blocks));
        metrics::gauge!(metric::DISK_FREE_BYTES).set(bytes(disk.f_bavail));
    }
}

#[get("/metrics")]
pub async fn scrape(state: Data<AdminState>) -> impl Responder {
    let mut removed = Vec::new();
    if let Ok(cluster) = state.supervisor.cluster().await {
        metric::record_cluster(&cluster);
        removed = cluster.removed;
    }
    record_disk(&state.data_dir);
    HttpResponse::Ok().content_type(prometheus::TEXT_FORMAT).body(exporter::render(&removed))
}
