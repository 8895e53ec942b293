//! What clients change: decided by the rules of admission, and brought into force here once the journal has it.

use std::time::Duration;

use super::SupervisorState;
use crate::{
    api::Scheduling,
    cluster_event::ClusterEventKind,
    error::JobError,
    metric::Observation,
    supervisor::{
        command::SupervisorCommand,
        fingerprint::Fingerprint,
        journal::change::{Decided, Effect, Submission},
        rules::{admission::hosts::HostAdmission, drain::set_scheduling, growth::SessionGrowth, teardown::Teardown},
        tables::{
            context::Context,
            job::{Outcome, PreparedJob},
            prepared::{PreparedContext, asked_session::AskedSession, text::Answered},
            sessions::Session,
        },
    },
};

impl SupervisorState {
    /// A number that no job and no session has had. It is spent, whether or not its change comes into force.
    pub fn number(&mut self) -> u64 {
        self.numbers.next()
    }

    /// The job of this id, when the request was the same.
    ///
    /// # Errors
    /// [`JobError::IdTaken`] when it was another.
    pub fn repeated(&self, id: &str, fingerprint: Option<Fingerprint>) -> Result<Option<u64>, JobError> {
        self.admission(Duration::ZERO).repeated(id, fingerprint)
    }

    /// What taking a job in under `number` changes, and the number that it has.
    ///
    /// # Errors
    /// As for [`AdmissionControl::submit`](crate::supervisor::rules::admission::AdmissionControl::submit).
    pub fn submit(&self, now: Duration, number: u64, prepared: PreparedJob) -> Result<(u64, Decided), JobError> {
        self.admission(now).submit(number, prepared)
    }

    /// What cancelling a job changes.
    ///
    /// # Errors
    /// When there is none, or it has ended.
    pub fn cancel(&self, now: Duration, id: &str) -> Result<Decided, JobError> {
        self.admission(now).cancel(id)
    }

    /// What taking a session in under `number` changes.
    ///
    /// # Errors
    /// When the name is taken or is none, or its keys and values have no room.
    pub fn create_session(
        &self,
        (now, number): (Duration, u64),
        name: &str,
        prepared: PreparedContext,
        ttl: Option<Duration>,
    ) -> Result<Decided, JobError> {
        self.admission(now).create_session(number, name, prepared, ttl)
    }

    /// What a question to a session is prepared for.
    pub fn asked_session(&self, name: &str) -> Result<AskedSession, JobError> {
        self.admission(Duration::ZERO).asked_session(name)
    }

    /// A session as an append is prepared for it, and a question that was asked it, with its answer.
    ///
    /// # Errors
    /// When there is no such session, or it cannot be asked; when `job` was not answered, or asked something else.
    pub fn grown_session(&self, name: &str, job: Option<&str>) -> Result<(AskedSession, Answered), JobError> {
        self.admission(Duration::ZERO).grown_session(name, job)
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
        self.admission(now).append_session(number, (name, base), prepared)
    }

    /// What changes when a session lives `ttl` from now on.
    ///
    /// # Errors
    /// When there is none of that name, it expired, or it failed.
    pub fn extend_session(&self, now: Duration, name: &str, ttl: Duration) -> Result<Decided, JobError> {
        self.admission(now).extend_session(name, ttl)
    }

    /// What ending a session changes.
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn drop_session(&self, now: Duration, name: &str) -> Result<Decided, JobError> {
        self.admission(now).drop_session(name)
    }

    /// What changes when a host takes new work again, or none, or gives what it has to others, by `deadline` if there is one.
    ///
    /// # Errors
    /// [`JobError::LastHost`] when nobody else could take its work.
    pub fn schedule_host(
        &self,
        now: Duration,
        name: &str,
        scheduling: Scheduling,
        deadline: Option<Duration>,
    ) -> Result<Decided, JobError> {
        self.host_admission(now).schedule_host(name, scheduling, deadline)
    }

    /// What changes when a host is to end, by `deadline`, and to be started again.
    ///
    /// # Errors
    /// When there is none of that name, or it is not there and nobody could start it.
    pub fn restart_host(&self, now: Duration, name: &str, deadline: Duration) -> Result<Decided, JobError> {
        self.host_admission(now).restart_host(name, deadline)
    }

    /// What changes when a spare gets the place of a host that is dead or takes no work, for good.
    ///
    /// # Errors
    /// When one is not there, the spare is no spare or has work, or the host is at work.
    pub fn replace_host(&self, now: Duration, dead: &str, spare: &str) -> Result<Decided, JobError> {
        self.host_admission(now).replace_host(dead, spare)
    }

