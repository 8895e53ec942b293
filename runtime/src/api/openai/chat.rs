//! `/v1/chat/completions`: the last message is the question, everything before it the context.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use actix_web::{
    HttpRequest, HttpResponse, post,
    web::{Data, block},
};
use asterism_actors::{
    api::{JobRequest, Prompt, Reuse, bounds},
    supervisor::is_continued,
};
use asterism_models::{ChatTurn, Ending, QuerySeparator, RenderOptions, Speaker, ToolCall, Tooling};
use serde::de::DeserializeSeed;
use serde_json::Value;

use super::{
    ApiState, Checked,
    answers::{answer, several, wire::RequestKind},
    refusal,
    requests::{
        ask::{self, ParsedRequest},
        fields::{Fields, wrong},
        logprobs,
        message::{CallIn, Content, Message, Messages},
        once::{BoundedValue, Budget},
        shape::{AnswerShape, PromptEcho},
        thinking,
        tools::{self, Tools, without_tools},
    },
};
use crate::api::http::{body::intake::Taken, error::Refusal};

#[post("/v1/chat/completions")]
pub async fn complete(state: Data<ApiState>, request: HttpRequest, taken: Taken<Fields>) -> Checked<HttpResponse> {
    let (fields, share) = taken.into_parts();
    let asked = parse_chat(&state, fields).await?;
    several::give((state, &request), (RequestKind::Chat, "messages"), asked, share).await
}

/// The job of a request.
pub async fn parse_chat(state: &ApiState, mut fields: Fields) -> Checked<ParsedRequest> {
    let messages = fields.messages.take().ok_or_else(|| fields.missing("messages"))?;
    refuse_texts(&fields)?;
    let turns = read(messages, "messages")?;
    let ending = ending(&mut fields, &turns)?;
    let (logprobs, prompt_logprobs) = (logprobs::of_chat_asked(&mut fields)?, logprobs::of_prompt_asked(&mut fields)?);
    let choices = ask::choices(&mut fields, 1)?;
    let tools = tools::take(&mut fields)?;
    let model = state.model_named(fields.model()?.as_deref())?;
    let mut variables = variables(&mut fields)?;
    if let Some(effort) = fields.take::<String>("reasoning_effort")? {
        for (name, value) in thinking::variables(&model, ("reasoning_effort", &effort))? {
            variables.entry(name).or_insert(value);
        }
    }
    let mut asked = ParsedRequest::take(fields, &model)?;
    asked.shape = AnswerShape { logprobs, prompt_logprobs, ..AnswerShape::default() };
    (asked.choices, asked.job.logprobs) = (choices, asked.shape.most_logprobs());
    let conversation = Conversation { turns, ending, tools, variables };
    asked = about(state, conversation, (asked, "messages")).await?;
    if prompt_logprobs.is_some() {
        (asked.job, asked.shape.echo) = whole(state, asked.job).await?;
    }
    Ok(asked)
}

/// A conversation that is to be answered.
pub struct Conversation {
    /// Its messages.
    pub turns: Vec<ChatTurn>,
    /// How it ends.
    pub ending: Ending,
    /// Tools that the model may call.
    pub tools: Option<Tools>,
    /// Further variables of the template.
    pub variables: BTreeMap<String, Value>,
}

/// Variables of the template that are its own.
const OWN_VARIABLES: [&str; 6] =
    ["messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template"];

/// `chat_template_kwargs`.
pub fn variables(fields: &mut Fields) -> Checked<BTreeMap<String, Value>> {
    let variables: BTreeMap<String, Value> = fields.take("chat_template_kwargs")?.unwrap_or_default();
    match OWN_VARIABLES.into_iter().find(|own| variables.contains_key(*own)) {
        Some(own) => Err(Refusal::invalid("chat_template_kwargs", format!("{own} is not for chat_template_kwargs"))),
        None => Ok(variables),
    }
}

