//! What every request has in common: an id that its answer and the log repeat, the cluster that it means, and a query that is
//! known. Answers none itself.

use std::time::Instant;

use actix_web::{
    Error, HttpResponse,
    body::{BoxBody, MessageBody},
    dev::{ServiceRequest, ServiceResponse},
    http::{
        Method, StatusCode,
        header::{HeaderMap, HeaderName, HeaderValue, LOCATION},
    },
    middleware::Next,
};
use asterism_actors::{api::bounds, metric};
use uuid::Uuid;

use super::error::Refusal;
use crate::data_dir::place::Place;

/// Names a request: its client's name for it, where that is plain, or one made here.
pub const REQUEST_ID: &str = "x-request-id";
/// Names the cluster that a request is for, so that another one at the same address does not take it.
pub const CLUSTER: &str = "x-asterism-cluster";
/// Where that cluster keeps what it keeps, as a [`Place`].
pub const PLACE: &str = "x-asterism-place";

/// Longest name of a request.
const LONGEST_ID: usize = 128;
/// What who looks at a path may have behind its `?`; others have nothing.
const QUERIES: &[(&str, &[&str])] = &[
    ("/readyz", &["verbose", "model"]),
    ("/api/v1/jobs", &["state", "after", "limit", "order"]),
    ("/api/v1/hosts", &["role", "state", "limit"]),
    ("/api/v1/sessions", &["state", "after", "limit"]),
    ("/api/v1/events", &["after", "follow"]),
];

/// Paths whose `GET` answers `HEAD` too: what probes and browsers look at, and the models. The connection leaves the body out.
const HEADED: &[&str] = &[
    "/livez",
    "/readyz",
    "/metrics",
    "/",
    "/console.css",
    "/console.js",
    "/v1/models",
    "/v1/models/{model}",
    "/v1/models/{organisation}/{model}",
];

/// Paths of Anthropic's API.
const MESSAGES: &str = "/v1/messages";

/// The methods of a path, in the order of their names.
pub fn allowed<'a>(pattern: &str, methods: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut methods: Vec<&str> = methods.chain(HEADED.contains(&pattern).then_some("HEAD")).collect();
    methods.sort_unstable();
    methods
}

