//! `/v1/responses`: answers that may be made in the background, looked at, followed and cancelled later. A response is a job: its id
//! is the job's. How it was asked for, and the conversation that it answers, are kept beside that.

mod response_request;

use actix_web::{
    HttpMessage, HttpRequest, HttpResponse, get, post,
    web::{Data, Path, Query, block},
};
use asterism_actors::{
    JobError,
    api::{JobState, JobStatus, bounds},
    supervisor::{Listener, Supervisor},
};
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
    keys::owner,
    refusal,
    requests::{
        ask::{ParsedRequest, Streamed},
        fields::Fields,
    },
    store::record::{ResponseRecord, ResponseSettings},
};
use crate::api::http::{
    body::{
        charged,
        intake::{self, Taken},
    },
    error::Refusal,
    pace::ResponseGuard,
    span::RequestSpan,
};

use response_request::{RequestOwner, ResponseRequest};

/// How often a conversation that is too long is shortened, at most.
const SHORTENED: usize = 16;
/// Records whose jobs are looked for with each new one.
const RECORDS_LOOKED_AT: usize = 2;

#[post("/v1/responses")]
pub async fn create(state: Data<ApiState>, request: HttpRequest, taken: Taken<Fields>) -> Checked<HttpResponse> {
    let (mut fields, share) = taken.into_parts();
    let background = fields.take("background")?.unwrap_or(false);
    let (key, (_, holder)) = (owner(&request), intake::of(&request));
    let mut asked = ResponseRequest::read(&state, (key.as_ref(), &holder), fields).await?;
    let (way, labels) = (if background { bounds::BACKGROUND } else { "attached" }, &mut asked.way().job.labels);
    labels.insert(bounds::RESPONSE.into(), way.into());
    if background {
        labels.remove(bounds::ATTACHED);
    }
    labels.extend(key.clone().map(|name| (bounds::KEY.to_owned(), name)));
    let (client, streamed) = (ClientConnection::of(&request), asked.way().stream);
    let (mut running, listener) = start(&state, &request, &mut asked).await?;
    let record = keep(&state, (&running.id, key), asked.record()).await?;
    forget_with_jobs(&state, RECORDS_LOOKED_AT).await;
    drop(share);
    let status = look(&state.supervisor, &running.id).await?;
    if background {
        running.let_go();
        hold(&state, &running.id, request.extensions().get::<ResponseGuard>().cloned());
    }
    match (streamed, background) {
        (Some(streamed), _) => {
            let voice = voice(&state, (status, record), None);
            Ok(stream::answer((running, listener), client, (voice, streamed)))
        }
        (None, true) => respond(&state, &request, (&status, &record)).await,
        (None, false) => {
            let status = answer::ended((running, listener), &client).await?;
            respond(&state, &request, (&status, &record)).await
        }
    }
}

/// Submits a response's job, of a conversation that is shortened where that may be and has to be.
async fn start(
    state: &ApiState,
    request: &HttpRequest,
    asked: &mut ResponseRequest,
) -> Checked<(RunningJob, Listener)> {
    for _ in 0..SHORTENED {
        let job = asked.job(state).await?;
        let form = job.form_field;
        match RunningJob::start(&state.supervisor, job, RequestSpan::of(request, "chat")).await {
            Ok(started) => return Ok(started),
            Err(error) if asked.shorten(&error) => {}
            Err(error) => return Err(refusal::of_request(error, ("input", form))),
        }
    }
    Err(Refusal::invalid("input", "the conversation stays too long, however much of its beginning is left out"))
}

/// Keeps what a response tells again.
async fn keep(
    state: &ApiState,
    (job, key): (&str, Option<String>),
    record: ResponseRecord,
) -> Checked<ResponseSettings> {
    let (kept, id) = (state.responses.clone(), response::id_of(job));
    let written = block(move || kept.keep((&id, key), record)).await;
    let written = written.map_err(|error| Refusal::failed("internal", error))?;
    written.map(|record| record.settings).map_err(|error| refusal::of_disk(&error))
}

