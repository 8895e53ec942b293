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
    answers::{answer, wire::RequestKind},
    refusal,
    requests::{
        ask::ParsedRequest,
        fields::{Fields, PromptInput},
        logprobs,
    },
};
use crate::api::http::{body::intake::Taken, error::Refusal};

#[post("/v1/completions")]
pub async fn complete(state: Data<ApiState>, request: HttpRequest, taken: Taken<Fields>) -> Checked<HttpResponse> {
    let (fields, share) = taken.into_parts();
    let asked = parse_completion(&state, fields).await?;
    answer::give((state, &request), (RequestKind::Text, "prompt"), asked, share).await
}

/// The job of a request.
pub async fn parse_completion(state: &ApiState, mut fields: Fields) -> Checked<ParsedRequest> {
    let (prompt, context) = (fields.prompt.take(), fields.context.take());
    let separator: Option<QuerySeparator> = fields.take("query_separator")?;
    let logprobs = logprobs::of_text_asked(&mut fields)?;
    let mut asked = ParsedRequest::take(fields, state)?;
    asked.job.logprobs = logprobs;
    let prompt = match prompt {
        Some(PromptInput::One(prompt)) => prompt,
        Some(PromptInput::Many(count)) => {
            return Err(refusal::unsupported("prompt", &format!("it has {count} prompts; send each for itself")));
        }
        None => return Err(Refusal::invalid("prompt", "there is no prompt")),
    };
    asked.job.chat_template = false;
    asked.job.query_separator = separator;
    match (context, &asked.job.session) {
        (context, Some(_)) => (asked.job.context, asked.job.query) = (context, prompt),
        (Some(context), None) => {
            let context = match context {
                Prompt::Text(text) => Written::message(&text).into(),
                ids => ids,
            };
            (asked.job.context, asked.job.query) = (Some(context), prompt);
        }
        (None, None) => {
            let model = state.supervisor.model().clone();
            let split = block(move || split(&model, prompt)).await;
            let split = split.map_err(|error| Refusal::failed("internal", error))?;
            let (context, query) = split.map_err(|error| refusal::of_job(error, "prompt"))?;
            let text = query.text().map(|_| QuerySeparator::NONE);
            asked.job = JobRequest { context: Some(context), query, query_separator: text, ..asked.job };
        }
    }
    Ok(asked)
}

/// One prompt as context and query, which join to it.
fn split(model: &ModelFront, prompt: Prompt) -> Result<(Prompt, Prompt), JobError> {
    match prompt {
        Prompt::Tokens(mut ids) if ids.len() > 1 => {
            let query = ids.split_off(ids.len() - 1);
            Ok((Prompt::Tokens(ids), Prompt::Tokens(query)))
        }
        Prompt::Tokens(ids) => {
            let message = format!("the prompt has {} token ids, expected 2 at least", ids.len());
            Err(JobError::Invalid { param: "prompt", message })
        }
        text => {
            let (context, query) = model.completion(text.text().unwrap_or_default().to_owned())?;
            Ok((context.into(), query.into()))
        }
    }
}