/// The job whose prompt's tokens are told, and the first of them.
async fn whole(state: &ApiState, mut job: JobRequest) -> Checked<(JobRequest, Option<PromptEcho>)> {
    let model = state.model_named(job.model.as_deref())?;
    let (context, query) = match (job.context.take(), job.query) {
        (Some(Prompt::Written(context)), Prompt::Written(query)) => (context, query),
        _ => return Err(refusal::unsupported("prompt_logprobs", "a session's tokens are told to nobody")),
    };
    let read = block(move || model.rendered_ids(context, query)).await;
    let ids = read.map_err(|error| Refusal::failed("internal", error))?;
    let ids = ids.map_err(|error| refusal::of_job(error, "messages"))?;
    let echo = PromptEcho { first: ids[0], text: None };
    let (query, prompt_logprobs) = (Prompt::Tokens(ids), true);
    // Its date is in the tokens already.
    Ok((JobRequest { query, prompt_logprobs, query_separator: None, template_date: None, ..job }, Some(echo)))
}

/// The job that answers a conversation, by a session if it names one. `param`: where the conversation came from.
pub async fn about(
    state: &ApiState,
    Conversation { mut turns, ending, tools, variables }: Conversation,
    (mut asked, param): (ParsedRequest, &'static str),
) -> Checked<ParsedRequest> {
    if asked.job.session.is_some() {
        if tools.is_some() || !variables.is_empty() {
            let expected = "a session's conversation was told of none; send the whole conversation";
            return Err(refusal::unsupported("tools", expected));
        }
        let last = turns.pop().filter(|_| turns.is_empty()).ok_or_else(|| {
            Refusal::invalid(param, "a session has what was said before: send the new user message alone")
        })?;
        asked.job.query = last.text.into();
        return Ok(asked);
    }
    let model = state.model_named(asked.job.model.as_deref())?;
    // What the template is told here is what the job says.
    let date = model.date(asked.job.template_date, Duration::from_secs(answer::unix_time()));
    let described = tools.as_ref().map_or_else(Vec::new, |tools| tools.described.clone());
    if let Some(tools) = tools {
        hold_to_call(&mut asked, &tools)?;
        asked.job.sampling.constraint = tools.ending(asked.job.sampling.constraint.take());
        asked.shape.tools = Some(Arc::new(tools));
    }
    if is_continued(&turns) {
        asked.job.reuse = Reuse::Likely;
    }
    let options = RenderOptions { variables, ..RenderOptions::on(date).ending(ending) };
    let split = block(move || match model.takes_tools() {
        true => model.conversation(turns, RenderOptions { tools: described, ..options }),
        false => model.conversation(without_tools(turns, &described), options),
    });
    let split = split.await.map_err(|error| Refusal::failed("internal", error))?;
    let (context, query) = split.map_err(|error| refusal::of_job(error, param))?;
    asked.job = JobRequest {
        context: Some(context.into()),
        query: query.into(),
        // Which it went through already.
        chat_template: true,
        query_separator: Some(QuerySeparator::NONE),
        template_date: Some(date),
        ..asked.job
    };
    Ok(asked)
}

/// Holds an answer that has to be a call to the form of one.
fn hold_to_call(asked: &mut ParsedRequest, tools: &Tools) -> Checked<()> {
    let Some(form) = tools.form() else { return Ok(()) };
    match asked.job.sampling.constraint.replace(form) {
        None => {
            asked.form_field = "tools";
            Ok(())
        }
        Some(_) => {
            let message = format!("a call of a tool has no other form: leave {} out", asked.form_field);
            Err(Refusal::invalid("tool_choice", message))
        }
    }
}

/// A conversation alone is what is asked about.
pub fn refuse_texts(fields: &Fields) -> Checked<()> {
    let given = [("prompt", fields.prompt.is_some()), ("context", fields.context.is_some())];
    match given.into_iter().find(|(_, given)| *given) {
        Some((name, _)) => Err(refusal::unknown(name, [])),
        None => Ok(()),
    }
}

/// How the conversation ends that the model is asked with.
pub fn ending(fields: &mut Fields, turns: &[ChatTurn]) -> Checked<Ending> {
    let (continues, answers) = (fields.take("continue_final_message")?, fields.take("add_generation_prompt")?);
    Ending::of(turns.last(), continues, answers)
        .map_err(|cause| Refusal::invalid("continue_final_message", cause.to_owned()))
}

/// What a conversation without a question lacks.
pub const NOTHING_ASKED: &str = "there is nothing to answer: expected a message of role user";

/// Most values in the arguments of all calls of a conversation.
const MOST_CHAT_ARGUMENTS: usize = 65_536;

/// A conversation in whatever order: the model's template says which it takes.
pub fn read(messages: Messages, param: &str) -> Checked<Vec<ChatTurn>> {
    let Messages::List(messages) = messages else { return Err(wrong(param, &"expected a list")) };
    let (mut turns, budget): (Vec<ChatTurn>, _) =
        (Vec::with_capacity(messages.len()), Budget::of_values(MOST_CHAT_ARGUMENTS));
    for (at, message) in messages.into_iter().enumerate() {
        let refused = |what: &str| Refusal::invalid(param, format!("message {at} {what}"));
        if !message.is_object {
            return Err(refused("is no object"));
        }
        match message.kind.as_deref() {
            None | Some("message") => turns.push(turn(message, &budget).map_err(|what| refused(&what))?),
            // What a model thought is not told it again.
            Some("reasoning") => {}
            Some("function_call") => {
                let (id, name) = (message.call_id.unwrap_or_default(), message.name.unwrap_or_default());
                let call = call((id, name), &message.arguments.unwrap_or_default(), &budget);
                called(&mut turns, call.map_err(|what| refused(&what))?);
            }
            Some("function_call_output") => {
                let text = text_of(message.output).map_err(|what| refused(&what.replace("content", "output")))?;
                if message.call_id.as_deref().is_none_or(str::is_empty) {
                    return Err(refused("has no call_id, which says whose output it is"));
                }
                let tooling = Tooling { call_id: message.call_id, ..Tooling::default() };
                turns.push(ChatTurn { tooling: Some(Box::new(tooling)), ..ChatTurn::new(Speaker::Tool, text) });
            }
            Some(_) => return Err(refused("is no message, and no call of a function or its output")),
        }
    }
    if turns.is_empty() {
        return Err(Refusal::invalid(param, NOTHING_ASKED));
    }
    Ok(turns)
}

/// A message with what it calls, or what it wants.
fn turn(message: Message, budget: &Budget) -> Result<ChatTurn, String> {
    let Message { role, content, calls, call_id, name, .. } = message;
    let speaker = match role.as_deref() {
        Some("system" | "developer") => Speaker::System,
        Some("user") => Speaker::User,
        Some("assistant") => Speaker::Assistant,
        Some("tool") => Speaker::Tool,
        role => {
            let role = bounds::shown(role.unwrap_or("none"));
            return Err(format!("has role {role}, expected system, developer, user, assistant or tool"));
        }
    };
    let calls: Result<Vec<ToolCall>, String> = calls
        .into_iter()
        .map(|CallIn { id, function }| call((id.unwrap_or_default(), function.name), &function.arguments.0, budget))
        .collect();
    let calls = calls?;
    if !calls.is_empty() && speaker != Speaker::Assistant {
        return Err("has tool_calls, which an assistant's message has".to_owned());
    }
    // Who calls a tool need say nothing.
    let is_mute = !calls.is_empty() && content == Content::Missing;
    let text = if is_mute { String::new() } else { text_of(content)? };
    let is_tool = speaker == Speaker::Tool;
    let tooling = Tooling { is_mute, calls, call_id: call_id.filter(|_| is_tool), name: name.filter(|_| is_tool) };
    let tooling = (tooling != Tooling::default()).then(|| Box::new(tooling));
    Ok(ChatTurn { speaker, text, tooling })
}

fn text_of(content: Content) -> Result<String, String> {
    match content {
        Content::Text(text) => Ok(text),
        Content::NoText(kind) => {
            let kind = if kind.is_empty() { "no text".to_owned() } else { format!("of type {}", bounds::shown(&kind)) };
            Err(format!("has content that is {kind}; expected parts {{\"type\": \"text\", \"text\": ...}}"))
        }
        Content::Missing => Err("has no content that is text".to_owned()),
    }
}

/// A call; arguments that are no object of JSON stay the text that they are.
fn call((id, name): (String, String), arguments: &str, budget: &Budget) -> Result<ToolCall, String> {
    if name.is_empty() {
        return Err("has a call without the name of a function".to_owned());
    }
    let read = BoundedValue(budget).deserialize(&mut serde_json::Deserializer::from_str(arguments));
    let arguments = match read {
        Ok(value @ Value::Object(_)) => value,
        Err(error) if error.to_string().contains("too much") => {
            return Err(format!(
                "has calls whose arguments have more than {MOST_CHAT_ARGUMENTS} values with those before"
            ));
        }
        _ if arguments.trim().is_empty() => Value::Object(Default::default()),
        _ => Value::String(arguments.to_owned()),
    };
    Ok(ToolCall { id, name, arguments })
}

/// A call that stands for itself is one of the assistant's message before it.
fn called(turns: &mut Vec<ChatTurn>, call: ToolCall) {
    match turns.last_mut().filter(|last| last.speaker == Speaker::Assistant) {
        Some(last) => last.tooling.get_or_insert_default().calls.push(call),
        None => {
            let tooling = Tooling { is_mute: true, calls: vec![call], ..Tooling::default() };
            turns.push(ChatTurn { tooling: Some(Box::new(tooling)), ..ChatTurn::new(Speaker::Assistant, "") });
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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
    fn calls_and_what_came_of_them_are_kept() {
        let arguments = r#"{"z": "Oslo", "a": 1}"#;
        let chat = read(
            json!([
                {"role": "user", "content": "How is it?"},
                {"role": "assistant", "content": null,
                 "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": arguments}}]},
                {"role": "tool", "tool_call_id": "c1", "content": "cold"},
            ]),
            "messages",
        );
        let items = read(
            json!([
                {"role": "user", "content": "How is it?"},
                {"type": "reasoning", "summary": []},
                {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": arguments},
                {"type": "function_call_output", "call_id": "c1", "output": "cold"},
            ]),
            "input",
        );
        let chat = chat.unwrap();
        assert_eq!(chat, items.unwrap());
        let tooling = chat[1].tooling.as_deref().expect("a call");
        let written = tooling.calls[0].arguments.to_string();
        assert_eq!((tooling.is_mute, &*written), (true, r#"{"z":"Oslo","a":1}"#), "in the order that it had");
        assert_eq!(chat[2].tooling.as_deref().and_then(|tooling| tooling.call_id.as_deref()), Some("c1"));
        let text = json!([{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "{no"}}]}]);
        let turns = read(text, "messages").unwrap();
        let tooling = turns[0].tooling.as_deref().expect("a call");
        assert_eq!((tooling.is_mute, &tooling.calls[0].arguments), (false, &json!("{no")));
    }

    #[test]
    fn what_is_no_conversation_is_refused() {
        for (messages, cause) in [
            (json!([]), "nothing to answer"),
            (json!("hello"), "expected a list"),
            (json!(["hello"]), "message 0 is no object"),
            (json!([{"content": "a"}]), "has role none"),
            (json!([{"type": "computer_call", "output": "a"}]), "is no message"),
            (json!([{"role": "function", "content": "a"}]), "has role function"),
            (json!([{"role": "user", "content": "a", "tool_calls": [{"function": {"name": "f"}}]}]), "an assistant's"),
            (json!([{"role": "assistant", "tool_calls": [{"function": {"arguments": "{}"}}]}]), "without the name"),
            (json!([{"type": "function_call_output"}]), "no output that is text"),
            (json!([{"type": "function_call_output", "output": "a"}]), "no call_id"),
            (json!([{"role": "user"}]), "no content"),
            (json!([{"role": "user", "content": null}]), "no content"),
            (json!([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]), "image_url"),
            (json!([{"role": "user", "content": [{"type": "text", "text": 3}]}]), "no text"),
        ] {
            let error = read(messages.clone(), "messages").unwrap_err().to_string();
            assert!(error.contains(cause), "{messages}: {error}");
        }
    }
}
