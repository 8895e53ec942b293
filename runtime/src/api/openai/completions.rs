//! `/v1/completions`: a text to be gone on with, or a context and a prompt. No chat template is applied.

use actix_web::{
    HttpRequest, HttpResponse, post,
    web::{Data, block},
};
use asterism_actors::{
    JobError,
    api::{JobRequest, Prompt},
    supervisor::ModelFront,
};
use asterism_models::{QuerySeparator, Written};

use super::{
    ApiState, Checked,
    answers::{several, wire::RequestKind},
    refusal,
    requests::{
        ask::{self, ParsedRequest},
        fields::{Fields, PromptInput},
        logprobs,
        shape::{AnswerShape, PromptEcho},
    },
};
use crate::api::http::{body::intake::Taken, error::Refusal};

#[post("/v1/completions")]
pub async fn complete(state: Data<ApiState>, request: HttpRequest, taken: Taken<Fields>) -> Checked<HttpResponse> {
    let (fields, share) = taken.into_parts();
    let asked = parse_completion(&state, fields).await?;
    several::give((state, &request), (RequestKind::Text, "prompt"), asked, share).await
}

/// The jobs of a request.
pub async fn parse_completion(state: &ApiState, mut fields: Fields) -> Checked<ParsedRequest> {
    let (prompts, context) = (fields.prompt.take(), fields.context.take());
    let separator: Option<QuerySeparator> = fields.take("query_separator")?;
    let (logprobs, prompt_logprobs) = (logprobs::of_text_asked(&mut fields)?, logprobs::of_prompt_asked(&mut fields)?);
    let echo = fields.take("echo")?.unwrap_or(false);
    let mut prompts = match prompts {
        Some(PromptInput::One(prompt)) => vec![prompt],
        Some(PromptInput::Many(prompts)) => prompts,
        None => return Err(Refusal::invalid("prompt", "there is no prompt")),
    };
    let choices = ask::choices(&mut fields, prompts.len())?;
    // Who asks for no token asks for what is told of the prompt.
    let nothing_more = echo && fields.take_zero("max_tokens");
    let model = state.model_named(fields.model()?.as_deref())?;
    let mut asked = ParsedRequest::take(fields, &model)?;
    (asked.choices, asked.job.chat_template) = (choices, false);
    if nothing_more {
        (asked.job.max_tokens, asked.is_limited) = (0, true);
    }
    let shape = AnswerShape { logprobs, prompt_logprobs, ..AnswerShape::default() };
    let whole = prompt_logprobs.is_some() || nothing_more || (echo && logprobs.is_some());
    if (whole || echo || prompts.len() > 1) && (context.is_some() || asked.job.session.is_some()) {
        let message =
            "echo, prompt_logprobs and lists of prompts are for prompts alone, without context and session_id";
        return Err(Refusal::invalid("prompt", message));
    }
    let first = prompts.remove(0);
    let others = prompts;
    if context.is_some() || asked.job.session.is_some() {
        (asked.job.query_separator, asked.job.logprobs) = (separator, logprobs);
        return Ok(ParsedRequest { job: about(asked.job, context, first), shape, ..asked });
    }
    let asks = PromptAsk { echo, whole, separator };
    let plain = asked.job.clone();
    (asked.job, asked.shape) = asks.job(state, asked.job, (shape.clone(), first)).await?;
    for prompt in others {
        asked.more.push(asks.job(state, plain.clone(), (shape.clone(), prompt)).await?);
    }
    Ok(asked)
}

/// The job of a prompt about a context, or to a session.
fn about(job: JobRequest, context: Option<Prompt>, prompt: Prompt) -> JobRequest {
    let context = match (context, &job.session) {
        (Some(Prompt::Text(text)), None) => Some(Written::message(&text).into()),
        (context, _) => context,
    };
    JobRequest { context, query: prompt, ..job }
}

/// What is asked of each prompt.
struct PromptAsk {
    /// Its text is told before the answer.
    echo: bool,
    /// Its tokens are told.
    whole: bool,
    separator: Option<QuerySeparator>,
}

impl PromptAsk {
    /// The job of a prompt alone, and what is told of its answer.
    async fn job(
        &self,
        state: &ApiState,
        job: JobRequest,
        (mut shape, prompt): (AnswerShape, Prompt),
    ) -> Checked<(JobRequest, AnswerShape)> {
        let model = state.model_named(job.model.as_deref())?;
        let (echo, whole, separator) = (self.echo, self.whole, self.separator.clone());
        let job = JobRequest { logprobs: shape.most_logprobs(), ..job };
        let made = block(move || -> Result<_, JobError> {
            if whole || is_one_token(&prompt) {
                let ids = model.whole_ids(prompt.clone())?;
                let text = if echo { Some(text_of(&model, prompt)?) } else { None };
                shape.echo = Some(PromptEcho { first: ids[0], text }).filter(|_| whole);
                return Ok((JobRequest { query: Prompt::Tokens(ids), prompt_logprobs: true, ..job }, shape));
            }
            if echo {
                shape.echo = Some(PromptEcho { first: 0, text: Some(text_of(&model, prompt.clone())?) });
            }
            let (context, query) = split(&model, prompt)?;
            let separator = query.text().map(|_| QuerySeparator::NONE).or(separator);
            Ok((JobRequest { context: Some(context), query, query_separator: separator, ..job }, shape))
        });
        let made = made.await.map_err(|error| Refusal::failed("internal", error))?;
        made.map_err(|error| refusal::of_job(error, "prompt"))
    }
}

fn is_one_token(prompt: &Prompt) -> bool {
    matches!(prompt, Prompt::Tokens(ids) if ids.len() == 1)
}

/// What a prompt says.
fn text_of(model: &ModelFront, prompt: Prompt) -> Result<String, JobError> {
    match prompt {
        Prompt::Tokens(ids) => model.text_of(&ids),
        Prompt::Text(text) => Ok(text),
        Prompt::Written(written) => Ok(written.text().to_owned()),
    }
}

/// One prompt as context and query, which join to it.
fn split(model: &ModelFront, prompt: Prompt) -> Result<(Prompt, Prompt), JobError> {
    match prompt {
        Prompt::Tokens(ids) if ids.is_empty() => {
            let message = "the prompt has no token id".to_owned();
            Err(JobError::Invalid { param: "prompt", message })
        }
        Prompt::Tokens(mut ids) => {
            let query = ids.split_off(ids.len() - 1);
            Ok((Prompt::Tokens(ids), Prompt::Tokens(query)))
        }
        text => {
            let (context, query) = model.completion(text.text().unwrap_or_default().to_owned())?;
            Ok((context.into(), query.into()))
        }
    }
}
