//! `{"error": {message, type, code, param}}`: stable codes, and the HTTP status each has.

use std::fmt;

use actix_web::{
    HttpRequest, HttpResponse, HttpResponseBuilder, ResponseError,
    http::{StatusCode, header},
};
use asterism_actors::{
    JobError,
    api::{ErrorBody, bounds},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::error::wording::reworded;

/// Characters of a parser's message that a refusal repeats.
const CAUSE_CHARS: usize = 300;

/// The body of every answer that is no success.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ErrorEnvelope {
    /// What went wrong.
    pub error: ErrorObject,
}

/// What went wrong.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ErrorObject {
    /// For a person.
    pub message: String,
    /// `invalid_request_error`, `authentication_error`, `not_found_error`, `overloaded_error` or `server_error`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Stable code.
    pub code: String,
    /// The request field at fault, if one is.
    pub param: Option<String>,
    /// The request's name, as the log has it.
    #[serde(default)]
    pub request_id: Option<String>,
}

/// A request refused.
#[derive(Clone, Debug, Error)]
#[error("{message}")]
pub struct Refusal {
    status: StatusCode,
    code: String,
    message: String,
    param: Option<String>,
    /// Methods that the path has, where this one is none of them.
    allow: Option<String>,
}

impl Refusal {
    /// No token, or a wrong one.
    pub fn unauthorized() -> Self {
        Self::new(
            StatusCode::UNAUTHORIZED,
            "unauthorized",
            "this admin API wants a token: send `Authorization: Bearer TOKEN` (`--token-file FILE`)",
        )
    }

    /// The cluster gives no certificates to nodes.
    pub fn joining_closed() -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            "joining_closed",
            "this cluster takes no nodes by token: its cluster file has no [security] join_listen",
        )
    }

    /// A field or parameter that is not as it has to be.
    pub fn invalid<'a>(param: impl Into<Option<&'a str>>, message: impl fmt::Display) -> Self {
        let param = param.into().map(str::to_owned);
        Self { param, ..Self::new(StatusCode::BAD_REQUEST, "invalid_request", message) }
    }

    /// A request for the cluster called `meant`, which is not this one.
    pub fn other_cluster(meant: &str, cluster: &str) -> Self {
        let message =
            format!("this is cluster '{cluster}', and the request is for cluster '{meant}'; nothing was done");
        Self::new(StatusCode::MISDIRECTED_REQUEST, "other_cluster", message)
    }

    /// A request for a cluster called like this one, `cluster`, that keeps what it keeps elsewhere.
    pub fn other_data_dir(cluster: &str) -> Self {
        let message = format!(
            "this is a cluster '{cluster}' that runs from another data_dir than the one that the request is for; nothing was done"
        );
        Self::new(StatusCode::MISDIRECTED_REQUEST, "other_cluster", message)
    }

    /// A body of another type than JSON.
    pub fn media_type(got: &str) -> Self {
        let got = if got.is_empty() { "none".to_string() } else { format!("'{}'", bounds::shown(got)) };
        let message = format!("the request body's Content-Type is {got}, expected application/json: send that header");
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message)
    }

    /// A compressed body.
    pub fn content_encoding(got: &str) -> Self {
        let message = format!(
            "the request body's Content-Encoding is '{}', expected none: send the JSON as it is",
            bounds::shown(got)
        );
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message)
    }

    /// A refusal of HTTP's own making.
    pub fn of(status: StatusCode, code: &str, message: impl fmt::Display) -> Self {
        Self::new(status, code, message)
    }

    /// An error with its code, under a status of the caller's choice.
    pub fn with(status: StatusCode, body: ErrorBody) -> Self {
        Self { status, code: body.code, message: body.message, param: body.param, allow: None }
    }

    /// The same under the code's own status.
    pub fn coded(body: ErrorBody) -> Self {
        Self::with(status_of(&body.code), body)
    }

    /// The supervisor's machine failed.
    pub fn failed(code: &str, cause: impl fmt::Display) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, code, cause)
    }

    /// The supervisor cannot start yet.
    pub fn waiting(code: &str, cause: impl fmt::Display) -> Self {
        let what = format!("the supervisor waits and goes on by itself: {cause}");
        Self::new(StatusCode::SERVICE_UNAVAILABLE, code, what)
    }

    /// Another supervisor leads.
    pub fn standby(cause: impl fmt::Display) -> Self {
        let what = format!("this supervisor stands by: {cause}. Ask that one, or name all of them in --server");
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "standby", what)
    }

    fn new(status: StatusCode, code: &str, message: impl fmt::Display) -> Self {
        Self { status, code: code.to_owned(), message: message.to_string(), param: None, allow: None }
    }
}

