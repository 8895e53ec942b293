//! What a browser is told about pages of other origins that the cluster file lets ask (the Fetch standard's CORS protocol). Refuses
//! nobody: a browser keeps to what it is told, and `origin` sees to the rest.

use actix_web::{
    Error, HttpResponse,
    body::{BoxBody, MessageBody},
    dev::{ServiceRequest, ServiceResponse},
    http::{
        Method,
        header::{
            self, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
            ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
            ACCESS_CONTROL_REQUEST_METHOD, HeaderMap, HeaderName, HeaderValue, ORIGIN, VARY,
        },
    },
    middleware::Next,
};

use super::request::REQUEST_ID;
use crate::cluster::Origins;

/// Methods that pages of other origins may use.
const CORS_METHODS: &str = "GET, POST, DELETE";
/// Seconds that a browser remembers what it was told.
const PREFLIGHT_KEPT_S: &str = "600";
/// Whether a page of a public address asks for one of a private network, and that it may.
const ASKS_PRIVATE: &str = "access-control-request-private-network";
const ALLOW_PRIVATE: HeaderName = HeaderName::from_static("access-control-allow-private-network");

/// Answers what a browser asks beforehand, and tells it in every answer who may read it.
pub async fn answer_cors(
    origins: Origins,
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<BoxBody>, Error> {
    let Some(allowed) = allowed(&origins, request.headers()) else {
        return Ok(next.call(request).await?.map_into_boxed_body());
    };
    let asks = request.method() == Method::OPTIONS && request.headers().contains_key(ACCESS_CONTROL_REQUEST_METHOD);
    let mut response = if asks {
        let answer = preflight(request.headers());
        request.into_response(answer)
    } else {
        next.call(request).await?.map_into_boxed_body()
    };
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, allowed);
    headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
    headers.append(VARY, HeaderValue::from_static("Origin"));
    Ok(response)
}

/// Headers of answers that pages of other origins may read, beside those that all may.
const EXPOSED: &str = "x-request-id, retry-after";
const _: () = assert!(REQUEST_ID.len() == "x-request-id".len());

/// Who is told that it may read an answer: the origin that asks.
fn allowed(origins: &Origins, headers: &HeaderMap) -> Option<HeaderValue> {
    let origin = headers.get(ORIGIN)?;
    origins.allows(origin.to_str().ok()?).then(|| origin.clone())
}

fn preflight(asked: &HeaderMap) -> HttpResponse {
    let mut answer = HttpResponse::NoContent();
    answer
        .insert_header((ACCESS_CONTROL_ALLOW_METHODS, CORS_METHODS))
        .insert_header((ACCESS_CONTROL_MAX_AGE, PREFLIGHT_KEPT_S));
    if let Some(wanted) = asked.get(ACCESS_CONTROL_REQUEST_HEADERS) {
        answer.insert_header((ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone()));
    }
    if asked.get(ASKS_PRIVATE).is_some_and(|asks| asks == "true") {
        answer.insert_header((ALLOW_PRIVATE, "true"));
    }
    answer.insert_header((header::CACHE_CONTROL, "no-store")).finish()
}
