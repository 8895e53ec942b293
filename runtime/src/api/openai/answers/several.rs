//! A request of several prompts, or of several answers to each: every one is a job of its own, and they are told together.

use std::{
    future,
    sync::{Arc, Mutex, PoisonError},
};

use actix_web::{HttpRequest, HttpResponse, web::Data};
use asterism_actors::{capacity::CapacityShare, supervisor::Listener};
use futures_util::{
    FutureExt, StreamExt,
    stream::{self, LocalBoxStream, SelectAll},
};

use super::{
    answer,
    completion_events::{ChatVoice, DONE, StreamUsage, TokensTaken, data},
    connection::ClientConnection,
    running::RunningJob,
    stream::{self as streaming, StreamPiece},
    wire::{Head, RequestKind},
};
use crate::api::{
    http::{body::charged, span::RequestSpan},
    openai::{
        ApiState, Checked, refusal,
        requests::{
            ask::{ParsedRequest, Streamed},
            shape::AnswerShape,
        },
    },
};

/// A job of a request of several.
struct ChoiceJob {
    job: (RunningJob, Listener),
    shape: AnswerShape,
    /// Whether it is the first that is asked its prompt.
    is_first: bool,
}

/// Has a request's job, or jobs, done for a client that waits.
pub async fn give(
    (state, request): (Data<ApiState>, &HttpRequest),
    (kind, text): (RequestKind, &'static str),
    asked: ParsedRequest,
    share: CapacityShare,
) -> Checked<HttpResponse> {
    if asked.choices == 1 && asked.more.is_empty() {
        return answer::give((state, request), (kind, text), asked, share).await;
    }
    let (streamed, model) = (asked.stream, state.model_of(&asked.job).await?);
    let jobs = started((&state, request), (kind, text), asked).await?;
    // Prompts that are told again are kept meanwhile.
    let _kept = if jobs.iter().any(|job| job.shape.echo.is_some()) { Some(share) } else { None };
    let first = &jobs[0].job.0.id;
    let head = Head::new(kind, first, answer::unix_time(), &model);
    if let Some(streamed) = streamed {
        return stream_all(&state, request, (jobs, head), streamed).await;
    }
    let (client, mut taken) = (ClientConnection::of(request), TokensTaken::default());
    let mut ended = Vec::with_capacity(jobs.len());
    for ChoiceJob { job, shape, is_first } in jobs {
        let status = answer::ended(job, &client).await?;
        taken.add(&status, is_first);
        ended.push((status, shape));
    }
    let weight = ended.iter().map(|(status, _)| answer::weight(status)).sum();
    let usage = taken.usage();
    charged::json(request, weight, || {
        let choice = |(index, (status, shape))| head.of_choice(index, shape).answer(&status);
        head.together(ended.into_iter().enumerate().map(choice).collect(), &usage)
    })
    .await
}

/// Submits the jobs one after the other, so that no more than one prompt is copied at a time.
async fn started(
    (state, request): (&ApiState, &HttpRequest),
    (kind, text): (RequestKind, &'static str),
    asked: ParsedRequest,
) -> Checked<Vec<ChoiceJob>> {
    let operation = if kind == RequestKind::Chat { "chat" } else { "text_completion" };
    let ParsedRequest { job, shape, more, choices, form_field, is_limited, stream } = asked;
    let mut jobs = Vec::new();
    for (job, shape) in [(job, shape)].into_iter().chain(more) {
        for choice in 0..choices {
            let mut job = job.clone();
            job.sampling.seed = job.sampling.seed.wrapping_add(choice as u64);
            let (more, shape) = (Vec::new(), shape.clone());
            let one = ParsedRequest { job, shape: shape.clone(), more, choices: 1, form_field, is_limited, stream };
            let one = answer::owned(one, request);
            // One span is the request's.
            let span = if jobs.is_empty() { RequestSpan::of(request, operation) } else { None };
            let started = RunningJob::start(&state.supervisor, one, span).await;
            let job = started.map_err(|error| refusal::of_request(error, (text, form_field)))?;
            jobs.push(ChoiceJob { job, shape, is_first: choice == 0 });
        }
    }
    Ok(jobs)
}

/// Streams what the jobs say, each piece with the number of its answer.
async fn stream_all(
    state: &ApiState,
    request: &HttpRequest,
    (jobs, head): (Vec<ChoiceJob>, Head),
    streamed: Streamed,
) -> Checked<HttpResponse> {
    let taken = Arc::new(Mutex::new(TokensTaken::default()));
    let mut all: SelectAll<LocalBoxStream<'static, StreamPiece>> = SelectAll::new();
    for (index, ChoiceJob { job, shape, is_first }) in jobs.into_iter().enumerate() {
        let status = state.supervisor.status(&job.0.id).await.map_err(|error| refusal::of_job(error, "prompt"))?;
        let so_far = streamed.usage_so_far.then_some(status.context_tokens + status.query_tokens);
        let usage = StreamUsage { at_end: false, so_far, shared: Some((taken.clone(), is_first)) };
        let voice = ChatVoice::new(head.of_choice(index, shape), usage, status.scored_tokens);
        let pieces = streaming::pieces(job, ClientConnection::of(request), (Box::new(voice), streamed));
        all.push(pieces.boxed_local());
    }
    let last = future::ready(()).map(move |()| {
        let taken = *taken.lock().unwrap_or_else(PoisonError::into_inner);
        let usage = streamed.usage.then(|| data(&head.usage(&taken.usage())));
        stream::iter(usage.into_iter().chain([DONE]).map(Ok))
    });
    Ok(streaming::events(all.chain(last.flatten_stream())))
}
