//! The numbers, names and lists of a request, each within its bounds. Looks at no text.

use std::time::Duration;

use asterism_models::ModelError;

use crate::{
    api::{JobRequest, Prompt, bounds},
    error::JobError,
};

use super::{ModelFront, empty_context, invalid};

/// The numbers of a request, each within its bounds.
pub(super) struct Limits {
    pub(super) max_tokens: u32,
    pub(super) timeout: Option<Duration>,
}

impl ModelFront {
    /// The numbers, names and lists of a request, before its texts are looked at.
    pub(super) fn check(&self, request: &JobRequest) -> Result<Limits, JobError> {
        check_subject(request)?;
        request.id.as_deref().map(bounds::client_id).transpose()?;
        request.session.as_deref().map(|session| bounds::name("session", session)).transpose()?;
        bounds::labels("labels", &request.labels)?;
        bounds::labels("placement", &request.placement.labels)?;
        bounds::stops(&request.stop)?;
        request.cache_salt.as_deref().map(bounds::cache_salt).transpose()?;
        bounds::logprobs(request.logprobs)?;
        request.sampling.validate()?;
        if let Some(constraint) = &request.sampling.constraint {
            let refused = |error: ModelError| JobError::Invalid { param: "constraint", message: error.to_string() };
            constraint.check().map_err(refused)?;
        }
        if let Some(id) = request.sampling.logit_bias.keys().find(|id| **id as usize >= self.config.vocab) {
            let message = format!("logit_bias has token id {id}; {} has ids below {}", self.name, self.config.vocab);
            return Err(JobError::Invalid { param: "logit_bias", message });
        }
        if request.sampling.min_tokens as usize > request.max_tokens {
            let (least, most) = (request.sampling.min_tokens, request.max_tokens);
            let message = format!("min_tokens is {least} and max_tokens {most}; ask for no more at least than at most");
            return Err(JobError::Invalid { param: "min_tokens", message });
        }
        if request.max_tokens == 0 && !request.prompt_logprobs {
            return Err(invalid("max_tokens", "max_tokens is 0; ask for at least 1 token"));
        }
        let max_tokens = u32::try_from(request.max_tokens).ok().filter(|&most| most as usize <= self.max_tokens);
        let max_tokens = max_tokens.ok_or_else(|| {
            let (got, most, model) = (request.max_tokens, self.max_tokens, &self.name);
            let message = format!(
                "max_tokens is {got}; {model} takes at most {most} tokens of context, query and answer together"
            );
            JobError::Invalid { param: "max_tokens", message }
        })?;
        let timeout = request.timeout_s.map(|timeout| bounds::seconds("timeout_s", timeout)).transpose()?;
        Ok(Limits { max_tokens, timeout })
    }
}

fn check_subject(request: &JobRequest) -> Result<(), JobError> {
    if request.prompt_logprobs {
        return check_alone(request);
    }
    match (&request.context, &request.session) {
        (Some(_), Some(_)) => return Err(invalid("session", "give a context or a session, not both")),
        (None, Some(_)) if request.method.is_some() => {
            return Err(invalid("method", "a session's method was chosen when it was created; leave it out"));
        }
        (None, Some(_)) if request.cache_salt.is_some() => {
            let message = "cache_salt is for a context that a request brings, and a session has one that all share who name it; leave it \
                           out, or send the context";
            return Err(invalid("cache_salt", message));
        }
        (None, Some(_)) => {}
        // The context of a text that was cut may be any part of it.
        (Some(Prompt::Written(_)), None) => {}
        (context, None) if context.as_ref().is_none_or(Prompt::is_blank) => return Err(empty_context()),
        _ => {}
    }
    if request.query.is_blank() {
        return Err(invalid("query", "the query is empty; ask something"));
    }
    if matches!((&request.query, &request.query_separator), (Prompt::Tokens(_), Some(_))) {
        let message = "token ids are taken as they are; leave it out, or give the query as text";
        return Err(invalid("query_separator", message));
    }
    Ok(())
}

/// A prompt that is nothing but a question.
fn check_alone(request: &JobRequest) -> Result<(), JobError> {
    let beside = [
        ("context", request.context.is_some()),
        ("session", request.session.is_some()),
        ("query_separator", request.query_separator.is_some()),
    ];
    if let Some((name, _)) = beside.into_iter().find(|(_, given)| *given) {
        let message = format!("prompt_logprobs takes the whole prompt as the query; leave {name} out");
        return Err(JobError::Invalid { param: name, message });
    }
    match request.query.is_blank() {
        true => Err(invalid("query", "the prompt has no token")),
        false => Ok(()),
    }
}
