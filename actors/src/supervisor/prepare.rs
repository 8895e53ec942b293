//! From a request to a prepared job: template, tokens, plan. Pure, but slow enough to run off the event loop.

use std::{path::Path, time::Duration};

use asterism_models::{ChatTemplate, Checkpoint, ModelConfig, ModelError, Tokenizer, check_retaining_heads};
use asterism_plan::{Method, MethodConfig, Plan, PlanError, PlanRequest};

use crate::{
    api::{JobRequest, Prompt},
    error::JobError,
    messages::TokenChoice,
    supervisor::{config::ContextHosts, state::PreparedJob},
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
    /// Reads what it needs of a checkpoint. `max_context_tokens` lowers the model's own limit.
    pub fn load(checkpoint: &Checkpoint, max_context_tokens: Option<usize>) -> Result<Self, ModelError> {
        let config = checkpoint.config().clone();
        let own = config.max_position;
        let tokenizer = Tokenizer::from_checkpoint(checkpoint)?;
        Ok(Self {
            name: checkpoint.name().to_string(),
            max_tokens: max_context_tokens.map_or(own, |limit| limit.min(own)),
            config,
            template: ChatTemplate::from_checkpoint(checkpoint, &tokenizer)?,
            tokenizer,
        })
    }

    /// Tokens of a text, without specials.
    pub fn count_tokens(&self, text: &str) -> Result<usize, ModelError> {
        Ok(self.tokenizer.encode(text)?.len())
    }

    /// Tokenises and plans a request for `hosts` context hosts.
    pub fn prepare(
        &self,
        request: JobRequest,
        default_method: &MethodConfig,
        hosts: &ContextHosts,
    ) -> Result<PreparedJob, JobError> {
        check(&request)?;
        let context = request.context.expect("checked");
        let (context, query_ids) = self.tokens(context, request.query, request.chat_template)?;
        if context.len() + query_ids.len() + request.max_tokens > self.max_tokens {
            return Err(JobError::TooLong {
                context: context.len(),
                query: query_ids.len(),
                generated: request.max_tokens,
                maximum: self.max_tokens,
                model: self.name.clone(),
            });
        }
        let method = request.method.as_ref().unwrap_or(default_method);
        let shape = self.config.shape(hosts.dtype);
        let asked = PlanRequest {
            context: &context,
            query: &query_ids,
            hosts: hosts.count,
            one_machine: hosts.one_machine,
            shape: &shape,
        };
        method.review(&asked)?;
        let plan = method.plan(&asked)?;
        plan.check(&context)?;
        if request.method.is_some() && !request.allow_idle_hosts {
            refuse_idle_hosts(method, &plan)?;
        }
        if let Some(path) = plan.exchange.retaining_heads() {
            check_retaining_heads(Path::new(path), &self.config)?;
        }
        Ok(PreparedJob {
            id: request.id,
            dense_pairs: shape.computed_dense_pairs(context.len()),
            plan,
            query_ids,
            choice: TokenChoice {
                max_tokens: request.max_tokens as u32,
                temperature: request.sampling.temperature,
                top_p: request.sampling.top_p,
                seed: request.sampling.seed,
                stop: request.stop,
                ignore_eos: request.ignore_eos,
            },
            timeout: request.timeout_s.map(Duration::from_secs_f64),
            labels: request.labels,
        })
    }
}

impl ModelFront {
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
    let invalid = |param, message: &str| Err(JobError::Invalid { param, message: message.to_string() });
    if request.context.as_ref().is_none_or(Prompt::is_blank) {
        return invalid("context", "the context is empty; give a document with --context FILE");
    }
    if request.query.is_blank() {
        return invalid("query", "the query is empty; ask something with --query TEXT");
    }
    if request.max_tokens == 0 {
        return invalid("max_tokens", "max_tokens is 0; ask for at least 1 token");
    }
    if request.timeout_s.is_some_and(|seconds| !(seconds > 0.0 && seconds < 1e9)) {
        return invalid("timeout_s", "timeout_s must be a positive number of seconds");
    }
    request.sampling.validate()?;
    Ok(())
}
