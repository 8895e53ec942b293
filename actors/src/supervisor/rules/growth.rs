//! Sessions that change while they are asked. What is appended makes another context: all that the session had, and what is
//! new, planned as if it were created so. Its hosts encode only what they do not hold already. Questions see the old one until
//! the new one is ready, and then the new one: all of it or nothing of it.

use std::collections::BTreeSet;

use crate::supervisor::{
    command::SupervisorCommand,
    journal::record,
    rules::teardown::Teardown,
    tables::{
        context::{Context, ContextOwner},
        contexts::Contexts,
        sessions::{Session, Sessions},
    },
};

/// Puts sessions in place of what they were.
pub struct SessionGrowth<'a> {
    pub down: Teardown<'a>,
}

impl SessionGrowth<'_> {
    /// An append that the journal has comes into force, unless its session is over or has failed. Returns the context that
    /// then waits for its turn.
    pub fn take_append(&mut self, kept: Session, context: Context) -> Option<Context> {
        match self.down.sessions.find(&kept.name) {
            Ok(open) if open.context == kept.context && open.append.is_none() => {
                let session = Session { append: kept.append, append_error: None, ..open.clone() };
                self.put_session(session, &kept);
                Some(context)
            }
            _ => {
                self.down.out.extend(record::no_context(context.number).map(SupervisorCommand::Persist));
                None
            }
        }
    }

    /// A context of a session is ready: if it is what the session grows to, questions see it from now on.
    pub fn appended(&mut self, name: &str, number: u64) {
        let Some(session) = self.down.sessions.get(name).filter(|session| session.append == Some(number)) else {
            return;
        };
        let (old, session) = (session.context, Session { context: number, append: None, ..session.clone() });
        self.down.out.push(SupervisorCommand::Persist(record::session(&session)));
        self.down.sessions.insert(session);
        let asked_at = self.down.contexts.get(old).and_then(|old| old.asked_at);
        if let Some(mut context) = self.down.contexts.get_mut(number) {
            context.reuse(BTreeSet::new());
            context.asked_at = asked_at;
        }
        self.down.sessions.outgrown.insert(old);
        self.down.release_outgrown();
    }

    /// A session's new end comes into force, unless it is over.
    pub fn renew_session(&mut self, kept: Session) {
        if let Some(open) = self.down.sessions.get(&kept.name) {
            let renewed = Session { ttl: kept.ttl, expires: kept.expires, ..open.clone() };
            self.put_session(renewed, &kept);
        }
    }

    /// Puts a session in place of what it was; the journal has it as `kept`.
    pub fn put_session(&mut self, session: Session, kept: &Session) {
        if session != *kept {
            self.down.out.push(SupervisorCommand::Persist(record::session(&session)));
        }
        self.down.sessions.insert(session);
    }
}

/// Notes again what growing sessions have twice, and what they have grown out of, of contexts that the journal has.
pub fn share_again(sessions: &mut Sessions, contexts: &mut Contexts) {
    for number in contexts.numbers() {
        let ContextOwner::Session(name) = &contexts[number].owner else { continue };
        let Some(session) = sessions.get(name) else { continue };
        if session.append == Some(number)
            && let Some(old) = contexts.get(session.context)
        {
            let reused = contexts[number].prepared.shared_with(&old.prepared);
            if let Some(mut context) = contexts.get_mut(number) {
                context.reuse(reused);
            }
        } else if session.context != number {
            sessions.outgrown.insert(number);
        }
    }
}