/// Forgets what is kept of responses whose jobs the supervisor has forgotten, of so many.
pub async fn forget_with_jobs(state: &ApiState, most: usize) {
    for id in state.responses.look_at(most) {
        let Some(job) = response::job_id(&id) else { continue };
        if matches!(state.supervisor.status(&job).await, Err(JobError::NotFound { .. })) {
            let kept = state.responses.clone();
            let forgotten = block(move || kept.forget(&id)).await;
            if let Ok(Err(error)) = forgotten {
                tracing::warn!(%error, "what was kept of a response whose job is forgotten stays");
            }
        }
    }
}

/// How a response was asked for, as far as that is kept.
async fn settings(state: &ApiState, id: &str) -> ResponseSettings {
    let (kept, id) = (state.responses.clone(), id.to_owned());
    let read = block(move || kept.read(&id)).await.ok().flatten();
    read.map(|record| record.settings).unwrap_or_default()
}

fn voice(
    state: &ApiState,
    (status, settings): (JobStatus, ResponseSettings),
    after: Option<u64>,
) -> Box<response::ResponseVoice> {
    let model = state.model_that_answers(&status);
    Box::new(response::ResponseVoice::new((status, settings), model, after))
}

async fn respond(
    state: &ApiState,
    request: &HttpRequest,
    (status, settings): (&JobStatus, &ResponseSettings),
) -> Checked<HttpResponse> {
    let model = state.model_that_answers(status);
    let told = answer::weight(status) + answer::weight_of(settings.bytes());
    charged::json(request, told, || response::object((status, settings), &model)).await
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
    let in_background = |job: &JobStatus| job.labels.get(bounds::RESPONSE).is_some_and(|way| way == bounds::BACKGROUND);
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
    let settings = settings(&state, &id).await;
    if !looking.stream {
        return respond(&state, &request, (&status, &settings)).await;
    }
    if let Some(after) = looking.starting_after {
        check_after(&state, (&status, &settings), after)?;
    }
    let listener = state.supervisor.watch(&status.id).await?;
    let running = RunningJob::of(&state.supervisor, &status.id);
    let voice = voice(&state, (status, settings), looking.starting_after);
    Ok(stream::answer((running, listener), ClientConnection::of(&request), (voice, Streamed::default())))
}

/// Refuses a stream that nothing would ever be in. Of a job that goes on nothing is known: what a client received of it may be ahead of a
/// supervisor that was started again.
fn check_after(state: &ApiState, (status, settings): (&JobStatus, &ResponseSettings), after: u64) -> Checked<()> {
    if matches!(status.state, JobState::Pending | JobState::Running) {
        return Ok(());
    }
    let last = response::last_number((status.clone(), settings.clone()), state.model_that_answers(status));
    if after <= last {
        return Ok(());
    }
    let message = format!(
        "starting_after is {after}, and the last event of this response has sequence_number {last}; expected 0 to {last}, or no \
         starting_after for all of them"
    );
    Err(Refusal::invalid("starting_after", message))
}

#[post("/v1/responses/{id}/cancel")]
pub async fn cancel(state: Data<ApiState>, request: HttpRequest, id: Path<String>) -> Checked<HttpResponse> {
    let status = find(&state.supervisor, &request, &id).await?;
    if status.labels.get(bounds::RESPONSE).map(String::as_str) != Some(bounds::BACKGROUND) {
        return Err(Refusal::invalid("id", "only a response in the background is cancelled so; close the connection"));
    }
    match state.supervisor.cancel(&status.id).await {
        // One that has ended already stays as it is.
        Ok(()) | Err(JobError::Ended { .. }) => {}
        Err(error) => return Err(refusal::of_job(error, "id")),
    }
    let status = look(&state.supervisor, &status.id).await?;
    respond(&state, &request, (&status, &settings(&state, &id).await)).await
}

/// The job of a line of a batch.
pub async fn parse_response(state: &ApiState, fields: Fields, owner: RequestOwner<'_>) -> Checked<ParsedRequest> {
    let asked = ResponseRequest::read(state, owner, fields).await?;
    if asked.record().settings.truncates {
        return Err(refusal::unsupported("truncation", "expected disabled on a line of a batch"));
    }
    asked.job(state).await
}

/// A response of whoever asks; another's is not there.
async fn find(supervisor: &Supervisor, request: &HttpRequest, id: &str) -> Checked<JobStatus> {
    let job = response::job_id(id).ok_or_else(|| unknown(id))?;
    match supervisor.status(&job).await {
        Ok(status) if response_request::is_of(&status, owner(request).as_ref()) => Ok(status),
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