impl From<JobError> for Refusal {
    fn from(error: JobError) -> Self {
        Self::coded(error.body())
    }
}

impl ResponseError for Refusal {
    fn status_code(&self) -> StatusCode {
        self.status
    }

    fn error_response(&self) -> HttpResponse {
        self.answer(None)
    }
}

impl Refusal {
    /// Its HTTP status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Its stable code.
    pub fn code(&self) -> &str {
        &self.code
    }

    /// The answer to the request of this name.
    pub fn answer(&self, request_id: Option<&str>) -> HttpResponse {
        self.response().json(self.envelope(request_id))
    }

    /// The same, as clients of Anthropic's API read it.
    pub fn answer_message(&self, request_id: Option<&str>) -> HttpResponse {
        self.response().json(self.message_envelope(request_id))
    }

    fn response(&self) -> HttpResponseBuilder {
        let mut response = HttpResponse::build(self.status);
        if [StatusCode::SERVICE_UNAVAILABLE, StatusCode::TOO_MANY_REQUESTS].contains(&self.status) {
            response.insert_header((header::RETRY_AFTER, "1"));
        }
        if self.code == "timeout" {
            // Who asks again waits as long again, and OpenAI's clients ask three times by themselves.
            response.insert_header(("x-should-retry", "false"));
        }
        if let Some(allow) = &self.allow {
            response.insert_header((header::ALLOW, allow.as_str()));
        }
        if [StatusCode::REQUEST_TIMEOUT, StatusCode::UNAUTHORIZED].contains(&self.status) {
            response.force_close();
        }
        response
    }

    /// The body of the answer to the request of this name.
    pub fn envelope(&self, request_id: Option<&str>) -> ErrorEnvelope {
        let kind = match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::NOT_FOUND | StatusCode::GONE => "not_found_error",
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => "overloaded_error",
            status if status.is_client_error() => "invalid_request_error",
            _ => "server_error",
        };
        ErrorEnvelope {
            error: ErrorObject {
                message: self.message.clone(),
                kind: kind.to_owned(),
                code: self.code.clone(),
                param: self.param.clone(),
                request_id: request_id.map(str::to_owned),
            },
        }
    }
}

/// The body of a refusal of Anthropic's API.
#[derive(Clone, Debug, Serialize)]
pub struct MessageErrorEnvelope {
    #[serde(rename = "type")]
    kind: &'static str,
    error: ErrorObject,
    request_id: Option<String>,
}

impl Refusal {
    /// The body of the answer to the request of this name, as clients of Anthropic's API read it.
    pub fn message_envelope(&self, request_id: Option<&str>) -> MessageErrorEnvelope {
        let mut error = self.envelope(request_id).error;
        error.kind = match self.status {
            StatusCode::PAYLOAD_TOO_LARGE => "request_too_large".to_owned(),
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error".to_owned(),
            StatusCode::FORBIDDEN => "permission_error".to_owned(),
            StatusCode::GATEWAY_TIMEOUT => "timeout_error".to_owned(),
            status if status.is_server_error() && status != StatusCode::SERVICE_UNAVAILABLE => "api_error".to_owned(),
            _ => error.kind,
        };
        MessageErrorEnvelope { kind: "error", error, request_id: request_id.map(str::to_owned) }
    }
}

