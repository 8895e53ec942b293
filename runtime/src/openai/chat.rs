//! `/v1/chat/completions`: the last user message is the question, everything before it the context.

use actix_web::{
    HttpRequest, HttpResponse, post,
    web::{Data, block},
};
use asterism_actors::api::{JobRequest, bounds};
use asterism_models::{QuerySeparator, Speaker, Turn};

use super::{
    ApiState, Checked, answer,
    ask::Asked,
    fields::{Fields, wrong},
    logprobs,
    message::{Content, Message, Messages},
    refusal,
    wire::Kind,
};
use crate::http::{error::Refusal, intake::Taken};

#[post("/v1/chat/completions")]
pub async fn complete(state: Data<ApiState>, request: HttpRequest, taken: Taken<Fields>) -> Checked<HttpResponse> {
    let (fields, share) = taken.into_parts();
    let asked = asked(&state, fields).await?;
    answer::give((state, &request), (Kind::Chat, "messages"), asked, share).await
}

/// The job of a request.
pub async fn asked(state: &ApiState, mut fields: Fields) -> Checked<Asked> {
    let messages = fields.messages.take().ok_or_else(|| Refusal::invalid("messages", "there are no messages"))?;
    refuse_texts(&fields)?;
    let turns = read(messages, "messages")?;
    let logprobs = logprobs::of_chat_asked(&mut fields)?;
    let mut asked = Asked::take(fields, state)?;
    asked.job.logprobs = logprobs;
    asked.job = about(state, turns, (asked.job, "messages")).await?;
    Ok(asked)
}

/// The job that answers a conversation, by a session if it names one. `param`: where the conversation came from.
pub async fn about(
    state: &ApiState,
    mut turns: Vec<Turn>,
    (job, param): (JobRequest, &'static str),
) -> Checked<JobRequest> {
    if job.session.is_some() {
        let last = turns.pop().filter(|_| turns.is_empty()).ok_or_else(|| {
            Refusal::invalid(param, "a session has what was said before: send the new user message alone")
        })?;
        return Ok(JobRequest { query: last.text.into(), ..job });
    }
    let model = state.supervisor.model().clone();
    let split = block(move || model.conversation(turns)).await;
    let split = split.map_err(|error| Refusal::failed("internal", error))?;
    let (context, query) = split.map_err(|error| refusal::of_job(error, param))?;
    Ok(JobRequest {
        context: Some(context.into()),
        query: query.into(),
        chat_template: false,
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

/// A conversation: system first, if at all, then user and assistant in turns, user last.
pub fn read(messages: Messages, param: &str) -> Checked<Vec<Turn>> {
    use Speaker::{Assistant, System, User};
    let Messages::List(messages) = messages else { return Err(wrong(param, &"expected a list")) };
    let mut turns: Vec<Turn> = Vec::with_capacity(messages.len());
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
        let before = turns.last().map(|turn| turn.speaker);
        match (before, speaker) {
            (None | Some(System), System) | (_, User) | (Some(User | Assistant), Assistant) => {}
            _ => return Err(refused("is out of order: system first, if at all, then user, then assistant and user")),
        }
        let text = match content {
            Content::Text(text) => text,
            Content::NoText => {
                let parts = "has content that is no text; expected parts {\"type\": \"text\", \"text\": ...}";
                return Err(refused(parts));
            }
            Content::Missing => return Err(refused("has no content that is text")),
        };
        turns.push(Turn { speaker, text });
    }
    match turns.last() {
        Some(turn) if turn.speaker == User => Ok(turns),
        _ => Err(Refusal::invalid(param, "the last message is not the user's, and there is nothing to answer")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(messages: Value, param: &str) -> Checked<Vec<Turn>> {
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
            (json!([{"role": "assistant", "content": "a"}]), "message 0 is out of order"),
            (
                json!([{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]),
                "message 1 is out of order",
            ),
            (json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]), "nothing to answer"),
        ] {
            let error = read(messages.clone(), "messages").unwrap_err().to_string();
            assert!(error.contains(cause), "{messages}: {error}");
        }
    }
}
