//! How jobs, sessions and contexts end, and what hosts and the journal then forget. Decides no end by itself.

use std::time::Duration;

use crate::{
    api::{ErrorBody, JobEvent},
    cluster_event::ClusterEventKind,
    messages::HostCommand,
    supervisor::{
        command::SupervisorCommand,
        journal::record,
        rules::{orders::Orders, uses::Uses},
        tables::{
            context::ContextOwner,
            contexts::Contexts,
            hosts::Hosts,
            job::Outcome,
            jobs::Jobs,
            reserved::Reserved,
            sessions::{Session, Sessions},
        },
    },
};

/// Ended jobs that are remembered, and bytes of their answers.
const ENDED_JOBS: usize = 16_384;
const ENDED_BYTES: u64 = 64 << 20;

/// Ends what is to end, with all that hangs on it.
pub struct Teardown<'a> {
    pub now: Duration,
    pub hosts: &'a mut Hosts,
    pub contexts: &'a mut Contexts,
    pub jobs: &'a mut Jobs,
    pub sessions: &'a mut Sessions,
    pub reserved: &'a Reserved,
    pub out: &'a mut Vec<SupervisorCommand>,
}

impl Teardown<'_> {
    fn orders(&mut self) -> Orders<'_> {
        Orders { hosts: self.hosts, contexts: self.contexts, jobs: self.jobs, out: self.out }
    }

    fn uses(&self) -> Uses<'_> {
        Uses { contexts: self.contexts, jobs: self.jobs, sessions: self.sessions, reserved: self.reserved }
    }

    /// Ends a job that has not ended, tells its watchers and frees what hosts hold for it.
    pub fn end(&mut self, number: u64, outcome: Outcome) {
        let now = self.now;
        let Some(mut job) = self.jobs.open_mut(number) else { return };
        job.finish(now, outcome);
        let (context, query_host) = (job.context, job.query_host.take());
        self.out.push(SupervisorCommand::Persist(record::job(&job)));
        self.out.extend(job.ended_observations().into_iter().map(SupervisorCommand::Observe));
        self.out.push(SupervisorCommand::Notify(job.ended()));
        let event = JobEvent::Finished { status: Box::new(job.status_at(now)) };
        drop(job);
        self.out.push(SupervisorCommand::Publish { job: number, event });
        if let Some(host) = query_host {
            self.orders().send(host, HostCommand::Stop { job: number });
        }
        self.release_unused(context);
        while let Some(oldest) = self.jobs.surplus(ENDED_JOBS, ENDED_BYTES) {
            self.jobs.remove(oldest);
            self.out.push(SupervisorCommand::Persist(record::no_job(oldest)));
        }
    }

    /// Ends a job with an error.
    pub fn fail(&mut self, number: u64, code: &str, message: String) {
        self.end(number, Outcome::Failed { code: code.to_string(), message });
    }

    /// Frees a context that neither a session nor a job that goes on has a use for.
    pub fn release_unused(&mut self, number: u64) {
        let Some(context) = self.contexts.get(number) else { return };
        let uses = self.uses();
        if uses.is_of_session(number) || uses.is_asked_beside(number, None) {
            return;
        }
        for host in context.hosts() {
            self.orders().release(host, number);
        }
        self.contexts.remove(number);
        self.out.extend(record::no_context(number).map(SupervisorCommand::Persist));
    }

    /// Frees what sessions have grown out of once nobody asks it.
    pub fn release_outgrown(&mut self) {
        for context in std::mem::take(&mut self.sessions.outgrown) {
            self.release_unused(context);
            if self.contexts.get(context).is_some() {
                self.sessions.outgrown.insert(context);
            }
        }
    }

    /// A context comes to nothing, and with it whoever asks it.
    pub fn fail_context(&mut self, number: u64, code: &str, message: String) {
        let Some(context) = self.contexts.get(number) else { return };
        if let ContextOwner::Session(name) = context.owner.clone() {
            let error = ErrorBody { message: message.clone(), code: code.to_string(), param: None };
            self.fail_session(&name, number, error);
        }
        for job in self.jobs.of_context(number) {
            self.fail(job, code, message.clone());
        }
        self.release_unused(number);
    }

    /// A session's context came to nothing.
    fn fail_session(&mut self, name: &str, context: u64, error: ErrorBody) {
        match self.sessions.get(name) {
            Some(session) if session.append == Some(context) => return self.fail_append(name, error),
            Some(session) if session.context == context => {}
            _ => return,
        }
        let code = error.code.clone();
        let Some((session, append)) = self.sessions.fail(name, error) else { return };
        self.out.push(SupervisorCommand::Notify(ClusterEventKind::SessionFailed { session: name.to_string(), code }));
        self.out.push(SupervisorCommand::Persist(record::session(session)));
        append.into_iter().for_each(|context| self.release_unused(context));
    }

    /// An append came to nothing: the session stays what it was.
    fn fail_append(&mut self, name: &str, error: ErrorBody) {
        let Some(session) = self.sessions.get(name) else { return };
        let (session_name, code) = (name.to_string(), error.code.clone());
        self.out.push(SupervisorCommand::Notify(ClusterEventKind::AppendFailed { session: session_name, code }));
        let session = Session { append: None, append_error: Some(error), ..session.clone() };
        self.out.push(SupervisorCommand::Persist(record::session(&session)));
        self.sessions.insert(session);
    }

    /// Ends the sessions whose time has passed.
    pub fn expire_sessions(&mut self) {
        while let Some(name) = self.sessions.first_expired(self.now) {
            self.end_session(&name, true);
        }
    }

    /// Ends a session: by itself, or as somebody wants it.
    pub fn end_session(&mut self, name: &str, expired: bool) {
        let Some(session) = self.sessions.forget(name, expired) else { return };
        let (context, hits) = (session.context, session.hits);
        self.out.push(SupervisorCommand::Notify(ClusterEventKind::SessionEnded {
            session: name.to_string(),
            context,
            expired,
            hits,
        }));
        self.out.push(SupervisorCommand::Persist(record::no_session(name)));
        self.release_unused(session.context);
        session.append.into_iter().for_each(|context| self.release_unused(context));
    }
}
