//! What is appended to a session, planned with all that the session has.

use asterism_models::Written;

use crate::{
    api::{AppendRequest, Prompt, Reuse},
    error::JobError,
    supervisor::{
        config::ContextHosts,
        tables::prepared::{
            PreparedContext,
            asked_session::AskedSession,
            text::{Answered, Continuation, KeptTurn},
        },
    },
};

use super::{ModelFront, invalid, prompt, session::HeldSession};

impl ModelFront {
    /// Tokenises what is appended, behind the session's text where that is at hand, and plans for it behind what the session has,
    /// by the session's own method and for as many hosts as it was planned for. `answered`: the question that is appended with its
    /// answer, if one is.
    ///
    /// # Errors
    /// When nothing is appended, the template writes what is held already otherwise, or the context gets too long or has no
    /// plan.
    pub fn prepare_append(
        &self,
        request: AppendRequest,
        (session, answered): (&AskedSession, Answered),
        hosts: &ContextHosts,
    ) -> Result<PreparedContext, JobError> {
        let (context, text) = match (request.context, request.job) {
            (Some(context), None) => self.with_context(session, context)?,
            (None, Some(_)) => self.with_answer(session, answered)?,
            _ => return Err(invalid("context", "name what is appended: either a context or a job")),
        };
        self.check_length((context.len(), 0, 1))?;
        let hosts = ContextHosts { count: session.hosts, ..*hosts };
        let method = (Some(&*session.method), &*session.method, true);
        let mut prepared = self.plan((&context, &[]), (Reuse::None, method), &hosts)?;
        self.check_rope(&prepared.plan, 1)?;
        (prepared.chat_template, prepared.query_separator) = (session.chat_template, session.query_separator.clone());
        (prepared.placement, prepared.template_date) = (session.placement.clone(), session.template_date);
        prepared.text = text.map(Box::new);
        Ok(prepared.identified())
    }

    fn with_context(&self, session: &AskedSession, context: Prompt) -> Result<HeldSession, JobError> {
        self.check_bytes("context", &context)?;
        if context.text().map_or(context.is_blank(), str::is_empty) {
            return Err(invalid("context", "there is nothing to append: it has no tokens"));
        }
        match (&session.text, context) {
            (Some(text), Prompt::Text(more)) => self.with_more(session, text, &more),
            (None, context) => Ok((self.behind_ids(session, &[], self.encode("context", context)?), None)),
            (Some(text), _) if text.continuation == Continuation::Rendered => Err(invalid(
                "context",
                "the session's text goes through the chat template; append a text, not token ids",
            )),
            (Some(text), context) => {
                let rest = self.continued((session, text), Written::default())?;
                Ok((self.behind_ids(session, &rest, self.encode("context", context)?), None))
            }
        }
    }

    fn with_answer(&self, session: &AskedSession, Answered { ids, turn }: Answered) -> Result<HeldSession, JobError> {
        match (&session.text, turn) {
            (Some(text), Some(turn)) if text.continuation == Continuation::Rendered => {
                let mut text = text.clone();
                let question = std::mem::take(&mut text.opened) + &turn.question;
                text.turns.push(KeptTurn { question, ..turn });
                self.with_turns(session, *text)
            }
            (Some(text), Some(turn)) => {
                let mut text = text.clone();
                let question =
                    prompt::written(turn.question.as_str().into(), text.continuation == Continuation::Message);
                text.rest = text.rest.followed_by(question).followed_by(Written::message(&turn.answer));
                self.with_more(session, &text, "")
            }
            (Some(text), None) if text.continuation == Continuation::Rendered => Err(invalid(
                "job",
                "the job asked with token ids, which are no message of a conversation; ask with a text to keep its answer",
            )),
            (_, _) => Ok((self.behind_ids(session, &[], ids), None)),
        }
    }

    fn behind_ids(&self, session: &AskedSession, rest: &[u32], more: Vec<u32>) -> Vec<u32> {
        [&session.ids[..session.plan.context_tokens], rest, &more].concat()
    }
}
