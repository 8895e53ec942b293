//! What clients change, in one way: decided by looking, kept by the journal, and only then in force. Until it is in force
//! nothing of it is in the state, so that a change that the journal cannot take leaves nothing to undo.
//!
//! Between the two, hosts may go on saying things; another change of the same job, session or hosts waits for its turn.

use std::{collections::BTreeSet, time::Duration};

use crate::{
    api::Scheduling,
    error::JobError,
    metric::Observation,
    news::News,
    store::Change,
    supervisor::{
        journal::record,
        rules::sessions::Session,
        state::{Command, PreparedJob, Source, SupervisorState},
        tables::{
            context::{Context, Owner},
            job::{Job, Outcome},
        },
    },
};

/// A change that is not in force.
#[derive(Debug)]
pub struct Decided {
    /// What the journal is to take, as one transaction, before anybody is told.
    pub changes: Vec<Change>,
    effect: Effect,
    at: Duration,
}

/// What a change does once it is kept.
#[derive(Debug)]
pub(in crate::supervisor) enum Effect {
    /// It was in force already.
    Nothing,
    /// A job is taken in.
    Submit(Box<Submission>),
    /// A job is given up.
    Cancel(u64),
    /// A session is taken in.
    Create(Session, Box<Context>),
    /// A session is to go on with another context, once that is encoded.
    Append(Session, Box<Context>),
    /// A session lives on, as it is here.
    Extend(Session),
    /// A session ends.
    Drop(String),
    /// A host takes new work or none, or gives what it has to others by a deadline.
    Schedule(usize, Scheduling, Option<Duration>),
    /// A host's place goes to a spare.
    Replace(usize, usize),
}

/// A job, and what it is about.
#[derive(Debug)]
pub(in crate::supervisor) struct Submission {
    job: Job,
    /// A context of its own.
    context: Option<Context>,
    /// The session that it asks, as the journal has it then.
    session: Option<Session>,
}

/// What changes that are decided and not in force take of the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::supervisor) struct Reserved {
    /// Jobs.
    pub jobs: usize,
    /// Bytes of them and of contexts.
    pub bytes: u64,
}

impl Decided {
    fn takes(&self) -> Reserved {
        match &self.effect {
            Effect::Submit(submission) => {
                let context = submission.context.as_ref().map_or(0, |context| context.prepared.bytes());
                Reserved { jobs: 1, bytes: context + submission.job.bytes() }
            }
            Effect::Create(_, context) | Effect::Append(_, context) => {
                Reserved { jobs: 0, bytes: context.prepared.bytes() }
            }
            _ => Reserved::default(),
        }
    }

    /// The context of a session that a question is about.
    fn asks(&self) -> Option<u64> {
        match &self.effect {
            Effect::Submit(submission) => submission.session.as_ref().map(|_| submission.job.context),
            _ => None,
        }
    }

    pub(in crate::supervisor) fn new(at: Duration, changes: Vec<Change>, effect: Effect) -> Self {
        Self { changes, effect, at }
    }
}

impl SupervisorState {
    /// A number that no job and no session has had. It is spent, whether or not its change comes into force.
    pub fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// What taking a job in under `number` changes, and the number that it has: the same request with the same
    /// id is the first job.
    ///
    /// # Errors
    /// When the id is another job's, the queue is full, the context has no room, or the session is not there.
    pub fn submit(&self, now: Duration, number: u64, prepared: PreparedJob) -> Result<(u64, Decided), JobError> {
        if let Some(job) = self.repeated(&prepared.id, prepared.fingerprint)? {
            return Ok((job, Decided::new(now, Vec::new(), Effect::Nothing)));
        }
        self.check_queue(&prepared)?;
        let mut changes = vec![record::cluster(&self.origin, self.last_number.max(number), &self.model.mark())];
        let submission = match &prepared.source {
            Source::Session(name) => {
                let session = self.sessions.find(name)?.asked();
                if prepared.question.anew.as_ref().is_some_and(|anew| anew.context != session.context) {
                    return Err(JobError::SessionReplaced { name: name.clone() });
                }
                changes.push(record::session(&session));
                let status = self.first_status(now, &prepared, &self.contexts[session.context].prepared);
                let job = Job::new((number, session.context), now, status, &prepared);
                Submission { job, context: None, session: Some(session) }
            }
            Source::Context(context) => {
                self.check_room(context, &BTreeSet::new())?;
                let status = self.first_status(now, &prepared, context);
                let context = Context::new((number, now), Owner::Job(number), context.clone());
                changes.extend(record::context(&context));
                let job = Job::new((number, number), now, status, &prepared);
                Submission { job, context: Some(context), session: None }
            }
        };
        changes.push(record::job(&submission.job));
        Ok((number, Decided::new(now, changes, Effect::Submit(Box::new(submission)))))
    }

