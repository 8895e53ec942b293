//! From a request to a prepared job: template, tokens, plan. Pure, but slow enough to run off the event loop.

use std::{path::Path, sync::Arc, time::Duration};

use asterism_models::{
    ChatTemplate, Checkpoint, Frame, ModelConfig, ModelError, TemplateRefusal, TemplateSource, Tokenizer,
    check_retaining_heads,
};
use asterism_plan::{Method, MethodConfig, Plan, PlanError, PlanRequest};

use crate::{
    api::{JobRequest, Prompt, SessionRequest},
    error::JobError,
    messages::TokenChoice,
    supervisor::{
        config::ContextHosts,
        context::PreparedContext,
        job::Question,
        placement::PlacementPolicy,
        state::{PreparedJob, Source},
    },
};

/// The parts of a model that the supervisor needs: no weights.
pub struct ModelFront {
    /// Model name.
    pub name: String,
    /// Shape and limits.
    pub config: ModelConfig,
    /// Most tokens of context, query and answer together.
    pub max_tokens: usize,
    tokenizer: Tokenizer,
    template: ChatTemplate,
}

impl ModelFront {
    /// Reads what it needs of a checkpoint. `max_context_tokens` lowers the model's own limit; `ask` tells what its chat
    /// template does, such as [`TemplateSource::frame`].
    pub fn load(
        checkpoint: &Checkpoint,
        max_context_tokens: Option<usize>,
        ask: impl FnOnce(&TemplateSource) -> Result<Frame, TemplateRefusal>,
    ) -> Result<Self, ModelError> {
        let config = checkpoint.config().clone();
        let own = config.max_position;
        let tokenizer = Tokenizer::from_checkpoint(checkpoint)?;
        Ok(Self {
            name: checkpoint.name().to_string(),
            max_tokens: max_context_tokens.map_or(own, |limit| limit.min(own)),
            config,
            template: ChatTemplate::from_checkpoint(checkpoint, &tokenizer, ask)?,
            tokenizer,
        })
    }

    /// Tokens of a text, without specials.
    pub fn count_tokens(&self, text: &str) -> Result<usize, ModelError> {
        Ok(self.tokenizer.encode(text)?.len())
    }

    /// Tokenises and plans a request for `hosts` context hosts; one that asks a session, for that session's context.
    pub fn prepare(
        &self,
        request: JobRequest,
        default_method: &MethodConfig,
        hosts: &ContextHosts,
        session: Option<&AskedSession>,
    ) -> Result<PreparedJob, JobError> {
        check(&request)?;
        let template = session.map_or(request.chat_template, |session| session.chat_template);
        let (source, query_ids, context_tokens) = match (request.context, request.session, session) {
            (None, Some(name), Some(session)) => {
                let (_, query) = self.tokens(STAND_IN.into(), request.query, template)?;
                (Source::Session(name), query, session.context_tokens)
            }
            (context, _, _) => {
                let context = context.unwrap_or(Prompt::Text(String::new()));
                let (context, query) = self.tokens(context, request.query, template)?;
                let method = (request.method.as_ref(), default_method, request.allow_idle_hosts);
                let most = (context.len(), query.len(), request.max_tokens);
                self.check_length(most)?;
                let mut prepared = self.plan((&context, &query), method, hosts)?;
                prepared.placement = request.placement;
                (Source::Context(prepared), query, context.len())
            }
        };
        self.check_length((context_tokens, query_ids.len(), request.max_tokens))?;
        let choice = TokenChoice {
            max_tokens: request.max_tokens as u32,
            temperature: request.sampling.temperature,
            top_p: request.sampling.top_p,
            seed: request.sampling.seed,
            stop: request.stop,
            ignore_eos: request.ignore_eos,
        };
        let timeout = request.timeout_s.map(Duration::from_secs_f64);
        let question = Question { query_ids, choice, timeout };
        Ok(PreparedJob { id: request.id, source, question, labels: request.labels })
    }

    /// What a request over a context of its own comes to: its plan and how many tokens its query has.
    pub fn preview(
        &self,
        request: JobRequest,
        default_method: &MethodConfig,
        hosts: &ContextHosts,
    ) -> Result<(Plan, usize), JobError> {
        let PreparedJob { source, question, .. } = self.prepare(request, default_method, hosts, None)?;
        match source {
            Source::Context(prepared) => Ok((Arc::unwrap_or_clone(prepared.plan), question.query_ids.len())),
            Source::Session(_) => Err(invalid("session", "a session's context is planned already")),
        }
    }

    /// Tokenises and plans a session's context: the query is not known yet.
    pub fn prepare_session(
        &self,
        request: SessionRequest,
        default_method: &MethodConfig,
        hosts: &ContextHosts,
    ) -> Result<PreparedContext, JobError> {
        if request.context.is_blank() {
            return Err(empty_context());
        }
        if request.ttl_s.is_some_and(|seconds| !is_duration(seconds)) {
            return Err(invalid("ttl_s", "ttl_s must be a positive number of seconds"));
        }
        let template = request.chat_template && matches!(request.context, Prompt::Text(_));
        let stand_in = match request.context {
            Prompt::Text(_) => STAND_IN.into(),
            Prompt::Tokens(_) => Prompt::Tokens(vec![0]),
        };
        let (context, _) = self.tokens(request.context, stand_in, template)?;
        self.check_length((context.len(), 0, 1))?;
        let method = (request.method.as_ref(), default_method, request.allow_idle_hosts);
        let mut prepared = self.plan((&context, &[]), method, hosts)?;
        prepared.chat_template = template;
        prepared.placement = request.placement;
        Ok(prepared)
    }
}

