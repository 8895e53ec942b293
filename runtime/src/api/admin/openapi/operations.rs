//! What the admin API can be asked, with the types of bodies and answers. A test holds it against the table of who may ask what.

use asterism_actors::api::{
    AppendRequest, ClusterStatus, HostStatus, JobRequest, JobStatus, LinksReport, SelfTestReport, SessionRequest,
    SessionStatus,
};
use schemars::JsonSchema;

use super::schema::{Make, schema};
use crate::{
    api::admin::{
        Applied, ApplyConfig, Drain, Extension, Joining, Replacement, Restart, Submitted, Token,
        bodies::{Copied, Stopping},
    },
    observe::version::Version,
};

/// One thing to ask.
pub struct Operation {
    /// Of HTTP.
    pub method: &'static str,
    /// Pattern of its path.
    pub path: &'static str,
    /// For clients that are made of the document.
    pub id: &'static str,
    /// One line.
    pub summary: &'static str,
    /// Its body.
    pub takes: Option<RequestSchema>,
    /// Its answer.
    pub gives: ResponseSchema,
}

/// A body of JSON.
pub struct RequestSchema {
    /// Its schema.
    pub make: Make,
    /// Whether it may be left out.
    pub required: bool,
}

/// What a request that is not refused is answered with.
pub enum ResponseSchema {
    /// JSON.
    Json {
        /// Under this status.
        status: &'static str,
        /// Of this schema.
        make: Make,
    },
    /// Text of a kind, under one of these statuses.
    Text {
        /// Its media type.
        kind: &'static str,
        /// `200`, and others that say something with the same text.
        statuses: &'static [&'static str],
    },
    /// No body.
    Nothing,
}

const fn response_schema<T: JsonSchema>() -> ResponseSchema {
    ResponseSchema::Json { status: "200", make: schema::<T> }
}

const fn accepts<T: JsonSchema>() -> ResponseSchema {
    ResponseSchema::Json { status: "202", make: schema::<T> }
}

const fn text(kind: &'static str) -> ResponseSchema {
    ResponseSchema::Text { kind, statuses: &["200"] }
}

const fn request_schema<T: JsonSchema>() -> Option<RequestSchema> {
    Some(RequestSchema { make: schema::<T>, required: true })
}

const fn may_take<T: JsonSchema>() -> Option<RequestSchema> {
    Some(RequestSchema { make: schema::<T>, required: false })
}

type Named = (&'static str, &'static str);

const fn get(path: &'static str, (id, summary): Named, gives: ResponseSchema) -> Operation {
    Operation { method: "GET", path, id, summary, takes: None, gives }
}

const fn post(
    path: &'static str,
    (id, summary): Named,
    takes: Option<RequestSchema>,
    gives: ResponseSchema,
) -> Operation {
    Operation { method: "POST", path, id, summary, takes, gives }
}

const fn delete(path: &'static str, (id, summary): Named, gives: ResponseSchema) -> Operation {
    Operation { method: "DELETE", path, id, summary, takes: None, gives }
}

const PLAIN: &str = "text/plain";
const PROBE: ResponseSchema = ResponseSchema::Text { kind: PLAIN, statuses: &["200", "503"] };
const READINESS: ResponseSchema = ResponseSchema::Text { kind: PLAIN, statuses: &["200", "404", "503"] };

