//! A prompt that is nothing but a question: its tokens are told with how likely they were, and no context host has a part in that.

use asterism_models::Written;
use asterism_plan::MethodConfig;

use super::{ModelFront, choice, invalid, limits::Limits};
use crate::{
    api::{JobRequest, JobTrace, Prompt, Reuse, bounds},
    error::JobError,
    messages::TokenChoice,
    supervisor::{
        config::ContextHosts,
        tables::job::{PreparedJob, Question, Source},
    },
};

impl ModelFront {
    /// A job of a whole prompt: its first token begins the question, and is the context that a job has to have. Attention is dense,
    /// whichever method is asked for.
    pub(super) fn prepare_alone(
        &self,
        (mut ids, request): (Vec<u32>, JobRequest),
        limits: &Limits,
        hosts: &ContextHosts,
    ) -> Result<PreparedJob, JobError> {
        self.check_length((0, ids.len(), limits.max_tokens))?;
        let scored = ids.split_off(1);
        let dense = MethodConfig::Dense(Default::default());
        let mut context = self.plan((&ids, &[]), (Reuse::None, (None, &dense, true)), hosts)?;
        context.placement = self.placed(request.placement);
        context.key = request.labels.get(bounds::KEY).cloned();
        context.background = bounds::is_background(&request.labels);
        let told = request.logprobs.or((!scored.is_empty()).then_some(0));
        let plain = choice(limits.max_tokens, (&request.sampling, request.stop), (request.ignore_eos, told));
        let max_tokens = limits.max_tokens.saturating_add(scored.len() as u32);
        let question = Question {
            query_ids: ids,
            choice: TokenChoice { max_tokens, scored: Some(scored), ..plain },
            timeout: limits.timeout,
            trace: request.trace.map(JobTrace::under),
            ..Question::default()
        };
        let (id, labels) = (request.id.unwrap_or_default(), request.labels);
        Ok(PreparedJob { id, fingerprint: None, source: Source::Context(context), question, labels })
    }

    /// The ids of a whole prompt, with those that the tokenizer puts around a text.
    ///
    /// # Errors
    /// When it is too long, has no token, or an id that the model has not.
    pub fn whole_ids(&self, prompt: Prompt) -> Result<Vec<u32>, JobError> {
        self.check_bytes("query", &prompt)?;
        let around = self.around(prompt.text().is_some()).before;
        let ids = [around, self.encode("query", prompt)?].concat();
        match ids.is_empty() {
            true => Err(invalid("query", "the prompt has no token")),
            false => Ok(ids),
        }
    }

    /// The ids of what [`ModelFront::conversation`] came to, context and query as one.
    ///
    /// # Errors
    /// When there are more than the model takes.
    pub fn rendered_ids(&self, context: Written, query: Written) -> Result<Vec<u32>, JobError> {
        let (mut whole, around) = (context, !self.template.is_chat());
        whole.append(query);
        let ids = [self.around(around).before, self.encode("messages", Prompt::Written(whole))?].concat();
        if ids.is_empty() { Err(invalid("messages", "the prompt has no token")) } else { Ok(ids) }
    }

    /// The ids of a text as it stands, special tokens by their names; `around`: with those that the tokenizer puts before a text.
    ///
    /// # Errors
    /// When it has more tokens than the model takes.
    pub fn text_ids(&self, text: String, around: bool) -> Result<Vec<u32>, JobError> {
        self.check_bytes("prompt", &Prompt::Text(text.clone()))?;
        Ok([self.around(around).before, self.encode("prompt", Prompt::Text(text))?].concat())
    }

    /// The text that tokens stand for, special ones as they are written.
    ///
    /// # Errors
    /// When the model does not have one of them.
    pub fn text_of(&self, ids: &[u32]) -> Result<String, JobError> {
        self.check_ids("tokens", ids)?;
        Ok(self.tokenizer.decode(ids)?)
    }
}
