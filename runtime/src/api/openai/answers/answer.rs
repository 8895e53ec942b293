//! From a request to its answer, in one piece or as a stream.

use std::time::{SystemTime, UNIX_EPOCH};

use actix_web::{HttpRequest, HttpResponse, web::Data};
use asterism_actors::{
    api::{JobEvent, JobStatus, bounds},
    capacity::CapacityShare,
    supervisor::Listener,
};

use super::{
    completion_events::{ChatVoice, StreamUsage},
    connection::ClientConnection,
    running::RunningJob,
    stream,
    wire::{Head, RequestKind},
};
use crate::api::{
    http::{body::charged, span::RequestSpan},
    openai::{
        ApiState, Checked,
        answers::running::{http_status, outcome},
        keys::owner,
        refusal,
        requests::ask::ParsedRequest,
    },
};

/// Has a job done for a client that waits. `text`: the field that context and query came in. `share`: what their bytes hold until
/// the job is taken.
pub async fn give(
    (state, request): (Data<ApiState>, &HttpRequest),
    (kind, text): (RequestKind, &'static str),
    mut asked: ParsedRequest,
    share: CapacityShare,
) -> Checked<HttpResponse> {
    let client = ClientConnection::of(request);
    asked = owned(asked, request);
    let (streamed, form, shape) = (asked.stream, asked.form_field, std::mem::take(&mut asked.shape));
    let model = state.model_of(&asked.job).await?;
    let operation = if kind == RequestKind::Chat { "chat" } else { "text_completion" };
    let started = RunningJob::start(&state.supervisor, asked, RequestSpan::of(request, operation)).await;
    let (running, listener) = started.map_err(|error| refusal::of_request(error, (text, form)))?;
    // A prompt that is told again is kept meanwhile.
    let _kept = if shape.echo.is_some() { Some(share) } else { None };
    let echoes_prompt = shape.echo.is_some();
    let mut head = Head::new(kind, &running.id, unix_time(), &model).of_choice(0, shape);
    match streamed {
        Some(streamed) => {
            let (mut so_far, mut scored) = (None, 0);
            if streamed.usage_so_far || echoes_prompt {
                let status =
                    state.supervisor.status(&running.id).await.map_err(|error| refusal::of_job(error, text))?;
                so_far = streamed.usage_so_far.then_some(status.context_tokens + status.query_tokens);
                scored = status.scored_tokens;
            }
            let usage = StreamUsage { at_end: streamed.usage, so_far, shared: None };
            let voice = ChatVoice::new(head, usage, scored);
            Ok(stream::answer((running, listener), client, (Box::new(voice), streamed)))
        }
        None => {
            let status = ended((running, listener), &client).await?;
            charged::json(request, weight(&status), || head.whole(&status)).await
        }
    }
}

/// A request with the key that asks it.
pub fn owned(mut asked: ParsedRequest, request: &HttpRequest) -> ParsedRequest {
    asked.job.labels.extend(owner(request).map(|name| (bounds::KEY.to_owned(), name)));
    asked
}

/// A text in an answer, and a token with how likely it was, in bytes while the answer is built.
const TEXT_COPIES: usize = 8;
const OF_TOKEN: usize = 1024;

/// Bytes that an answer takes while it is built, about.
pub fn weight(status: &JobStatus) -> usize {
    let tokens: usize = status.logprobs.iter().map(|token| 1 + token.top.len()).sum();
    TEXT_COPIES * status.text.len() + OF_TOKEN * (tokens + 4)
}

/// How a job ended whose client waits for all of it.
pub async fn ended(
    (mut running, mut listener): (RunningJob, Listener),
    client: &ClientConnection,
) -> Checked<JobStatus> {
    loop {
        let event = tokio::select! {
            event = listener.next() => event.ok_or_else(refusal::stopping)?,
            // Nobody reads this.
            () = client.gone() => return Err(refusal::cancelled()),
        };
        if let JobEvent::Finished { status } = event {
            running.ended(&status, http_status(&status));
            return outcome(*status);
        }
    }
}

/// Bytes that a text takes in an answer while that is built, about.
pub fn weight_of(text_bytes: usize) -> usize {
    TEXT_COPIES * text_bytes
}

/// Seconds since 1970.
pub fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
