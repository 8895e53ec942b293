//! Whether a job is taken in, or given up. Looks, and changes nothing.

use std::collections::BTreeSet;

use super::AdmissionControl;
use crate::{
    api::{JobPhase, JobState, JobStatus},
    error::JobError,
    supervisor::{
        fingerprint::Fingerprint,
        journal::{
            change::{Decided, Effect, Submission},
            record,
        },
        tables::{
            context::{Context, Owner},
            job::{Job, Outcome, PreparedJob, Source},
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
    pub fn submit(&self, number: u64, prepared: PreparedJob) -> Result<(u64, Decided), JobError> {
        if let Some(job) = self.repeated(&prepared.id, prepared.fingerprint)? {
            return Ok((job, Decided::new(self.now, Vec::new(), Effect::Nothing)));
        }
        self.check_queue(&prepared)?;
        let mut changes = vec![self.cluster_record(number)];
        let submission = match &prepared.source {
            Source::Session(name) => {
                let session = self.sessions.find(name)?.asked();
                if prepared.question.anew.as_ref().is_some_and(|anew| anew.context != session.context) {
                    return Err(JobError::SessionReplaced { name: name.clone() });
                }
                changes.push(record::session(&session));
                let status = self.first_status(&prepared, &self.contexts[session.context].prepared);
                let mut job = Job::new((number, session.context), self.now, status, &prepared);
                job.key = self.contexts[session.context].prepared.key.clone();
                Submission { job, context: None, session: Some(session) }
            }
            Source::Context(context) => {
                self.selection().check_room(context, &BTreeSet::new())?;
                let status = self.first_status(&prepared, context);
                let context = Context::new((number, self.now), Owner::Job(number), context.clone());
                changes.extend(record::context(&context));
                let mut job = Job::new((number, number), self.now, status, &prepared);
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
                state: format!("{:?}", job.status.state).to_uppercase(),
            });
        }
        job.finish(self.now, Outcome::Cancelled);
        let mut changes = vec![record::job(&job)];
        if !self.uses().is_of_session(job.context) && !self.uses().is_asked_beside(job.context, Some(number)) {
            changes.extend(record::no_context(job.context));
        }
        Ok(Decided::new(self.now, changes, Effect::Cancel(number)))
    }

    /// What clients see of a job that is taken in now.
    fn first_status(&self, prepared: &PreparedJob, context: &PreparedContext) -> JobStatus {
        JobStatus {
            id: prepared.id.clone(),
            created_at: self.now.as_secs(),
            waiting: None,
            state: JobState::Pending,
            phase: Some(JobPhase::Queued),
            method: context.plan.method.name.clone(),
            method_reason: context.plan.method.reason.clone(),
            model: self.config.model.clone(),
            session: match &prepared.source {
                Source::Session(name) => Some(name.clone()),
                Source::Context(_) => None,
            },
            template_date: context.template_date,
            context_tokens: context.plan.context_tokens,
            query_tokens: prepared.question.query_ids.len(),
            refreshed_tokens: prepared.question.anew.as_ref().map_or(0, |anew| anew.refresh.tokens()),
            cached_tokens: match &prepared.source {
                Source::Session(_) => {
                    let anew = prepared.question.anew.as_ref().map_or(0, |anew| anew.refresh.tokens());
                    context.plan.context_tokens.saturating_sub(anew)
                }
                Source::Context(_) => 0,
            },
            generated_tokens: 0,
            text: String::new(),
            tokens: Vec::new(),
            logprobs: Vec::new(),
            finish_reason: None,
            error: None,
            labels: prepared.labels.clone(),
            attention_sparsity: None,
            mixed_numerics: false,
            recoveries: Vec::new(),
            timings: Default::default(),
        }
    }
}
