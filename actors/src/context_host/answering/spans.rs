//! What a context host answers over an attachment, as a span of the job that asks. Computes nothing.

use std::time::Duration;

use crate::{api::TraceContext, context_host::answering::attending::Attached, trace::OpenSpan};

/// Answers under way.
#[derive(Debug)]
pub struct AnsweringSpan {
    span: OpenSpan,
    queries: usize,
    computing: Duration,
}

impl AnsweringSpan {
    /// Of what a job attached.
    pub fn of(job: TraceContext, attached: &Attached) -> Self {
        let mut span = OpenSpan::under(job, "answer queries");
        span.annotate("asterism.context.number", attached.context);
        span.annotate("asterism.shards", attached.blocks.len());
        span.annotate("asterism.shards.first", attached.blocks.first().map_or(0, |block| *block as usize));
        Self { span, queries: 0, computing: Duration::ZERO }
    }

    /// Rows are asked for a layer.
    pub fn asked(&mut self, layer: usize, rows: u32) {
        self.queries += if layer == 0 { rows as usize } else { 0 };
    }

    /// They were computed, with others' that came in the same frame.
    pub fn computed(&mut self, took: Duration) {
        self.computing += took;
    }
}

impl Drop for AnsweringSpan {
    fn drop(&mut self) {
        self.span.annotate("asterism.queries", self.queries);
        self.span.annotate("asterism.computing_us", self.computing.as_micros() as usize);
    }
}