/// Names the request, repeats the name in the answer, and says what became of it.
pub async fn identify(
    mut request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<BoxBody>, Error> {
    let (id, began, method) = (id_of(request.headers()), Instant::now(), request.method().clone());
    let pattern = request.match_pattern().unwrap_or_else(|| "unknown".into());
    if method == Method::HEAD && HEADED.contains(&&*pattern) {
        request.head_mut().method = Method::GET;
    }
    let response = next.call(request).await?.map_into_boxed_body();
    let refused = response.response().error().map(|error| match error.as_error::<Refusal>() {
        Some(refusal) => {
            metrics::counter!(metric::REQUESTS_REFUSED, "error_type" => refusal.code().to_owned()).increment(1);
            worded(refusal, &pattern, &id)
        }
        // What the framework refuses by itself.
        None => worded(&Refusal::of(response.status(), "invalid_request", error), &pattern, &id),
    });
    let mut response = match refused {
        Some(refused) => response.into_response(refused),
        None => response,
    };
    let value = HeaderValue::from_str(&id).expect("it is plain");
    response.headers_mut().insert(HeaderName::from_static(REQUEST_ID), value);
    log(&id, (&method, &pattern), began, &response);
    Ok(response)
}

/// A refusal in the words of the API that the path is of.
fn worded(refusal: &Refusal, pattern: &str, id: &str) -> HttpResponse {
    match pattern.starts_with(MESSAGES) {
        true => refusal.answer_message(Some(id)),
        false => refusal.answer(Some(id)),
    }
}

/// What changes something has a line. What only looks has none, nor has a stranger, who could fill the disk with them.
fn log(id: &str, (method, pattern): (&Method, &str), began: Instant, response: &ServiceResponse<BoxBody>) {
    let status = response.status();
    if [Method::GET, Method::HEAD].contains(method) || status == StatusCode::UNAUTHORIZED {
        return tracing::debug!(request = id, %method, path = pattern, status = status.as_u16(), "request");
    }
    let seconds = (began.elapsed().as_secs_f64() * 1e3).round() / 1e3;
    // The path itself only where it is known to be one: parts of others are any text.
    let path = if status.is_success() { response.request().path() } else { pattern };
    let made = response.headers().get(LOCATION).and_then(|made| made.to_str().ok());
    tracing::info!(request = id, %method, path, status = status.as_u16(), made, seconds, "request");
}

fn id_of(headers: &HeaderMap) -> String {
    let plain = |id: &&str| {
        let byte = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/+=@".contains(&byte);
        (1..=LONGEST_ID).contains(&id.len()) && id.bytes().all(byte)
    };
    let given = headers.get(REQUEST_ID).and_then(|id| id.to_str().ok()).filter(plain);
    given.map_or_else(|| format!("req-{}", Uuid::new_v4().simple()), str::to_owned)
}

/// Refuses a request that means another cluster than the one called `cluster`, or than the one that keeps things at `place`.
pub fn check_cluster(headers: &HeaderMap, (cluster, place): (&str, Option<&Place>)) -> Result<(), Refusal> {
    let meant = |name| headers.get(name).map(HeaderValue::as_bytes);
    if let Some(meant) = meant(CLUSTER).filter(|meant| *meant != cluster.as_bytes()) {
        let meant = bounds::shown(&String::from_utf8_lossy(meant));
        return Err(Refusal::other_cluster(&meant, cluster));
    }
    let at = meant(PLACE).and_then(|meant| Place::read(str::from_utf8(meant).ok()?));
    match (at, place) {
        (Some(at), Some(place)) if at.is_apart(place) => Err(Refusal::other_data_dir(cluster)),
        _ => Ok(()),
    }
}

/// What a path may have behind its `?`, by method.
pub fn queries(method: &str, pattern: &str) -> &'static [&'static str] {
    if !["GET", "HEAD"].contains(&method) {
        return &[];
    }
    QUERIES.iter().find(|(path, _)| *path == pattern).map_or(&[][..], |(_, known)| known)
}

/// Refuses what nobody looks at behind the `?` of a path.
pub fn check_query((method, pattern): (&str, &str), query: &str) -> Result<(), Refusal> {
    let known = queries(method, pattern);
    let names = query.split('&').filter(|part| !part.is_empty()).map(|part| part.split('=').next().unwrap_or(part));
    for name in names {
        if !known.contains(&name) {
            let expected = if known.is_empty() { "none".to_string() } else { known.join(", ") };
            let name = bounds::shown(name);
            let message = format!("{method} {pattern} has no query parameter '{name}', expected {expected}");
            return Err(Refusal::invalid(name.as_str(), message));
        }
    }
    Ok(())
}

/// The token of `Bearer TOKEN`; the scheme's name is the same in lower case (RFC 9110, section 11.1).
pub(crate) fn bearer_token(value: &str) -> Option<&str> {
    let (scheme, token) = value.trim().split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim_start())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_name_is_kept_and_another_replaced() {
        let named = |name: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(HeaderName::from_static(REQUEST_ID), HeaderValue::from_static(name));
            id_of(&headers)
        };
        assert_eq!(named("trace-1.a:b/c"), "trace-1.a:b/c");
        for wrong in ["", "a b", "a\tb", "{}"] {
            assert!(named(wrong).starts_with("req-"), "{wrong:?}");
        }
        assert_ne!(id_of(&HeaderMap::new()), id_of(&HeaderMap::new()));
    }

    #[test]
    fn only_what_is_looked_at_may_be_asked() {
        assert!(check_query(("GET", "/api/v1/jobs"), "limit=3&state=running&after=a").is_ok());
        assert!(check_query(("HEAD", "/readyz"), "verbose").is_ok() && check_query(("GET", "/livez"), "").is_ok());
        assert!(check_query(("POST", "/api/v1/jobs"), "limit=3").is_err(), "who submits lists nothing");
        for (path, query) in [("/api/v1/jobs", "limt=3"), ("/api/v1/version", "limit=3"), ("/api/v1/hosts", "after=a")]
        {
            assert!(check_query(("GET", path), query).is_err(), "{path}?{query}");
        }
    }
}
