//! Whether anybody still has a use for a context. Looks, and changes nothing.

use crate::supervisor::tables::{
    context::ContextOwner,
    contexts::Contexts,
    jobs::Jobs,
    reserved::Reserved,
    sessions::{Session, Sessions},
};

/// Who may have a use for a context.
#[derive(Clone, Copy)]
pub struct Uses<'a> {
    pub contexts: &'a Contexts,
    pub jobs: &'a Jobs,
    pub sessions: &'a Sessions,
    pub reserved: &'a Reserved,
}

impl Uses<'_> {
    /// Whether a session that can be asked has the context.
    pub fn is_of_session(&self, context: u64) -> bool {
        let Some(ContextOwner::Session(name)) = self.contexts.get(context).map(|context| &context.owner) else {
            return false;
        };
        let has = |session: &Session| session.context == context || session.append == Some(context);
        self.sessions.get(name).is_some_and(|session| has(session) && session.error.is_none())
    }

    /// Whether a job that has not ended asks the context, other than one.
    pub fn is_asked_beside(&self, context: u64, one: Option<u64>) -> bool {
        self.jobs.ask(context, one) || self.reserved.asks(context)
    }
}
