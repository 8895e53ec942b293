//! What is appended to a session, planned with all that the session has.

use asterism_models::Written;

use crate::{
    api::{AppendRequest, Prompt},
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
                let context = match context {
                    Prompt::Text(text) if session.chat_template => Written::message(&text).into(),
                    given => given,
                };
                self.encode("context", context)?
            }
            // Where a template was applied, the next question is the next message.
            (None, Some(_)) if session.chat_template => {
                [asked, self.tokenizer.encode(&self.template.next_turn()?)?].concat()
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
        self.check_rope(&prepared.plan, 1)?;
        (prepared.chat_template, prepared.query_separator) = (session.chat_template, session.query_separator.clone());
        prepared.placement = session.placement.clone();
        prepared.template_date = session.template_date;
        Ok(prepared)
    }
}

#[cfg(test)]
mod tests {
    use asterism_models::{Checkpoint, TemplateSource};
    use asterism_plan::MethodConfig;
    use serde_json::json;

    use super::*;

    /// A question that is kept under a chat template ends with its answer's end, and the next one is another message of the user.
    #[test]
    fn behind_a_kept_answer_the_next_message_begins() {
        let turns = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}<|assistant|>";
        let ask = |source: TemplateSource| {
            let mut source = json!(source);
            source["text"] = json!(turns);
            serde_json::from_value::<TemplateSource>(source).unwrap().in_process()
        };
        let front = ModelFront::load(&Checkpoint::embedded().unwrap(), None, ask).unwrap();
        let dense: MethodConfig = serde_json::from_value(json!({"dense": {}})).unwrap();
        let hosts = ContextHosts { count: 1, one_machine: true, dtype: asterism_kernels::DType::F32, speeds: None };
        let ids = |text: &str| front.tokenizer.encode(text).unwrap();
        let grown = |chat_template: bool| {
            let request = json!({"name": "talk", "context": "A book.", "chat_template": chat_template});
            let created = front.prepare_session(serde_json::from_value(request).unwrap(), &dense, &hosts).unwrap();
            let PreparedContext { plan, ids, method, hosts: count, placement, chat_template, .. } = created;
            let session = AskedSession {
                context: 1,
                plan,
                ids,
                method,
                hosts: count,
                placement,
                chat_template,
                query_separator: created.query_separator,
                template_date: created.template_date,
            };
            let request = AppendRequest { context: None, job: Some("job-1".into()) };
            let asked = front.tokenizer.encode("Who?<|end|><|assistant|>Me").unwrap();
            let prepared = front.prepare_append(request, (&session, asked), &hosts).unwrap();
            prepared.ids[session.plan.context_tokens..].to_vec()
        };
        let [asked, next] = ["Who?<|end|><|assistant|>Me", "<|end|><|user|>"].map(ids);
        assert_eq!((grown(true), grown(false)), ([asked.clone(), next].concat(), asked));
    }
}
