//! `/v1/chat/completions`: the last message is the question, everything before it the context.

use std::time::Duration;

use actix_web::{
    HttpRequest, HttpResponse, post,
    web::{Data, block},
};
use asterism_actors::{
    api::{JobRequest, Reuse, bounds},
    supervisor::is_continued,
};
use asterism_models::{ChatTurn, Ending, QuerySeparator, RenderOptions, Speaker};

use super::{
    ApiState, Checked,
    answers::{answer, wire::RequestKind},
    refusal,
    requests::{
        ask::ParsedRequest,
        fields::{Fields, wrong},
        logprobs,
        message::{Content, Message, Messages},
    },
};
use crate::api::http::{body::intake::Taken, error::Refusal};

#[post("/v1/chat/completions")]
pub async fn complete(state: Data<ApiState>, request: HttpRequest, taken: Taken<Fields>) -> Checked<HttpResponse> {
    let (fields, share) = taken.into_parts();
    let asked = parse_chat(&state, fields).await?;
    answer::give((state, &request), (RequestKind::Chat, "messages"), asked, share).await
}

/// The job of a request.
pub async fn parse_chat(state: &ApiState, mut fields: Fields) -> Checked<ParsedRequest> {
    let messages = fields.messages.take().ok_or_else(|| Refusal::invalid("messages", "there are no messages"))?;
    refuse_texts(&fields)?;
    let turns = read(messages, "messages")?;
    let ending = ending(&mut fields, &turns)?;
    let logprobs = logprobs::of_chat_asked(&mut fields)?;
    let mut asked = ParsedRequest::take(fields, state)?;
    asked.job.logprobs = logprobs;
    asked.job = about(state, (turns, ending), (asked.job, "messages")).await?;
    Ok(asked)
}

