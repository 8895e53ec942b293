//! A request as the span that everything done for it is under. Opens none where nobody wants spans, or the client wants none.

use actix_web::{HttpRequest, http::StatusCode};
use asterism_actors::{
    api::{FinishReason, JobStatus, TraceContext},
    trace::{self, Kind, OpenSpan, Value},
};

use super::error::Refusal;

/// What clients name the span in which they ask.
const TRACEPARENT: &str = "traceparent";

/// A request under way, told when it is dropped.
#[derive(Debug)]
pub struct RequestSpan(OpenSpan);

impl RequestSpan {
    /// Of a request for `operation` (`gen_ai.operation.name`), under the client's own span where it names one.
    pub fn of(request: &HttpRequest, operation: &'static str) -> Option<Self> {
        if !trace::is_wanted() {
            return None;
        }
        let parent = request.headers().get(TRACEPARENT).and_then(|text| text.to_str().ok());
        let (context, parent) = match parent.map(TraceContext::sampled) {
            Some(Ok(None)) => return None,
            Some(Ok(Some(parent))) => (parent.child(), Some(parent.span)),
            // Who sends something else starts a trace, as the standard has it.
            Some(Err(_)) | None => (TraceContext::drawn(), None),
        };
        let pattern = request.match_pattern().unwrap_or_default();
        let mut open = OpenSpan::new(context, parent, (format!("{} {pattern}", request.method()), Kind::Server));
        open.annotate("http.request.method", request.method().as_str());
        open.annotate("http.route", pattern.as_str());
        open.annotate("gen_ai.operation.name", operation);
        open.annotate("gen_ai.provider.name", "asterism");
        Some(Self(open))
    }

    /// What jobs that it brings are under.
    pub fn context(&self) -> TraceContext {
        self.0.context()
    }

    /// The model that it asks.
    pub fn asks(&mut self, model: &str) {
        self.0.annotate("gen_ai.request.model", model);
    }

    /// It was answered with this status.
    pub fn answered(&mut self, status: StatusCode) {
        self.0.annotate("http.response.status_code", usize::from(status.as_u16()));
    }

    /// Its job has ended.
    pub fn ended(&mut self, status: &JobStatus) {
        let reason = match status.finish_reason {
            Some(FinishReason::Stop) => "stop",
            Some(FinishReason::Length) => "length",
            None => "error",
        };
        self.0.annotate("gen_ai.response.id", status.id.as_str());
        self.0.annotate("gen_ai.response.model", status.model.as_str());
        self.0.annotate("gen_ai.response.finish_reasons", Value::Texts(vec![reason.to_owned()]));
        self.0.annotate("gen_ai.usage.input_tokens", status.context_tokens + status.query_tokens);
        self.0.annotate("gen_ai.usage.output_tokens", status.generated_tokens);
        if let Some(error) = &status.error {
            self.0.annotate("error.type", error.code.as_str());
            self.0.fail(error.message.as_str());
        }
    }

    /// It was refused.
    pub fn refused(&mut self, refusal: &Refusal) {
        self.0.annotate("error.type", refusal.code());
        self.answered(refusal.status());
        if refusal.status() >= StatusCode::INTERNAL_SERVER_ERROR {
            self.0.fail(refusal.to_string());
        }
    }
}
