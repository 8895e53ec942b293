//! `/tokenize` and `/detokenize`, as vLLM has them: the ids of a text or of a conversation, and the text of ids. Makes no job.

use std::{collections::BTreeMap, time::Duration};

use actix_web::{
    HttpRequest, HttpResponse, post,
    web::{Data, block},
};
use asterism_actors::{JobError, api::Prompt, supervisor::ModelFront};
use asterism_models::{ChatTurn, Ending, RenderOptions};
use serde_json::{Value, json};

use crate::api::{
    http::{
        body::{charged, intake::Taken},
        error::Refusal,
    },
    openai::{
        ApiState, Checked,
        answers::answer,
        chat, refusal,
        requests::{
            fields::{Fields, PromptInput},
            tools::{self, without_tools},
        },
    },
};

/// Bytes that an id takes while an answer is built.
const OF_ID: usize = 64;

/// What is to be cut.
enum Subject {
    Text { text: String, around: bool },
    Conversation { turns: Vec<ChatTurn>, ending: Ending, tools: Vec<Value>, variables: BTreeMap<String, Value> },
}

#[post("/tokenize")]
pub async fn tokenize(state: Data<ApiState>, request: HttpRequest, taken: Taken<Fields>) -> Checked<HttpResponse> {
    let (mut fields, _share) = taken.into_parts();
    let model = state.model_named(fields.model()?.as_deref())?;
    let most = model.max_tokens;
    let (subject, strings) = subject(&mut fields)?;
    let read = block(move || {
        ids(&model, subject).map(|ids| {
            let strings: Option<Vec<String>> = strings.then(|| ids.iter().map(|id| written(&model, *id)).collect());
            (ids, strings)
        })
    });
    let read = read.await.map_err(|error| Refusal::failed("internal", error))?;
    let (ids, strings) = read.map_err(|error| refusal::of_job(error, "prompt"))?;
    charged::json(
        &request,
        OF_ID * ids.len(),
        || json!({ "count": ids.len(), "max_model_len": most, "tokens": ids, "token_strs": strings }),
    )
    .await
}

fn written(model: &ModelFront, id: u32) -> String {
    String::from_utf8_lossy(&model.token_bytes(id)).into_owned()
}

/// What is to be cut, and whether its tokens are told as texts, too.
fn subject(fields: &mut Fields) -> Checked<(Subject, bool)> {
    let mut fields = std::mem::take(fields);
    fields.take::<String>("model")?;
    let strings = fields.take("return_token_strs")?.unwrap_or(false);
    let subject = match (fields.prompt.take(), fields.messages.take()) {
        (Some(PromptInput::One(Prompt::Text(text))), None) => {
            Subject::Text { text, around: fields.take("add_special_tokens")?.unwrap_or(true) }
        }
        (None, Some(messages)) => {
            let turns = chat::read(messages, "messages")?;
            fields.take::<bool>("add_special_tokens")?;
            let ending = chat::ending(&mut fields, &turns)?;
            let tools = tools::take(&mut fields)?.map_or_else(Vec::new, |tools| tools.described);
            Subject::Conversation { turns, ending, tools, variables: chat::variables(&mut fields)? }
        }
        _ => return Err(Refusal::invalid("prompt", "expected one text as prompt, or messages")),
    };
    fields.with_names(&["return_token_strs", "add_special_tokens"]).finish()?;
    Ok((subject, strings))
}

fn ids(model: &ModelFront, subject: Subject) -> Result<Vec<u32>, JobError> {
    match subject {
        Subject::Text { text, around } => model.text_ids(text, around),
        Subject::Conversation { turns, ending, tools, variables } => {
            let date = model.date(None, Duration::from_secs(answer::unix_time()));
            let options = RenderOptions { variables, ..RenderOptions::on(date).ending(ending) };
            let (context, query) = match model.takes_tools() {
                true => model.conversation(turns, RenderOptions { tools, ..options }),
                false => model.conversation(without_tools(turns, &tools), options),
            }?;
            model.rendered_ids(context, query)
        }
    }
}

#[post("/detokenize")]
pub async fn detokenize(state: Data<ApiState>, request: HttpRequest, taken: Taken<TokenList>) -> Checked<HttpResponse> {
    let (TokenList { tokens, model }, _share) = taken.into_parts();
    let model = state.model_named(model.as_deref())?;
    if tokens.len() > model.max_tokens {
        let message = format!("there are {} tokens, expected at most {}", tokens.len(), model.max_tokens);
        return Err(Refusal::invalid("tokens", message));
    }
    let read = block(move || model.text_of(&tokens)).await;
    let text = read.map_err(|error| Refusal::failed("internal", error))?;
    let text = text.map_err(|error| refusal::of_job(error, "tokens"))?;
    charged::json(&request, 8 * text.len(), || -> Value { json!({ "prompt": text }) }).await
}

/// Ids to be read.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenList {
    tokens: Vec<u32>,
    #[serde(default)]
    model: Option<String>,
}
