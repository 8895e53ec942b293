//! One generation as spans: its question, with groups of layers, and its decoding. Knows no tensor and no host.

use crate::{
    messages::Generate,
    trace::{self, LayerSpans, OpenSpan},
};

/// A generation under way.
#[derive(Debug)]
pub struct GenerationSpans {
    /// Dropped first: it ends no later than what it is a part of.
    step: OpenSpan,
    all: OpenSpan,
    has_asked: bool,
    tokens: usize,
}

impl GenerationSpans {
    /// Of an order whose spans are wanted.
    pub fn of(order: &Generate) -> Option<Self> {
        let job = **order.trace.as_ref().filter(|_| trace::is_wanted())?;
        let mut all = OpenSpan::under(job, "generate");
        all.annotate("asterism.job.number", order.job);
        all.annotate("asterism.context.number", order.context);
        all.annotate("asterism.holders", order.holders.len());
        all.annotate("asterism.generated.before", order.generated.len());
        let mut step = OpenSpan::under(all.context(), "question");
        step.annotate("asterism.query.tokens", order.query_ids.len());
        Some(Self { step, all, has_asked: false, tokens: 0 })
    }

    /// The layers of the question's pass.
    pub fn layers(&self, layers: usize) -> LayerSpans {
        LayerSpans::new(self.step.context(), layers)
    }

    /// The question is through, or one more token.
    pub fn stepped(&mut self) {
        if !self.has_asked {
            self.has_asked = true;
            self.step = OpenSpan::under(self.all.context(), "decode");
        }
        self.tokens += 1;
    }
}

impl Drop for GenerationSpans {
    fn drop(&mut self) {
        self.all.annotate("asterism.steps", self.tokens);
    }
}