fn status_of(code: &str) -> StatusCode {
    match code {
        "job_not_found" | "session_not_found" | "host_not_found" | "model_not_found" => StatusCode::NOT_FOUND,
        "job_exists" | "job_ended" | "session_exists" | "last_host" | "spare_busy" | "host_conflict"
        | "session_busy" | "session_replaced" | "session_rewritten" => StatusCode::CONFLICT,
        "session_expired" => StatusCode::GONE,
        "context_too_long" => StatusCode::PAYLOAD_TOO_LARGE,
        "not_ready"
        | "overloaded"
        | "stopping"
        | "capacity_exhausted"
        | "self_test_failed"
        | "journal_unreachable"
        | "journal_deposed" => StatusCode::SERVICE_UNAVAILABLE,
        "internal" => StatusCode::INTERNAL_SERVER_ERROR,
        "disk_full" | "journal_io" => StatusCode::INSUFFICIENT_STORAGE,
        "model_changed" | "placement_impossible" | "session_failed" => StatusCode::UNPROCESSABLE_ENTITY,
        _ => StatusCode::BAD_REQUEST,
    }
}

/// The answer to a body that comes too slowly.
pub fn too_slow() -> Refusal {
    let message = "the request body came too slowly; send it in one go, at 64 KiB a second at least";
    Refusal::new(StatusCode::REQUEST_TIMEOUT, "request_timeout", message)
}

/// The answer to a body that cannot be read: parsers repeat what they read, however long it is.
pub fn no_request(param: Option<&str>, cause: &str) -> Refusal {
    Refusal::invalid(param, format!("the request body is not what is wanted here: {}", parser_words(&cause)))
}

/// What a parser says, reworded and bounded, on one line. Parsers quote and escape texts themselves: what is escaped here is what they
/// repeat as it came.
pub fn parser_words(cause: &dyn fmt::Display) -> String {
    let mut words = String::new();
    for character in reworded(&cause.to_string()).chars().take(CAUSE_CHARS) {
        match character {
            '"' | '\'' | '\\' => words.push(character),
            _ => words.extend(character.escape_debug()),
        }
    }
    words
}

/// The answer to a path that cannot be read.
pub fn of_path(_: actix_web::error::PathError, _: &HttpRequest) -> actix_web::Error {
    Refusal::invalid(None, "a part of the path is not UTF-8 text").into()
}

/// The answer to a path that is not there.
pub async fn no_such_path(request: HttpRequest) -> Result<HttpResponse, Refusal> {
    Err(nothing_at(&request, &[]))
}

/// The same, for a request that has not reached a handler, and whose path has these methods.
pub fn nothing_at(request: &HttpRequest, methods: &[&str]) -> Refusal {
    if !methods.is_empty() {
        let (method, path, allow) = (request.method(), bounds::shown(request.path()), methods.join(", "));
        let message = format!("{path} has no {method}, expected {allow}");
        let refusal = Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message);
        return Refusal { allow: Some(allow), ..refusal };
    }
    Refusal::new(
        StatusCode::NOT_FOUND,
        "not_found",
        format!("there is no {} {}", request.method(), bounds::shown(request.path())),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_parser_quotes_is_escaped_once() {
        for (body, words) in [
            (r#""5""#, r#"invalid type: string "5""#),
            (r#""it's""#, r#"invalid type: string "it's""#),
            (r#""\u001b\"""#, r#"invalid type: string "\u{1b}\"""#),
        ] {
            let error = serde_json::from_str::<u64>(body).expect_err(body);
            let said = parser_words(&error);
            assert!(said.starts_with(&format!("{words}, expected a whole number from 0 on")), "{said}");
        }
        assert_eq!(
            parser_words(&"unknown field `\u{1b}\n\u{202e}`"),
            r"unknown field `\u{1b}\n\u{202e}`; none is known here"
        );
        assert_eq!(parser_words(&"x".repeat(1 << 20)).len(), CAUSE_CHARS);
    }

    /// Clients branch on the type: what is in conflict is there.
    #[test]
    fn a_refusal_has_the_type_of_its_status() {
        for (code, status, kind) in [
            ("session_busy", 409, "invalid_request_error"),
            ("job_exists", 409, "invalid_request_error"),
            ("session_not_found", 404, "not_found_error"),
            ("session_expired", 410, "not_found_error"),
            ("overloaded", 503, "overloaded_error"),
            ("sampling", 400, "invalid_request_error"),
            ("internal", 500, "server_error"),
        ] {
            let body = ErrorBody { message: String::new(), code: code.to_owned(), param: None };
            let refusal = Refusal::coded(body);
            assert_eq!(
                (refusal.status().as_u16(), refusal.envelope(None).error.kind.as_str()),
                (status, kind),
                "{code}"
            );
        }
    }
}
