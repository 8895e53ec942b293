//! Sessions that grow. What is appended makes another context: all that the session had, and what is new, planned as if it were
//! created so. Its hosts encode only what they do not hold already. Questions see the old one until the new one is ready, and
//! then the new one: all of it or nothing of it.

use std::{collections::BTreeSet, time::Duration};

use crate::{
    api::{ErrorBody, JobState},
    error::JobError,
    news::News,
    supervisor::{
        journal::{
            change::{Decided, Effect},
            record,
        },
        rules::sessions::Session,
        state::{Command, SupervisorState},
        tables::{
            asked_session::AskedSession,
            context::{Context, Owner},
            prepared::PreparedContext,
            session_text::{Answered, KeptTurn},
        },
    },
};

impl SupervisorState {
    /// A session as an append is prepared for it, and a question that was asked it, with its answer.
    ///
    /// # Errors
    /// When there is no such session, or it cannot be asked; when `job` was not answered, or asked something else.
    pub fn grown_session(&self, name: &str, job: Option<&str>) -> Result<(AskedSession, Answered), JobError> {
        let session = self.asked_session(name)?;
        let Some(id) = job else { return Ok((session, Answered::default())) };
        let job = self.job_number(id).and_then(|number| self.jobs.get(number));
        let job = job.ok_or_else(|| JobError::NotFound { id: id.to_string() })?;
        let (asked, state) = (job.status.session.as_deref(), job.status.state);
        if asked != Some(name) || state != JobState::Succeeded {
            let of = asked.map_or("no session".to_string(), |asked| format!("session {asked}"));
            let message = format!(
                "job {id} asks {of} and is {}; name a job that session {name} has answered",
                format!("{state:?}").to_uppercase()
            );
            return Err(JobError::Invalid { param: "job", message });
        }
        let ids = [&job.question.query_ids[..], &job.status.tokens].concat();
        let turn = |question: &String| KeptTurn { question: question.clone(), answer: job.status.text.clone() };
        Ok((session, Answered { ids, turn: job.question.text.as_ref().map(turn) }))
    }

    /// What changes when a session is to go on with what was prepared for its context `base`.
    ///
    /// # Errors
    /// When the session is not there, has another context by now, is not ready or grows already, or there is no room.
    pub fn append_session(
        &self,
        (now, number): (Duration, u64),
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
        let lent = prepared.shared_with(&old.prepared);
        let mut context = Context::new((number, now), Owner::Session(name.to_string()), prepared);
        context.lend(lent);
        self.check_pinned(context.weight.kv_bytes)?;
        self.check_room(&context.prepared, &context.lent)?;
        let session = Session { append: Some(number), append_error: None, ..session.clone() };
        let mut changes = vec![
            record::cluster(&self.origin, self.last_number.max(number), &self.model.mark()),
            record::session(&session),
        ];
        changes.extend(record::context(&context));
        Ok(Decided::new(now, changes, Effect::Append(session, Box::new(context))))
    }

    /// An append that the journal has comes into force, unless its session is over or has failed.
    pub(in crate::supervisor) fn take_append(&mut self, kept: Session, context: Context, commands: &mut Vec<Command>) {
        match self.sessions.find(&kept.name) {
            Ok(open) if open.context == kept.context && open.append.is_none() => {
                let session = Session { append: kept.append, append_error: None, ..open.clone() };
                self.put_session(session, &kept, commands);
                self.take_context(context);
            }
            _ => commands.extend(record::no_context(context.number).map(Command::Persist)),
        }
    }

    /// A context of a session is ready: if it is what the session grows to, questions see it from now on.
    pub(in crate::supervisor) fn appended(&mut self, name: &str, number: u64, commands: &mut Vec<Command>) {
        let Some(session) = self.sessions.get(name).filter(|session| session.append == Some(number)) else { return };
        let (old, session) = (session.context, Session { context: number, append: None, ..session.clone() });
        commands.push(Command::Persist(record::session(&session)));
        self.sessions.insert(session);
        if let Some(mut context) = self.contexts.get_mut(number) {
            context.lend(BTreeSet::new());
        }
        self.outgrown.insert(old);
        self.release_outgrown(commands);
    }

    /// An append came to nothing: the session stays what it was.
    pub(in crate::supervisor) fn fail_append(&mut self, name: &str, error: ErrorBody, commands: &mut Vec<Command>) {
        let Some(session) = self.sessions.get(name) else { return };
        let (session_name, code) = (name.to_string(), error.code.clone());
        commands.push(Command::Tell(News::AppendFailed { session: session_name, code }));
        let session = Session { append: None, append_error: Some(error), ..session.clone() };
        commands.push(Command::Persist(record::session(&session)));
        self.sessions.insert(session);
    }

    /// Frees what sessions have grown out of once nobody asks it.
    pub(in crate::supervisor) fn release_outgrown(&mut self, commands: &mut Vec<Command>) {
        for context in std::mem::take(&mut self.outgrown) {
            self.release_unused(context, commands);
            if self.contexts.get(context).is_some() {
                self.outgrown.insert(context);
            }
        }
    }

    /// Notes again what growing sessions have twice, and what they have grown out of, of contexts that the journal has.
    pub(in crate::supervisor) fn lend_again(&mut self) {
        for number in self.contexts.numbers() {
            let Owner::Session(name) = &self.contexts[number].owner else { continue };
            let Some(session) = self.sessions.get(name) else { continue };
            if session.append == Some(number)
                && let Some(old) = self.contexts.get(session.context)
            {
                let lent = self.contexts[number].prepared.shared_with(&old.prepared);
                if let Some(mut context) = self.contexts.get_mut(number) {
                    context.lend(lent);
                }
            } else if session.context != number {
                self.outgrown.insert(number);
            }
        }
    }
}
