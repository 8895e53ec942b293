//! `/v1/responses`: answers that may be made in the background, looked at, followed and cancelled later. A response is a job: its id
//! is the job's, so that nothing else has to be kept.

use std::collections::BTreeMap;

use actix_web::{
    HttpMessage, HttpRequest, HttpResponse, get, post,
    web::{Data, Path, Query},
};
use asterism_actors::{
    JobError,
    api::{JobStatus, bounds},
    supervisor::Supervisor,
};
use asterism_models::{ChatTurn, Speaker};
use serde::Deserialize;

use super::{
    ApiState, Checked,
    answers::{
        answer,
        connection::ClientConnection,
        response,
        running::{self, RunningJob},
        stream,
    },
    chat::{self, Conversation},
    keys::owner,
    refusal,
    requests::{
        ask::{ParsedRequest, Streamed},
        fields::{Fields, wrong},
        message::Messages,
    },
};
use crate::api::http::{
    body::{charged, intake::Taken},
    error::Refusal,
    pace::ResponseGuard,
    span::RequestSpan,
};

/// How a response is asked for that nobody waits for.
const BACKGROUND: &str = "background";

#[post("/v1/responses")]
pub async fn create(state: Data<ApiState>, request: HttpRequest, taken: Taken<Fields>) -> Checked<HttpResponse> {
    let (mut fields, share) = taken.into_parts();
    let background = fields.take("background")?.unwrap_or(false);
    let mut asked = parse_response(&state, fields).await?;
    let way = if background { BACKGROUND } else { "attached" };
    asked.job.labels.insert(bounds::RESPONSE.into(), way.into());
    if background {
        asked.job.labels.remove(bounds::ATTACHED);
    }
    asked.job.labels.extend(owner(&request).map(|name| (bounds::KEY.to_owned(), name)));
    let (client, streamed) = (ClientConnection::of(&request), asked.stream);
    let started = RunningJob::start(&state.supervisor, asked, RequestSpan::of(&request, "chat")).await;
    let (mut running, listener) = started.map_err(|error| refusal::of_job(error, "input"))?;
    drop(share);
    let status = look(&state.supervisor, &running.id).await?;
    if background {
        running.let_go();
        hold(&state, &running.id, request.extensions().get::<ResponseGuard>().cloned());
    }
    match (streamed, background) {
        (Some(streamed), _) => {
            let voice = response::ResponseVoice::new(status, None);
            Ok(stream::answer((running, listener), client, (Box::new(voice), streamed)))
        }
        (None, true) => respond(&request, &status).await,
        (None, false) => respond(&request, &answer::ended((running, listener), &client).await?).await,
    }
}

async fn respond(request: &HttpRequest, status: &JobStatus) -> Checked<HttpResponse> {
    charged::json(request, answer::weight(status), || response::object(status)).await
}

/// Keeps a key's place until a job in the background has ended.
fn hold(state: &ApiState, id: &str, place: Option<ResponseGuard>) {
    if let Some(place) = place {
        drop(state.runtime.spawn(running::hold(state.supervisor.clone(), id.to_owned(), place)));
    }
}

/// The same for those that an earlier supervisor was asked for.
pub async fn hold_again(state: &ApiState) {
    let Some(keys) = &state.keys else { return };
    let in_background = |job: &JobStatus| job.labels.get(bounds::RESPONSE).is_some_and(|way| way == BACKGROUND);
    for job in running::open_jobs(&state.supervisor, in_background).await {
        hold(state, &job.id, job.labels.get(bounds::KEY).and_then(|name| keys.place(name)));
    }
}

/// Behind the `?` of a response.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ResponseQuery {
    stream: bool,
    starting_after: Option<u64>,
    #[serde(rename = "include_obfuscation")]
    _include_obfuscation: Option<bool>,
}

#[get("/v1/responses/{id}")]
pub async fn show(
    state: Data<ApiState>,
    request: HttpRequest,
    id: Path<String>,
    looking: Query<ResponseQuery>,
) -> Checked<HttpResponse> {
    let status = find(&state.supervisor, &request, &id).await?;
    if !looking.stream {
        return respond(&request, &status).await;
    }
    let listener = state.supervisor.watch(&status.id).await?;
    let running = RunningJob::of(&state.supervisor, &status.id);
    let voice = Box::new(response::ResponseVoice::new(status, looking.starting_after));
    Ok(stream::answer((running, listener), ClientConnection::of(&request), (voice, Streamed::default())))
}

#[post("/v1/responses/{id}/cancel")]
pub async fn cancel(state: Data<ApiState>, request: HttpRequest, id: Path<String>) -> Checked<HttpResponse> {
    let status = find(&state.supervisor, &request, &id).await?;
    if status.labels.get(bounds::RESPONSE).map(String::as_str) != Some(BACKGROUND) {
        return Err(Refusal::invalid("id", "only a response in the background is cancelled so; close the connection"));
    }
    match state.supervisor.cancel(&status.id).await {
        // One that has ended already stays as it is.
        Ok(()) | Err(JobError::Ended { .. }) => {}
        Err(error) => return Err(refusal::of_job(error, "id")),
    }
    respond(&request, &look(&state.supervisor, &status.id).await?).await
}

/// `instructions` and `input` as a conversation.
fn conversation(fields: &mut Fields) -> Checked<Vec<ChatTurn>> {
    chat::refuse_texts(fields)?;
    if fields.take::<String>("previous_response_id")?.is_some() {
        let expected = "send the whole conversation as input, or ask a session by session_id";
        return Err(refusal::unsupported("previous_response_id", expected));
    }
    let instructions: Option<String> = fields.take("instructions")?;
    let mut turns: Vec<ChatTurn> = instructions.map(|text| ChatTurn::new(Speaker::System, text)).into_iter().collect();
    match fields.input.take() {
        Some(Messages::Text(text)) => turns.push(ChatTurn::new(Speaker::User, text)),
        Some(items @ Messages::List(_)) => turns.extend(chat::read(items, "input")?),
        Some(Messages::Other) => return Err(wrong("input", &"expected a text or a list of messages")),
        None => return Err(Refusal::invalid("input", "there is no input")),
    }
    Ok(turns)
}

/// The job of a request.
pub async fn parse_response(state: &ApiState, mut fields: Fields) -> Checked<ParsedRequest> {
    let turns = conversation(&mut fields)?;
    let ending = chat::ending(&mut fields, &turns)?;
    let model = state.model_named(fields.model()?.as_deref())?;
    let asked = ParsedRequest::take(fields, &model)?;
    let conversation = Conversation { turns, ending, tools: None, variables: BTreeMap::new() };
    chat::about(state, conversation, (asked, "input")).await
}

/// A response of whoever asks; another's is not there.
async fn find(supervisor: &Supervisor, request: &HttpRequest, id: &str) -> Checked<JobStatus> {
    let job = response::job_id(id).ok_or_else(|| unknown(id))?;
    match supervisor.status(&job).await {
        Ok(status)
            if status.labels.contains_key(bounds::RESPONSE)
                && status.labels.get(bounds::KEY) == owner(request).as_ref() =>
        {
            Ok(status)
        }
        Ok(_) | Err(JobError::NotFound { .. }) => Err(unknown(id)),
        Err(error) => Err(refusal::of_job(error, "id")),
    }
}

async fn look(supervisor: &Supervisor, id: &str) -> Checked<JobStatus> {
    supervisor.status(id).await.map_err(|error| refusal::of_job(error, "id"))
}

fn unknown(id: &str) -> Refusal {
    refusal::not_found("response", id)
}