/// The job that answers a conversation, by a session if it names one. `param`: where the conversation came from.
pub async fn about(
    state: &ApiState,
    (mut turns, ending): (Vec<ChatTurn>, Ending),
    (mut job, param): (JobRequest, &'static str),
) -> Checked<JobRequest> {
    if job.session.is_some() {
        let last = turns.pop().filter(|_| turns.is_empty()).ok_or_else(|| {
            Refusal::invalid(param, "a session has what was said before: send the new user message alone")
        })?;
        return Ok(JobRequest { query: last.text.into(), ..job });
    }
    let model = state.supervisor.model().clone();
    // What the template is told here is what the job says.
    let date = model.date(job.template_date, Duration::from_secs(answer::unix_time()));
    job.template_date = Some(date);
    if is_continued(&turns) {
        job.reuse = Reuse::Likely;
    }
    let split = block(move || model.conversation(turns, RenderOptions::on(date).ending(ending))).await;
    let split = split.map_err(|error| Refusal::failed("internal", error))?;
    let (context, query) = split.map_err(|error| refusal::of_job(error, param))?;
    Ok(JobRequest {
        context: Some(context.into()),
        query: query.into(),
        // Which it went through already.
        chat_template: true,
        query_separator: Some(QuerySeparator::NONE),
        ..job
    })
}

/// A conversation alone is what is asked about.
pub fn refuse_texts(fields: &Fields) -> Checked<()> {
    let given = [("prompt", fields.prompt.is_some()), ("context", fields.context.is_some())];
    match given.into_iter().find(|(_, given)| *given) {
        Some((name, _)) => Err(refusal::unknown(name)),
        None => Ok(()),
    }
}

/// How the conversation ends that the model is asked with.
pub fn ending(fields: &mut Fields, turns: &[ChatTurn]) -> Checked<Ending> {
    let (continues, answers) = (fields.take("continue_final_message")?, fields.take("add_generation_prompt")?);
    Ending::of(turns.last(), continues, answers)
        .map_err(|cause| Refusal::invalid("continue_final_message", cause.to_owned()))
}

/// A conversation in whatever order: the model's template says which it takes.
pub fn read(messages: Messages, param: &str) -> Checked<Vec<ChatTurn>> {
    use Speaker::{Assistant, System, User};
    let Messages::List(messages) = messages else { return Err(wrong(param, &"expected a list")) };
    let mut turns: Vec<ChatTurn> = Vec::with_capacity(messages.len());
    for (at, Message { is_object, kind, role, content }) in messages.into_iter().enumerate() {
        let refused = |what: &str| Refusal::invalid(param, format!("message {at} {what}"));
        if !is_object {
            return Err(refused("is no object"));
        }
        if kind.is_some_and(|kind| kind != "message") {
            return Err(refused("is no message, and there are no tools here"));
        }
        let speaker = match role.as_deref() {
            Some("system" | "developer") => System,
            Some("user") => User,
            Some("assistant") => Assistant,
            role => {
                let role = bounds::shown(role.unwrap_or("none"));
                return Err(refused(&format!("has role {role}, expected system, developer, user or assistant")));
            }
        };
        let text = match content {
            Content::Text(text) => text,
            Content::NoText => {
                let parts = "has content that is no text; expected parts {\"type\": \"text\", \"text\": ...}";
                return Err(refused(parts));
            }
            Content::Missing => return Err(refused("has no content that is text")),
        };
        turns.push(ChatTurn { speaker, text });
    }
    if turns.is_empty() {
        return Err(Refusal::invalid(param, "there are no messages, and there is nothing to answer"));
    }
    Ok(turns)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(messages: Value, param: &str) -> Checked<Vec<ChatTurn>> {
        super::read(serde_json::from_value(messages).unwrap(), param)
    }

    #[test]
    fn a_conversation_is_read_in_both_ways_to_write_it() {
        let turns = read(
            json!([
                {"role": "developer", "content": "Be brief."},
                {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "me"},
                {"role": "assistant", "content": "c", "refusal": null},
                {"type": "message", "role": "user", "content": "d"},
            ]),
            "messages",
        );
        let turns: Vec<_> = turns.unwrap().into_iter().map(|turn| (turn.speaker, turn.text)).collect();
        let expected =
            [(Speaker::System, "Be brief."), (Speaker::User, "ab"), (Speaker::Assistant, "c"), (Speaker::User, "d")];
        assert_eq!(turns, expected.map(|(speaker, text)| (speaker, text.to_owned())));
    }

    #[test]
    fn an_answer_at_the_end_is_gone_on_with_unless_a_request_says_otherwise() {
        let turns = read(json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]), "messages");
        let turns = turns.unwrap();
        let ending =
            |turns: &[ChatTurn], fields: Value| super::ending(&mut serde_json::from_value(fields).unwrap(), turns);
        for (last, fields, expected) in [
            (2, json!({}), Ending::LastMessage),
            (1, json!({}), Ending::Answer),
            (1, json!({"continue_final_message": true}), Ending::LastMessage),
            (1, json!({"continue_final_message": true, "add_generation_prompt": false}), Ending::LastMessage),
            (2, json!({"continue_final_message": false}), Ending::Answer),
            (2, json!({"add_generation_prompt": true}), Ending::Answer),
            (2, json!({"add_generation_prompt": false}), Ending::Conversation),
        ] {
            assert_eq!(ending(&turns[..last], fields.clone()).unwrap(), expected, "{last} {fields}");
        }
        let both = ending(&turns, json!({"continue_final_message": true, "add_generation_prompt": true})).unwrap_err();
        assert!(both.to_string().contains("do not go together"), "{both}");
        let order = json!([{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"},
                           {"role": "system", "content": "c"}, {"role": "user", "content": "d"}]);
        assert_eq!(read(order, "messages").unwrap().len(), 4, "whatever the template takes");
    }

    #[test]
    fn what_is_no_conversation_is_refused() {
        for (messages, cause) in [
            (json!([]), "nothing to answer"),
            (json!("hello"), "expected a list"),
            (json!(["hello"]), "message 0 is no object"),
            (json!([{"content": "a"}]), "has role none"),
            (json!([{"type": "function_call_output", "output": "a"}]), "is no message"),
            (json!([{"role": "tool", "content": "a"}]), "has role tool"),
            (json!([{"role": "user"}]), "no content"),
            (json!([{"role": "user", "content": null}]), "no content"),
            (json!([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]), "no text"),
        ] {
            let error = read(messages.clone(), "messages").unwrap_err().to_string();
            assert!(error.contains(cause), "{messages}: {error}");
        }
    }
}