    fn host_admission(&self, now: Duration) -> HostAdmission<'_> {
        HostAdmission { now, hosts: &self.hosts, contexts: &self.contexts, jobs: &self.jobs }
    }

    /// Counts a change that is decided towards what the queue holds.
    pub(in crate::supervisor) fn reserve(&mut self, decided: &Decided) {
        self.reserved.add(decided.share());
    }

    /// Counts it no more: it comes into force now, or never.
    pub(in crate::supervisor) fn unreserve(&mut self, decided: &Decided) {
        self.reserved.remove(decided.share());
    }

    fn growth<'a>(&'a mut self, now: Duration, out: &'a mut Vec<SupervisorCommand>) -> SessionGrowth<'a> {
        let Self { hosts, contexts, jobs, sessions, reserved, .. } = self;
        SessionGrowth { down: Teardown { now, hosts, contexts, jobs, sessions, reserved, out } }
    }

    /// Brings a change into force that the journal has.
    pub fn adopt(&mut self, now: Duration, decided: Decided) -> Vec<SupervisorCommand> {
        let mut out = Vec::new();
        let of_hosts = matches!(decided.effect, Effect::Schedule(..) | Effect::Replace(..) | Effect::Restart(..));
        match decided.effect {
            Effect::Nothing => return out,
            Effect::Submit(submission) => self.take_job(now, *submission, &mut out),
            Effect::Cancel(job) => self.loss(decided.at, &mut out).teardown().end(job, Outcome::Cancelled),
            Effect::Create(session, context) => {
                out.push(SupervisorCommand::Notify(created(&session, &context)));
                self.sessions.take(session);
                self.take_context(*context);
            }
            Effect::Append(session, context) => {
                let taken = self.growth(now, &mut out).take_append(session, *context);
                taken.into_iter().for_each(|context| self.take_context(context));
            }
            Effect::Extend(session) => self.growth(now, &mut out).renew_session(session),
            Effect::Drop(name) => self.loss(now, &mut out).teardown().end_session(&name, false),
            Effect::Schedule(host, scheduling, deadline) => {
                set_scheduling(&mut self.hosts, host, scheduling, deadline, &mut out);
                match scheduling {
                    Scheduling::Open => self.departures(now, &mut out).start(host),
                    Scheduling::Removed => self.departures(now, &mut out).remove(host),
                    Scheduling::Cordoned | Scheduling::Draining => {}
                }
                self.draining(now, &mut out).move_out();
            }
            Effect::Restart(host, deadline) if self.hosts.at(host).is_up() => {
                self.departures(now, &mut out).begin(host, deadline);
                self.draining(now, &mut out).move_out();
            }
            Effect::Restart(host, _) => self.departures(now, &mut out).start(host),
            Effect::Replace(dead, spare) => self.draining(now, &mut out).exchange(dead, spare),
        }
        self.scheduler(now, &mut out).advance(of_hosts);
        out
    }

    fn take_job(&mut self, now: Duration, submission: Submission, out: &mut Vec<SupervisorCommand>) {
        let Submission { mut job, context, session } = submission;
        if job.question.canary {
            self.jobs.canary = Some(job.number);
        }
        let number = job.number;
        job.ready_since = self.contexts.get(job.context).is_some_and(Context::is_ready).then_some(now);
        self.numbers.note(number);
        out.push(SupervisorCommand::Notify(job.submitted()));
        self.jobs.insert(job);
        context.into_iter().for_each(|context| self.take_context(context));
        let Some(kept) = session else { return };
        match self.sessions.find(&kept.name).map(Session::asked) {
            Ok(asked) => {
                out.push(SupervisorCommand::Observe(Observation::SessionHit));
                self.growth(now, out).put_session(asked, &kept);
            }
            // It ended while the journal was written.
            Err(error) => self.loss(now, out).teardown().fail(number, error.code(), error.to_string()),
        }
    }

    /// A context waits for its turn.
    fn take_context(&mut self, mut context: Context) {
        context.ticket = self.numbers.origin.secret.ticket(context.number);
        self.numbers.note(context.number);
        context.expect_held(|identity| self.lately.find(identity).is_some());
        self.contexts.insert(context);
    }
}

fn created(session: &Session, context: &Context) -> ClusterEventKind {
    ClusterEventKind::SessionCreated {
        session: session.name.clone(),
        context: context.number,
        method: context.plan().method.name.clone(),
        tokens: context.plan().context_tokens,
        ttl_s: session.ttl.as_secs_f64(),
    }
}