    /// What cancelling a job changes.
    ///
    /// # Errors
    /// When there is none, or it has ended.
    pub fn cancel(&self, now: Duration, id: &str) -> Result<Decided, JobError> {
        let number = self.job_number(id).ok_or_else(|| JobError::NotFound { id: id.to_string() })?;
        let mut job = self.jobs.get(number).expect("found by its id").clone();
        if job.has_ended() {
            return Err(JobError::Ended {
                id: id.to_string(),
                state: format!("{:?}", job.status.state).to_uppercase(),
            });
        }
        job.finish(now, Outcome::Cancelled);
        let mut changes = vec![record::job(&job)];
        if !self.is_of_session(job.context) && !self.is_asked_beside(job.context, Some(number)) {
            changes.extend(record::no_context(job.context));
        }
        Ok(Decided::new(now, changes, Effect::Cancel(number)))
    }

    /// Counts a change that is decided towards what the queue holds.
    pub(in crate::supervisor) fn reserve(&mut self, decided: &Decided) {
        if let Some(context) = decided.asks() {
            *self.asked_soon.entry(context).or_default() += 1;
        }
        let Reserved { jobs, bytes } = decided.takes();
        self.reserved.jobs += jobs;
        self.reserved.bytes += bytes;
    }

    /// Counts it no more: it comes into force now, or never.
    pub(in crate::supervisor) fn unreserve(&mut self, decided: &Decided) {
        if let Some(context) = decided.asks()
            && let Some(questions) = self.asked_soon.get_mut(&context)
        {
            *questions -= 1;
            if *questions == 0 {
                self.asked_soon.remove(&context);
            }
        }
        let Reserved { jobs, bytes } = decided.takes();
        self.reserved.jobs -= jobs;
        self.reserved.bytes -= bytes;
    }

    /// Brings a change into force that the journal has.
    pub fn adopt(&mut self, now: Duration, decided: Decided) -> Vec<Command> {
        let mut commands = Vec::new();
        let of_hosts = matches!(decided.effect, Effect::Schedule(..) | Effect::Replace(..));
        match decided.effect {
            Effect::Nothing => return commands,
            Effect::Submit(submission) => self.take_job(now, *submission, &mut commands),
            Effect::Cancel(job) => self.end(decided.at, job, Outcome::Cancelled, &mut commands),
            Effect::Create(session, context) => {
                commands.push(Command::Tell(created(&session, &context)));
                self.sessions.take(session);
                self.take_context(*context);
            }
            Effect::Append(session, context) => self.take_append(session, *context, &mut commands),
            Effect::Extend(session) => self.renew_session(session, &mut commands),
            Effect::Drop(name) => self.end_session(&name, false, &mut commands),
            Effect::Schedule(host, scheduling, deadline) => {
                self.set_scheduling(host, scheduling, deadline, &mut commands);
                self.move_out(now, &mut commands);
            }
            Effect::Replace(dead, spare) => self.exchange(now, dead, spare, &mut commands),
        }
        self.advance(now, of_hosts, &mut commands);
        commands
    }

    fn take_job(&mut self, now: Duration, submission: Submission, commands: &mut Vec<Command>) {
        let Submission { mut job, context, session } = submission;
        if job.question.canary {
            self.canary = Some(job.number);
        }
        let number = job.number;
        job.ready_since = self.contexts.get(job.context).is_some_and(Context::is_ready).then_some(now);
        self.last_number = self.last_number.max(number);
        commands.push(Command::Tell(job.submitted()));
        self.jobs.insert(job);
        context.into_iter().for_each(|context| self.take_context(context));
        let Some(kept) = session else { return };
        match self.sessions.find(&kept.name).map(Session::asked) {
            Ok(asked) => {
                commands.push(Command::Observe(Observation::SessionHit));
                self.put_session(asked, &kept, commands);
            }
            // It ended while the journal was written.
            Err(error) => {
                let outcome = Outcome::Failed { code: error.code().into(), message: error.to_string() };
                self.end(now, number, outcome, commands);
            }
        }
    }

    /// A context waits for its turn.
    pub(in crate::supervisor) fn take_context(&mut self, mut context: Context) {
        context.ticket = self.origin.secret.ticket(context.number);
        self.last_number = self.last_number.max(context.number);
        self.contexts.insert(context);
    }

    /// Whether a session that can be asked has the context.
    pub(in crate::supervisor) fn is_of_session(&self, context: u64) -> bool {
        let Some(Owner::Session(name)) = self.contexts.get(context).map(|context| &context.owner) else {
            return false;
        };
        let has = |session: &Session| session.context == context || session.append == Some(context);
        self.sessions.get(name).is_some_and(|session| has(session) && session.error.is_none())
    }

    /// Whether a job that has not ended asks the context, other than one.
    pub(in crate::supervisor) fn is_asked_beside(&self, context: u64, one: Option<u64>) -> bool {
        self.jobs.ask(context, one) || self.asked_soon.contains_key(&context)
    }
}

fn created(session: &Session, context: &Context) -> News {
    News::SessionCreated {
        session: session.name.clone(),
        context: context.number,
        method: context.plan().method.name.clone(),
        tokens: context.plan().context_tokens,
        ttl_s: session.ttl.as_secs_f64(),
    }
}