/// All of it.
pub const OPERATIONS: &[Operation] = &[
    get("/livez", ("live", "Whether the supervisor goes on."), PROBE),
    get("/readyz", ("ready", "Whether a job would be answered now."), READINESS),
    get("/metrics", ("metrics", "Metrics in Prometheus' text format."), text(PLAIN)),
    get("/", ("console", "The console."), text("text/html")),
    get("/console.css", ("console_style", "The console's style."), text("text/css")),
    get("/console.js", ("console_program", "The console's program."), text("text/javascript")),
    get("/api/openapi.json", ("openapi", "This document."), response_schema::<serde_json::Value>()),
    post("/api/v1/jobs", ("submit_job", "Submits a job."), request_schema::<JobRequest>(), accepts::<Submitted>()),
    get("/api/v1/jobs", ("list_jobs", "Jobs, newest first."), response_schema::<Vec<JobStatus>>()),
    get("/api/v1/jobs/{id}", ("show_job", "A job, with its answer so far."), response_schema::<JobStatus>()),
    get(
        "/api/v1/jobs/{id}/events",
        ("watch_job", "What happens to a job until it ends: a JobEvent a line."),
        text("application/x-ndjson"),
    ),
    delete("/api/v1/jobs/{id}", ("delete_job", "Cancels a job."), response_schema::<JobStatus>()),
    post("/api/v1/jobs/{id}/cancel", ("cancel_job", "Cancels a job."), None, response_schema::<JobStatus>()),
    get(
        "/api/v1/hosts",
        ("list_hosts", "Hosts, in the order of the cluster file."),
        response_schema::<Vec<HostStatus>>(),
    ),
    get("/api/v1/hosts/{name}", ("show_host", "A host."), response_schema::<HostStatus>()),
    post(
        "/api/v1/hosts/{name}/cordon",
        ("cordon_host", "Gives a host nothing new."),
        None,
        response_schema::<HostStatus>(),
    ),
    post(
        "/api/v1/hosts/{name}/uncordon",
        ("uncordon_host", "Gives a host work again."),
        None,
        response_schema::<HostStatus>(),
    ),
    post(
        "/api/v1/hosts/{name}/drain",
        ("drain_host", "Moves what a host holds to others."),
        may_take::<Drain>(),
        response_schema::<HostStatus>(),
    ),
    post(
        "/api/v1/hosts/{name}/restart",
        ("restart_host", "Has a host give away what it has, end, and be started again."),
        may_take::<Restart>(),
        response_schema::<HostStatus>(),
    ),
    post(
        "/api/v1/hosts/{name}/remove",
        ("remove_host", "Says that a host will not come back; `uncordon` takes it in again."),
        None,
        response_schema::<HostStatus>(),
    ),
    post(
        "/api/v1/hosts/{name}/replace",
        ("replace_host", "Gives a lost host's place to a spare."),
        request_schema::<Replacement>(),
        response_schema::<HostStatus>(),
    ),
    post(
        "/api/v1/sessions",
        ("create_session", "Encodes and pins a context."),
        request_schema::<SessionRequest>(),
        accepts::<SessionStatus>(),
    ),
    get("/api/v1/sessions", ("list_sessions", "Sessions, by name."), response_schema::<Vec<SessionStatus>>()),
    get("/api/v1/sessions/{name}", ("show_session", "A session."), response_schema::<SessionStatus>()),
    post(
        "/api/v1/sessions/{name}/append",
        ("append_session", "Goes on with a session's context."),
        request_schema::<AppendRequest>(),
        accepts::<SessionStatus>(),
    ),
    post(
        "/api/v1/sessions/{name}/extend",
        ("extend_session", "Has a session end later, or earlier."),
        request_schema::<Extension>(),
        response_schema::<SessionStatus>(),
    ),
    delete("/api/v1/sessions/{name}", ("drop_session", "Ends a session."), ResponseSchema::Nothing),
    post(
        "/api/v1/join-tokens",
        ("create_join_token", "A token for one further machine."),
        request_schema::<Joining>(),
        response_schema::<Token>(),
    ),
    post(
        "/api/v1/config",
        ("apply_config", "Has the cluster be as another cluster file says."),
        request_schema::<ApplyConfig>(),
        response_schema::<Applied>(),
    ),
    post(
        "/api/v1/self-test",
        ("start_self_test", "Begins a self-test, unless one runs."),
        None,
        accepts::<SelfTestReport>(),
    ),
    get("/api/v1/self-test", ("show_self_test", "The latest self-test."), response_schema::<SelfTestReport>()),
    post(
        "/api/v1/links",
        ("measure_links", "Has hosts measure their links, unless they do."),
        None,
        accepts::<LinksReport>(),
    ),
    get("/api/v1/links", ("show_links", "What links were measured to take."), response_schema::<LinksReport>()),
    post(
        "/api/v1/backup",
        ("copy_journal", "Writes a copy of the journal beside it, as it is between two changes."),
        None,
        response_schema::<Copied>(),
    ),
    get("/api/v1/topology", ("topology", "The cluster and its hosts."), response_schema::<ClusterStatus>()),
    get(
        "/api/v1/events",
        ("events", "What happens in the cluster: server-sent events, each a ClusterEvent."),
        text("text/event-stream"),
    ),
    get("/api/v1/version", ("version", "What the supervisor's program is."), response_schema::<Version>()),
    post("/api/v1/shutdown", ("shut_down", "Ends the supervisor."), None, accepts::<Stopping>()),
];
