//! Whether a job is taken in, or given up. Looks, and changes nothing.

use std::collections::BTreeSet;

use super::AdmissionControl;
use crate::{
    error::JobError,
    supervisor::{
        fingerprint::Fingerprint,
        journal::{
            change::{Decided, Effect, Submission},
            record,
        },
        tables::{
            context::{Context, ContextOwner},
            job::{Job, JobFacts, Outcome, PreparedJob, Source},
            prepared::PreparedContext,
        },
    },
};

impl AdmissionControl<'_> {
    /// The job of this id, when the request was the same.
    ///
    /// # Errors
    /// [`JobError::IdTaken`] when it was another.
    pub fn repeated(&self, id: &str, fingerprint: Option<Fingerprint>) -> Result<Option<u64>, JobError> {
        match self.jobs.number(id).and_then(|number| self.jobs.get(number)) {
            Some(job) if job.fingerprint == fingerprint => Ok(Some(job.number)),
            Some(_) => Err(JobError::IdTaken { id: id.to_string() }),
            None => Ok(None),
        }
    }

    /// What taking a job in under `number` changes, and the number that it has: the same request with the same
    /// id is the first job.
    ///
    /// # Errors
    /// When the id is another job's, the queue is full, the context has no room, or the session is not there.
    pub fn submit(&self, number: u64, mut prepared: PreparedJob) -> Result<(u64, Decided), JobError> {
        if let Some(job) = self.repeated(&prepared.id, prepared.fingerprint)? {
            return Ok((job, Decided::new(self.now, Vec::new(), Effect::Nothing)));
        }
        self.check_queue(&prepared)?;
        if let (Source::Context(_), Some(refresh)) = (&prepared.source, &mut prepared.question.refresh_order) {
            refresh.context = number;
        }
        let mut changes = vec![self.cluster_record(number)];
        let submission = match &prepared.source {
            Source::Session(name) => {
                let session = self.sessions.find(name)?.asked();
                if prepared
                    .question
                    .refresh_order
                    .as_ref()
                    .is_some_and(|refresh_order| refresh_order.context != session.context)
                {
                    return Err(JobError::SessionReplaced { name: name.clone() });
                }
                changes.push(record::session(&session));
                let facts = self.facts(&prepared, &self.contexts[session.context].prepared);
                let mut job = Job::new((number, session.context), self.now, facts, &prepared);
                job.key = self.contexts[session.context].prepared.key.clone();
                job.progress.reused_tokens = job.facts.context_tokens;
                Submission { job, context: None, session: Some(session) }
            }
            Source::Context(context) => {
                self.selection().check_room(context, &BTreeSet::new())?;
                let facts = self.facts(&prepared, context);
                let context = Context::new((number, self.now), ContextOwner::Job(number), context.clone());
                changes.extend(record::context(&context));
                let mut job = Job::new((number, number), self.now, facts, &prepared);
                job.key = context.prepared.key.clone();
                Submission { job, context: Some(context), session: None }
            }
        };
        changes.push(record::job(&submission.job));
        Ok((number, Decided::new(self.now, changes, Effect::Submit(Box::new(submission)))))
    }

    /// What cancelling a job changes.
    ///
    /// # Errors
    /// When there is none, or it has ended.
    pub fn cancel(&self, id: &str) -> Result<Decided, JobError> {
        let number = self.jobs.number(id).ok_or_else(|| JobError::NotFound { id: id.to_string() })?;
        let mut job = self.jobs.get(number).expect("found by its id").clone();
        if job.has_ended() {
            return Err(JobError::Ended {
                id: id.to_string(),
                state: format!("{:?}", job.progress.state).to_uppercase(),
            });
        }
        job.finish(self.now, Outcome::Cancelled);
        let mut changes = vec![record::job(&job)];
        if !self.uses().is_of_session(job.context) && !self.uses().is_asked_beside(job.context, Some(number)) {
            changes.extend(record::no_context(job.context));
        }
        Ok(Decided::new(self.now, changes, Effect::Cancel(number)))
    }

    /// What never changes of a job that is taken in now, and how many tokens of its context need not be encoded for it.
    fn facts(&self, prepared: &PreparedJob, context: &PreparedContext) -> (JobFacts, usize) {
        let refreshed_tokens =
            prepared.question.refresh_order.as_ref().map_or(0, |refresh_order| refresh_order.refresh.tokens());
        let (question, scored_tokens) = (&prepared.question, prepared.question.choice.scored_tokens());
        // A prompt that is nothing but a question sees no context, though there has to be one.
        let context_tokens = if question.is_alone() { 0 } else { context.plan.context_tokens };
        let (session, cached) = match &prepared.source {
            Source::Session(name) => (Some(name.clone()), context_tokens.saturating_sub(refreshed_tokens)),
            Source::Context(_) => (None, 0),
        };
        let facts = JobFacts {
            id: prepared.id.clone(),
            created_at: self.now.as_secs(),
            method: context.plan.method.name.clone(),
            method_reason: context.plan.method.reason.clone(),
            model: self.config.model(context.model()).unwrap_or(self.config.first_model()).name.clone(),
            session,
            template_date: context.template_date,
            context_tokens,
            query_tokens: question.query_ids.len() + scored_tokens,
            scored_tokens,
            refreshed_tokens,
            labels: prepared.labels.clone(),
        };
        (facts, cached)
    }
}
