//! What is appended to a session, planned with all that the session has.

use crate::{
    api::AppendRequest,
    error::JobError,
    supervisor::{asked_session::AskedSession, config::ContextHosts, prepared::PreparedContext},
};

use super::{ModelFront, invalid};

impl ModelFront {
    /// Tokenises what is appended, by itself, and plans for it behind what the session has, by the session's own method and
    /// for as many hosts as it was planned for. `asked`: tokens of a question and its answer, where one is appended.
    ///
    /// # Errors
    /// When nothing is appended, or the context gets too long or has no plan.
    pub fn prepare_append(
        &self,
        request: AppendRequest,
        (session, asked): (&AskedSession, Vec<u32>),
        hosts: &ContextHosts,
    ) -> Result<PreparedContext, JobError> {
        let added = match (request.context, request.job) {
            (Some(context), None) => {
                self.check_bytes("context", &context)?;
                self.encode("context", context)?
            }
            (None, Some(_)) => asked,
            _ => return Err(invalid("context", "name what is appended: either a context or a job")),
        };
        if added.is_empty() {
            return Err(invalid("context", "there is nothing to append: it has no tokens"));
        }
        let context = [&session.ids[..session.plan.context_tokens], &added].concat();
        self.check_length((context.len(), 0, 1))?;
        let hosts = ContextHosts { count: session.hosts, ..*hosts };
        let mut prepared = self.plan((&context, &[]), (Some(&session.method), &session.method, true), &hosts)?;
        (prepared.chat_template, prepared.query_separator) = (session.chat_template, session.query_separator.clone());
        prepared.placement = session.placement.clone();
        Ok(prepared)
    }
}
