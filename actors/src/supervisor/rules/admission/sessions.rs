//! Whether a session is taken in, grows, lives on or ends. Looks, and changes nothing.

use std::{collections::BTreeSet, time::Duration};

use super::AdmissionControl;
use crate::{
    api::{JobState, bounds},
    error::JobError,
    supervisor::{
        journal::{
            change::{Decided, Effect},
            record,
        },
        tables::{
            context::{Context, ContextOwner},
            prepared::{
                PreparedContext,
                asked_session::AskedSession,
                text::{Answered, KeptTurn},
            },
            sessions::Session,
        },
    },
};

impl AdmissionControl<'_> {
    /// What taking a session in under `number` changes; its context then waits for its turn. `ttl`: the cluster's default
    /// where none is given.
    ///
    /// # Errors
    /// When the name is taken or is none, or its keys and values have no room.
    pub fn create_session(
        &self,
        number: u64,
        name: &str,
        prepared: PreparedContext,
        ttl: Option<Duration>,
    ) -> Result<Decided, JobError> {
        bounds::name("name", name)?;
        if self.sessions.get(name).is_some() {
            return Err(JobError::SessionExists { name: name.to_string() });
        }
        if self.sessions.count() >= self.config.max_queue {
            return Err(JobError::Overloaded { waiting: self.sessions.count() });
        }
        self.check_bytes(prepared.bytes())?;
        self.check_pinned(prepared.weight().kv_bytes)?;
        self.selection().check_room(&prepared, &BTreeSet::new())?;
        let ttl = ttl.unwrap_or(self.config.sessions.default_ttl);
        let (hits, error, append, append_error) = Default::default();
        let (name, expires) = (name.to_string(), self.now + ttl);
        let session = Session { name, context: number, ttl, expires, hits, error, append, append_error };
        let context = Context::new((number, self.now), ContextOwner::Session(session.name.clone()), prepared);
        let mut changes = vec![self.cluster_record(number), record::session(&session)];
        changes.extend(record::context(&context));
        Ok(Decided::new(self.now, changes, Effect::Create(session, Box::new(context))))
    }

    /// What a question to a session is prepared for.
    pub fn asked_session(&self, name: &str) -> Result<AskedSession, JobError> {
        let context = self.sessions.find(name)?.context;
        Ok(AskedSession::of(context, &self.contexts[context].prepared))
    }

    /// A session as an append is prepared for it, and a question that was asked it, with its answer.
    ///
    /// # Errors
    /// When there is no such session, or it cannot be asked; when `job` was not answered, or asked something else.
    pub fn grown_session(&self, name: &str, job: Option<&str>) -> Result<(AskedSession, Answered), JobError> {
        let session = self.asked_session(name)?;
        let Some(id) = job else { return Ok((session, Answered::default())) };
        let job = self.jobs.number(id).and_then(|number| self.jobs.get(number));
        let job = job.ok_or_else(|| JobError::NotFound { id: id.to_string() })?;
        let (asked, state) = (job.facts.session.as_deref(), job.progress.state);
        if asked != Some(name) || state != JobState::Succeeded {
            let of = asked.map_or("no session".to_string(), |asked| format!("session {asked}"));
            let message = format!(
                "job {id} asks {of} and is {}; name a job that session {name} has answered",
                format!("{state:?}").to_uppercase()
            );
            return Err(JobError::Invalid { param: "job", message });
        }
        let ids = [&job.question.query_ids[..], &job.progress.tokens].concat();
        let turn = |question: &String| KeptTurn { question: question.clone(), answer: job.progress.text.clone() };
        Ok((session, Answered { ids, turn: job.question.text.as_ref().map(turn) }))
    }

    /// What changes when a session is to go on with what was prepared for its context `base`.
    ///
    /// # Errors
    /// When the session is not there, has another context by self.now, is not ready or grows already, or there is no room.
    pub fn append_session(
        &self,
        number: u64,
        (name, base): (&str, u64),
        prepared: PreparedContext,
    ) -> Result<Decided, JobError> {
        let session = self.sessions.find(name)?;
        if session.context != base {
            return Err(JobError::SessionReplaced { name: name.to_string() });
        }
        let busy = |cause| Err(JobError::SessionBusy { name: name.to_string(), cause });
        let Some(old) = self.contexts.get(base).filter(|context| context.is_ready()) else {
            return busy("its context is being encoded");
        };
        if session.append.is_some() {
            return busy("something else is being appended");
        }
        self.check_bytes(prepared.bytes())?;
        let reused = prepared.shared_with(&old.prepared);
        let mut context = Context::new((number, self.now), ContextOwner::Session(name.to_string()), prepared);
        context.reuse(reused);
        self.check_pinned(context.weight.kv_bytes)?;
        self.selection().check_room(&context.prepared, &context.reused)?;
        let session = Session { append: Some(number), append_error: None, ..session.clone() };
        let mut changes = vec![self.cluster_record(number), record::session(&session)];
        changes.extend(record::context(&context));
        Ok(Decided::new(self.now, changes, Effect::Append(session, Box::new(context))))
    }

    /// What changes when a session lives `ttl` from now on.
    ///
    /// # Errors
    /// When there is none of that name, it expired, or it failed.
    pub fn extend_session(&self, name: &str, ttl: Duration) -> Result<Decided, JobError> {
        let session = Session { ttl, expires: self.now + ttl, ..self.sessions.find(name)?.clone() };
        Ok(Decided::new(self.now, vec![record::session(&session)], Effect::Extend(session)))
    }

    /// What ending a session changes. Questions under way are answered still.
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn drop_session(&self, name: &str) -> Result<Decided, JobError> {
        let session = match self.sessions.get(name) {
            Some(session) => session,
            None => self.sessions.find(name)?,
        };
        let mut changes = vec![record::no_session(name)];
        let unasked = |context: &u64| !self.uses().is_asked_beside(*context, None);
        changes
            .extend([session.context].into_iter().chain(session.append).filter(unasked).flat_map(record::no_context));
        Ok(Decided::new(self.now, changes, Effect::Drop(name.to_string())))
    }
}
