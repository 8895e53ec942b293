//! Anthropic's Messages API, on the listener of OpenAI's API and by the same jobs: what coding agents speak. Schedules nothing.

mod events;
mod message;
mod messages_request;

use std::time::Duration;

use actix_web::{
    HttpRequest, HttpResponse, post,
    web::{self, Data, block},
};
use asterism_actors::api::bounds;
use asterism_models::RenderOptions;
use serde_json::json;

use crate::api::{
    http::{
        body::{charged, intake::Taken},
        error::Refusal,
        span::RequestSpan,
    },
    openai::{
        ApiState, Checked,
        answers::{answer, connection::ClientConnection, running::RunningJob, stream},
        chat, refusal,
        requests::tools::without_tools,
    },
};
use events::MessageVoice;
use message::MessageShape;
use messages_request::MessagesRequest;

/// Its endpoints.
pub fn routes(app: &mut web::ServiceConfig) {
    app.service(create).service(count);
}

#[post("/v1/messages")]
async fn create(state: Data<ApiState>, request: HttpRequest, taken: Taken<MessagesRequest>) -> Checked<HttpResponse> {
    let (asked, share) = taken.into_parts();
    let (conversation, asked) = asked.read(&state)?;
    let asked = chat::about(&state, conversation, (asked, "messages")).await?;
    let mut asked = answer::owned(asked, &request);
    let model = state.model_of(&asked.job).await?;
    let (client, streamed, form) = (ClientConnection::of(&request), asked.stream, asked.form_field);
    let shape = MessageShape { shape: std::mem::take(&mut asked.shape), stops: asked.job.stop.clone(), model };
    asked.job.labels.insert(bounds::ATTACHED.into(), "yes".into());
    let started = RunningJob::start(&state.supervisor, asked, RequestSpan::of(&request, "chat")).await;
    let (running, listener) = started.map_err(|error| refusal::of_request(error, ("messages", form)))?;
    drop(share);
    match streamed {
        Some(streamed) => {
            let status = state.supervisor.status(&running.id).await;
            let status = status.map_err(|error| refusal::of_job(error, "messages"))?;
            let voice = MessageVoice::new(status, shape);
            Ok(stream::answer((running, listener), client, (Box::new(voice), streamed)))
        }
        None => {
            let status = answer::ended((running, listener), &client).await?;
            charged::json(&request, answer::weight(&status), || message::whole(&status, &shape)).await
        }
    }
}

#[post("/v1/messages/count_tokens")]
async fn count(state: Data<ApiState>, request: HttpRequest, taken: Taken<MessagesRequest>) -> Checked<HttpResponse> {
    let (asked, _share) = taken.into_parts();
    let (conversation, asked) = asked.counted(&state)?;
    let model = state.model_named(asked.job.model.as_deref())?;
    let date = model.date(None, Duration::from_secs(answer::unix_time()));
    let counted = block(move || {
        let tools = conversation.tools.map_or_else(Vec::new, |tools| tools.described);
        let options = RenderOptions::on(date).ending(conversation.ending);
        let (context, query) = match model.takes_tools() {
            true => model.conversation(conversation.turns, RenderOptions { tools, ..options }),
            false => model.conversation(without_tools(conversation.turns, &tools), options),
        }?;
        model.rendered_ids(context, query)
    });
    let counted = counted.await.map_err(|error| Refusal::failed("internal", error))?;
    let ids = counted.map_err(|error| refusal::of_job(error, "messages"))?;
    charged::json(&request, 1024, || json!({ "input_tokens": ids.len() })).await
}
