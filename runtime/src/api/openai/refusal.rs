//! What this API refuses, in words that its clients know. Codes are those of the admin API.

use std::io;

use actix_web::{HttpRequest, error::QueryPayloadError, http::StatusCode};
use asterism_actors::{
    JobError,
    api::{ErrorBody, bounds},
};
use asterism_models::ModelError;

use crate::{
    api::http::error::{Refusal, parser_words},
    error::wording::nearest,
};

/// A job that was not taken; `text` is the field that context and query came in.
pub fn of_job(error: JobError, text: &'static str) -> Refusal {
    of_request(error, (text, "response_format"))
}

/// The same of a request whose field `form` asks for the form of its answer.
pub fn of_request(error: JobError, (text, form): (&'static str, &'static str)) -> Refusal {
    let body = error.body();
    let param = match body.param.as_deref() {
        Some("context" | "query" | "messages" | "prompt") => Some(text.to_owned()),
        Some("session") => Some("session_id".into()),
        Some("method") => Some("attention".into()),
        Some("constraint") => Some(form.into()),
        None => of_code(&error).map(str::to_owned),
        _ => body.param,
    };
    let message = match &error {
        // Clients know a context that is too long by the first words.
        JobError::TooLong { context, query, generated, maximum, bound, .. } => format!(
            "This model's maximum context length is {maximum} tokens{bound}. However, you requested {} tokens ({context} of context, \
             {query} of the question, {generated} to generate). Shorten the text or lower max_tokens",
            context.saturating_add(*query).saturating_add(*generated)
        ),
        JobError::TooLarge { cause, maximum, bound, .. } => format!(
            "This model's maximum context length is {maximum} tokens{bound}. However, {text} has {}",
            excess(cause)
        ),
        JobError::Invalid { param: "constraint", message } if form == "tools" => of_tool(message),
        _ => body.message,
    };
    let body = ErrorBody { message, param, code: body.code };
    match body.code.as_str() {
        "context_too_long" => Refusal::with(StatusCode::BAD_REQUEST, body),
        _ => Refusal::coded(body),
    }
}

/// Why the form of a call is refused, by its path in the parameters of the tool at fault.
fn of_tool(refused: &str) -> String {
    let found = || {
        let (before, behind) = refused.split_once(" at /anyOf/")?;
        let (at, behind) = behind.split_once("/properties/arguments")?;
        let (at, root) = (at.parse::<usize>().ok()?, if behind.starts_with('/') { "" } else { "/" });
        Some(format!("the parameters of tool {at}: {before} at {root}{behind}"))
    };
    found().unwrap_or_else(|| refused.to_owned())
}

/// What a text has too much of, and what to do.
fn excess(cause: &ModelError) -> String {
    match cause {
        ModelError::TooManyTokens { most } => format!("more than {most} tokens. Shorten it"),
        // It says itself what to do: a shorter text may have such a stretch, too.
        ModelError::Uncut { .. } => cause.to_string(),
        _ => format!("{cause}. Shorten it"),
    }
}

/// The field at fault where the error names none.
fn of_code(error: &JobError) -> Option<&'static str> {
    match error {
        JobError::Model(ModelError::Sampling { field, .. }) => Some(field),
        JobError::NoSession { .. }
        | JobError::SessionExpired { .. }
        | JobError::SessionFailed { .. }
        | JobError::ModelChanged { .. } => Some("session_id"),
        _ => None,
    }
}

