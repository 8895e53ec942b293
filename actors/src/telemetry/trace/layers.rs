//! A pass through the layers as spans of a few layers each. Knows no tensor.

use tokio::time::Instant;

use super::OpenSpan;
use crate::api::TraceContext;

/// Spans of a pass.
const GROUPS: usize = 4;

/// The layers of one pass, told group by group.
#[derive(Debug)]
pub struct LayerSpans {
    parent: TraceContext,
    /// Layers of a group, and of all.
    group: (usize, usize),
    open: Option<OpenSpan>,
    /// Of the group that is open.
    number: usize,
}

impl LayerSpans {
    /// A pass through so many layers begins, on behalf of `parent`.
    pub fn new(parent: TraceContext, layers: usize) -> Self {
        let mut spans = Self { parent, group: (layers.div_ceil(GROUPS).max(1), layers), open: None, number: 0 };
        spans.begin(0);
        spans
    }

    /// Layer `done`, counted from 1, is through; several shards may say so of the same one.
    pub fn done(&mut self, done: usize) {
        let number = done.saturating_sub(1) / self.group.0;
        if number != self.number {
            self.begin(number);
        }
        if let Some(open) = &mut self.open {
            open.until_now();
        }
    }

    fn begin(&mut self, number: usize) {
        // What was open ended with its last layer, and what begins began there.
        let before = self.open.take();
        let since = before.as_ref().map(OpenSpan::ended);
        let (first, last) = (number * self.group.0, ((number + 1) * self.group.0).min(self.group.1));
        let mut open = OpenSpan::under(self.parent, format!("layers {first} to {}", last.saturating_sub(1)));
        since.into_iter().for_each(|since: Instant| open.since(since));
        open.annotate("asterism.layer.first", first);
        open.annotate("asterism.layer.last", last.saturating_sub(1));
        (self.open, self.number) = (Some(open), number);
    }
}