/// A session as a question to it is prepared.
#[derive(Clone, Copy, Debug)]
pub struct AskedSession {
    /// Tokens of its context.
    pub context_tokens: usize,
    /// Whether its questions go through the chat template.
    pub chat_template: bool,
}

/// Text in place of the half of a conversation that is not at hand.
const STAND_IN: &str = "x";

impl ModelFront {
    fn check_length(&self, (context, query, generated): (usize, usize, usize)) -> Result<(), JobError> {
        if context + query + generated > self.max_tokens {
            let (maximum, model) = (self.max_tokens, self.name.clone());
            return Err(JobError::TooLong { context, query, generated, maximum, model });
        }
        Ok(())
    }

    fn plan(
        &self,
        (context, query): (&[u32], &[u32]),
        (asked, default, allow_idle_hosts): (Option<&MethodConfig>, &MethodConfig, bool),
        hosts: &ContextHosts,
    ) -> Result<PreparedContext, JobError> {
        let method = asked.unwrap_or(default);
        let shape = self.config.shape(hosts.dtype);
        let request = PlanRequest { context, query, hosts: hosts.count, one_machine: hosts.one_machine, shape: &shape };
        method.review(&request)?;
        let plan = method.plan(&request)?;
        plan.check(context)?;
        if asked.is_some() && !allow_idle_hosts {
            refuse_idle_hosts(method, &plan)?;
        }
        if let Some(path) = plan.exchange.retaining_heads() {
            check_retaining_heads(Path::new(path), &self.config)?;
        }
        Ok(PreparedContext {
            dense_pairs: shape.computed_dense_pairs(context.len()),
            kv_bytes_per_token: shape.kv_bytes_per_token(),
            plan: Arc::new(plan),
            chat_template: false,
            placement: PlacementPolicy::default(),
        })
    }

    fn tokens(&self, context: Prompt, query: Prompt, chat_template: bool) -> Result<(Vec<u32>, Vec<u32>), JobError> {
        let (context, query) = match (context, query) {
            (Prompt::Text(context), Prompt::Text(query)) if chat_template => {
                let (context, query) = self.template.split(&context, &query)?;
                (Prompt::Text(context), Prompt::Text(query))
            }
            given => given,
        };
        Ok((self.encode("context", context)?, self.encode("query", query)?))
    }

    fn encode(&self, param: &'static str, prompt: Prompt) -> Result<Vec<u32>, JobError> {
        let ids = match prompt {
            Prompt::Text(text) => return Ok(self.tokenizer.encode(&text)?),
            Prompt::Tokens(ids) => ids,
        };
        let vocab = self.config.vocab;
        match ids.iter().find(|&&id| id as usize >= vocab) {
            Some(id) => {
                let message = format!("{param} has token id {id}; {} has ids below {vocab}", self.name);
                Err(JobError::Invalid { param, message })
            }
            None => Ok(ids),
        }
    }
}

/// A block size that somebody typed for this very job and that leaves hosts without work was not meant.
fn refuse_idle_hosts(method: &MethodConfig, plan: &Plan) -> Result<(), PlanError> {
    let (tokens, idle, hosts) = (plan.context_tokens, plan.idle_hosts(), plan.hosts);
    match method.block_tokens() {
        Some(block) if idle > 0 => {
            let most = tokens.div_ceil(hosts);
            let advice = format!("give a block of at most {most} tokens, or leave it out, or allow idle hosts");
            Err(PlanError::IdleHosts { tokens, block, idle, hosts, advice })
        }
        _ => Ok(()),
    }
}

fn check(request: &JobRequest) -> Result<(), JobError> {
    match (&request.context, &request.session) {
        (Some(_), Some(_)) => return Err(invalid("session", "give a context or a session, not both")),
        (None, Some(_)) if request.method.is_some() => {
            return Err(invalid("method", "a session's method was chosen when it was created; leave it out"));
        }
        (None, Some(_)) => {}
        (context, None) if context.as_ref().is_none_or(Prompt::is_blank) => return Err(empty_context()),
        _ => {}
    }
    if request.query.is_blank() {
        return Err(invalid("query", "the query is empty; ask something with --query TEXT"));
    }
    if request.max_tokens == 0 {
        return Err(invalid("max_tokens", "max_tokens is 0; ask for at least 1 token"));
    }
    if request.timeout_s.is_some_and(|seconds| !is_duration(seconds)) {
        return Err(invalid("timeout_s", "timeout_s must be a positive number of seconds"));
    }
    request.sampling.validate()?;
    Ok(())
}

fn is_duration(seconds: f64) -> bool {
    seconds > 0.0 && seconds < 1e9
}

fn invalid(param: &'static str, message: &str) -> JobError {
    JobError::Invalid { param, message: message.to_string() }
}

fn empty_context() -> JobError {
    invalid("context", "the context is empty; give a document with --context FILE")
}