/// A job that failed.
pub fn of_failure(error: ErrorBody) -> Refusal {
    let status = match error.code.as_str() {
        "timeout" => StatusCode::GATEWAY_TIMEOUT,
        "model_changed"
        | "session_not_found"
        | "session_expired"
        | "session_failed"
        | "placement_impossible"
        | "context_too_long" => {
            return Refusal::coded(error);
        }
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    Refusal::with(status, error)
}

/// A job that somebody cancelled.
pub fn cancelled() -> Refusal {
    Refusal::of(StatusCode::BAD_REQUEST, "job_cancelled", "the job of this request was cancelled")
}

/// A supervisor that ends.
pub fn stopping() -> Refusal {
    of_job(JobError::Stopping, "")
}

/// Something that is not there, or not for whoever asks.
pub fn not_found(what: &str, id: &str) -> Refusal {
    let message = format!("there is no {what} '{}'", bounds::shown(id));
    let body = ErrorBody { message, code: format!("{what}_not_found"), param: Some("id".into()) };
    Refusal::with(StatusCode::NOT_FOUND, body)
}

/// What stands behind the `?` and cannot be read.
pub fn of_query(error: QueryPayloadError, _: &HttpRequest) -> actix_web::Error {
    let cause = parser_words(&error);
    Refusal::invalid(None, format!("what stands behind the ? is not what is wanted here: {cause}")).into()
}

/// A disk that takes or gives nothing.
pub fn of_disk(error: &io::Error) -> Refusal {
    match error.kind() {
        io::ErrorKind::NotFound => not_found("file", "of this id"),
        _ => {
            let message = format!("the disk of data_dir does not do what is wanted: {error}");
            Refusal::of(StatusCode::INSUFFICIENT_STORAGE, "disk_full", message)
        }
    }
}

/// A field that is known and cannot be honoured.
pub fn unsupported(field: &str, expected: &str) -> Refusal {
    let message = format!("{field} cannot be honoured here: {expected}");
    let body = ErrorBody { message, code: "unsupported_parameter".into(), param: Some(field.into()) };
    Refusal::with(StatusCode::BAD_REQUEST, body)
}

/// Names of a request that are compared with one that it lacks.
const MOST_COMPARED: usize = 64;

/// That a field is missing, in these words, or the one of those that nobody knows that was perhaps to be it.
pub fn missing<'a>(name: &'static str, words: &str, unknown: impl Iterator<Item = &'a str>) -> Refusal {
    let meant = unknown.take(MOST_COMPARED).find(|given| nearest(given, [name]).is_some());
    match meant {
        Some(given) => self::unknown(given, [name]),
        None => Refusal::invalid(name, words),
    }
}

/// A field that nobody knows, among those that are known.
pub fn unknown<'a>(field: &str, known: impl IntoIterator<Item = &'a str>) -> Refusal {
    let meant = nearest(field, known).map_or("leave it out".to_owned(), |known| format!("did you mean {known}?"));
    let field = bounds::shown(field);
    let message = format!("there is no field {field} here; {meant}");
    let body = ErrorBody { message, code: "unknown_parameter".into(), param: Some(field) };
    Refusal::with(StatusCode::BAD_REQUEST, body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_form_of_calls_the_tool_is_named_whose_parameters_are_at_fault() {
        let path = "/anyOf/1/properties/arguments";
        for (form, at, expected) in [
            ("tools", format!("{path}/properties/b"), "the parameters of tool 1: refused at /properties/b: why"),
            ("tools", path.to_owned(), "the parameters of tool 1: refused at /: why"),
            ("tools", "/properties/a".to_owned(), "refused at /properties/a: why"),
            ("response_format", path.to_owned(), "refused at /anyOf/1/properties/arguments: why"),
        ] {
            let error = JobError::Invalid { param: "constraint", message: format!("refused at {at}: why") };
            assert_eq!(of_request(error, ("messages", form)).to_string(), expected);
        }
    }

    #[test]
    fn a_text_that_is_too_long_is_refused_in_whole_sentences() {
        for (cause, words) in [
            (ModelError::TooManyTokens { most: 8192 }, "However, prompt has more than 8192 tokens. Shorten it"),
            (
                ModelError::TooManyBytes { bytes: 90_000, most: 80_000, least_tokens: Some(9000) },
                "However, prompt has 90000 bytes of text, which are 9000 tokens at least, expected at most 80000 bytes. Shorten it",
            ),
            (
                ModelError::TooManyBytes { bytes: 90_000, most: 80_000, least_tokens: None },
                "However, prompt has 90000 bytes of text, expected at most 80000 bytes. Shorten it",
            ),
            (
                ModelError::Uncut { most: 4096 },
                "However, prompt has 4096 bytes of text without a place to cut it, such as one letter or spaces over and over; \
                 break them up with words or lines",
            ),
        ] {
            let (cause, model) = (Box::new(cause), "moon".to_owned());
            let error = JobError::TooLarge { param: "context", cause, maximum: 8192, model, bound: "" };
            let refusal = of_job(error, "prompt");
            let expected = format!("This model's maximum context length is 8192 tokens. {words}");
            assert_eq!((refusal.code(), refusal.to_string()), ("context_too_long", expected));
        }
    }
}
