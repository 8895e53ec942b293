//! Spans of traces: who did what for a request from when to when, and how a trace goes from process to process. Exports nothing: who
//! runs the process says where its spans go, and where nobody does, none are made.

mod layers;

use std::{borrow::Cow, sync::OnceLock, time::Duration};

use tokio::time::Instant;

pub use layers::LayerSpans;

use crate::{api::TraceContext, machine::unix_time};

/// Takes a span that has ended; must not block.
pub type Sink = Box<dyn Fn(Span) + Send + Sync>;

static SINK: OnceLock<Sink> = OnceLock::new();

/// Has spans of this process go to `sink`; a second one changes nothing.
pub fn install(sink: Sink) {
    let _ = SINK.set(sink);
}

/// Whether anybody wants spans of this process.
pub fn is_wanted() -> bool {
    SINK.get().is_some()
}

/// What a span does in its trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A step within this system.
    Internal,
    /// A request from outside.
    Server,
}

/// What a span says beside its name.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "each is a value of its name")]
pub enum Value {
    Text(String),
    Integer(i64),
    Texts(Vec<String>),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<usize> for Value {
    fn from(number: usize) -> Self {
        Self::Integer(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Integer(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

/// Something that was done.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// Its trace and its own number.
    pub context: TraceContext,
    /// The span on whose behalf it was done; none of the first of a trace.
    pub parent: Option<u64>,
    /// What was done, of few names.
    pub name: Cow<'static, str>,
    /// What it does in its trace.
    pub kind: Kind,
    /// When it began and ended, since 1970.
    pub times: (Duration, Duration),
    /// What else there is to say.
    pub attributes: Vec<(&'static str, Value)>,
    /// Why it failed, if it did.
    pub error: Option<String>,
}

impl Span {
    /// Hands it to whoever wants it.
    pub fn finish(self) {
        if let Some(sink) = SINK.get() {
            sink(self);
        }
    }
}

/// A span under way, told when it is dropped.
#[derive(Debug)]
pub struct OpenSpan {
    span: Option<Span>,
    began: Instant,
    /// When it ended, where that is before it is dropped.
    ended: Option<Instant>,
}

impl OpenSpan {
    /// Begins now.
    pub fn new(context: TraceContext, parent: Option<u64>, (name, kind): (impl Into<Cow<'static, str>>, Kind)) -> Self {
        let begin = unix_time();
        let (attributes, error) = Default::default();
        let span = Span { context, parent, name: name.into(), kind, times: (begin, begin), attributes, error };
        Self { span: Some(span), began: Instant::now(), ended: None }
    }

    /// Begins a step on behalf of `parent`.
    pub fn under(parent: TraceContext, name: impl Into<Cow<'static, str>>) -> Self {
        Self::new(parent.child(), Some(parent.span), (name, Kind::Internal))
    }

    /// The context of what is done on its behalf.
    pub fn context(&self) -> TraceContext {
        self.span.as_ref().expect("until it is dropped").context
    }

    /// Has ended now, unless it is said to have ended later.
    fn until_now(&mut self) {
        self.ended = Some(Instant::now());
    }

    fn ended(&self) -> Instant {
        self.ended.unwrap_or_else(Instant::now)
    }

    /// Began before now.
    fn since(&mut self, began: Instant) {
        let before = self.began.saturating_duration_since(began);
        self.began = began;
        self.span.iter_mut().for_each(|span| span.times.0 = span.times.0.saturating_sub(before));
    }

    /// Says something more.
    pub fn annotate(&mut self, name: &'static str, value: impl Into<Value>) {
        if let Some(span) = &mut self.span {
            span.attributes.push((name, value.into()));
        }
    }

    /// Says that it failed.
    pub fn fail(&mut self, cause: impl Into<String>) {
        let cause = cause.into();
        self.span.iter_mut().for_each(|span| span.error = Some(cause.clone()));
    }
}

impl Drop for OpenSpan {
    fn drop(&mut self) {
        if let Some(mut span) = self.span.take() {
            span.times.1 = span.times.0 + self.ended.unwrap_or_else(Instant::now).saturating_duration_since(self.began);
            span.finish();
        }
    }
}
