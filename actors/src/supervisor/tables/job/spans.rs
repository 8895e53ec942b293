//! What a job took, as spans of its request's trace. Sends none.

use std::time::Duration;

use super::{Job, JobFacts, JobProgress, PhaseTimes};
use crate::{
    api::JobTrace,
    trace::{Kind, Span},
};

impl Job {
    /// What it took, as spans: itself, and each phase under it.
    pub(in crate::supervisor) fn spans(&self) -> Vec<Span> {
        let (Some(JobTrace { own, parent }), Some(ended)) = (self.question.trace, self.clock.ended) else {
            return Vec::new();
        };
        let (JobFacts { id, method, model, .. }, JobProgress { error, state, .. }) = (&self.facts, &self.progress);
        let error = error.as_ref().map(|error| format!("{}: {}", error.code, error.message));
        let internal = |context, name: &'static str, times| Span {
            context,
            parent: Some(own.span),
            name: name.into(),
            kind: Kind::Internal,
            times,
            attributes: Vec::new(),
            error: None,
        };
        let mut job = internal(own, "job", (self.clock.submitted, ended));
        (job.parent, job.error) = (Some(parent), error);
        job.attributes = vec![
            ("asterism.job.id", id.as_str().into()),
            ("asterism.job.number", self.number.into()),
            ("asterism.job.state", format!("{state:?}").to_uppercase().as_str().into()),
            ("asterism.method", method.as_str().into()),
            ("asterism.context.number", self.context.into()),
            ("asterism.context.tokens", self.facts.context_tokens.into()),
            ("asterism.query.tokens", self.facts.query_tokens.into()),
            ("asterism.recoveries", self.progress.recoveries.len().into()),
            ("gen_ai.request.model", model.as_str().into()),
        ];
        let PhaseTimes { submitted, encoding, querying, decoding, .. } = self.clock;
        let phases =
            [("queued", Some(submitted)), ("encoding", encoding), ("querying", querying), ("decoding", decoding)];
        let began: Vec<(&str, Duration)> =
            phases.into_iter().filter_map(|(name, began)| Some((name, began?))).collect();
        let ends = began.iter().skip(1).map(|(_, next)| *next).chain([ended]);
        let phases = (0..).zip(&began).zip(ends);
        let phases = phases.map(|((number, (name, began)), end)| internal(own.nth(number), name, (*began, end)));
        phases.chain([job]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        api::{JobPhase, JobState, TraceContext},
        supervisor::tables::job::{Outcome, Question, Restored},
    };

    fn ended(trace: Option<JobTrace>) -> Vec<Span> {
        let second = Duration::from_secs;
        let facts = serde_json::json!({
            "id": "j", "created_at": 10, "method": "dense", "model": "m", "context_tokens": 3, "query_tokens": 2,
            "refreshed_tokens": 0, "labels": {},
        });
        let facts = serde_json::from_value(facts).expect("facts");
        let progress = JobProgress { state: JobState::Running, ..JobProgress::new(0) };
        let clock = PhaseTimes {
            submitted: second(10),
            encoding: Some(second(11)),
            querying: Some(second(14)),
            ..PhaseTimes::default()
        };
        let question = Question { trace, ..Question::default() };
        let (number, context, phase) = (7, 8, JobPhase::Decoding);
        let mut job = Job::restored(Restored { number, context, facts, progress, question, clock, phase });
        job.finish(second(20), Outcome::Failed { code: "timeout".into(), message: "too late".into() });
        job.spans()
    }

    #[test]
    fn phases_lie_in_the_job_and_the_job_in_its_request() {
        assert_eq!(ended(None), []);
        let request = TraceContext::drawn();
        let trace = JobTrace::under(request);
        let spans = ended(Some(trace));
        let shown: Vec<_> =
            spans.iter().map(|span| (&*span.name, span.times.0.as_secs(), span.times.1.as_secs())).collect();
        assert_eq!(shown, [("queued", 10, 11), ("encoding", 11, 14), ("querying", 14, 20), ("job", 10, 20)]);
        assert!(spans.iter().all(|span| span.context.trace == request.trace));
        assert!(spans[..3].iter().all(|span| span.parent == Some(trace.own.span) && span.context != trace.own));
        let job = &spans[3];
        assert_eq!((job.context, job.parent), (trace.own, Some(request.span)));
        assert_eq!(job.error.as_deref(), Some("timeout: too late"));
    }
}
