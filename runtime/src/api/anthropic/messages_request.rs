//! A request of the Messages API, put into the words of a chat. Asks nobody.

use std::{collections::BTreeMap, sync::Arc};

use asterism_actors::supervisor::ModelFront;
use asterism_models::{ChatTurn, Ending, Speaker, ToolCall, Tooling};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, Error},
};
use serde_json::{Map, Value, json};

use crate::api::{
    http::error::{Refusal, parser_words},
    openai::{
        ApiState, Checked,
        chat::{Conversation, NOTHING_ASKED},
        refusal,
        requests::{
            ask::ParsedRequest,
            fields::Fields,
            known::is_known,
            once::{BoundedValue, Budget},
            tools,
        },
    },
};

/// Most values of a request: texts are bounded with its bytes.
const MOST_MESSAGES_VALUES: usize = 65_536;
/// Longest answer where none is said, as only counting does not.
const COUNTED: u64 = 1;

/// A request as it is written.
#[derive(Debug)]
pub struct MessagesRequest(Map<String, Value>);

impl<'de> Deserialize<'de> for MessagesRequest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match BoundedValue(&Budget::of_values(MOST_MESSAGES_VALUES)).deserialize(deserializer)? {
            Value::Object(fields) => Ok(Self(fields)),
            _ => Err(D::Error::custom("expected an object")),
        }
    }
}

/// Fields that chats do not have, or not under these names.
const OWN: &[&str] = &["messages", "system", "stop_sequences", "thinking"];

/// Fields that change nothing of an answer.
const TAKEN: [&str; 5] = ["metadata", "service_tier", "cache_control", "inference_geo", "speed"];

impl MessagesRequest {
    /// The conversation, and how it is answered.
    pub fn read(self, state: &ApiState) -> Checked<(Conversation, ParsedRequest)> {
        let model = self.model(state)?;
        self.bounded()?.of_model(&model)
    }

    /// The same of a request that is only counted, and says no longest answer.
    pub fn counted(self, state: &ApiState) -> Checked<(Conversation, ParsedRequest)> {
        let model = self.model(state)?;
        self.of_model(&model)
    }

    fn model(&self, state: &ApiState) -> Checked<Arc<ModelFront>> {
        state.model_named(self.0.get("model").and_then(Value::as_str))
    }

    /// One that says how long its answer may be.
    fn bounded(self) -> Checked<Self> {
        match self.0.get("max_tokens") {
            None | Some(Value::Null) => {
                let message = "max_tokens is not there, expected how many tokens the answer may have";
                Err(missing(&self.0, "max_tokens", message))
            }
            Some(_) => Ok(self),
        }
    }

    fn of_model(self, model: &ModelFront) -> Checked<(Conversation, ParsedRequest)> {
        let Self(mut fields) = self;
        let messages = fields.shift_remove("messages");
        let mut turns: Vec<ChatTurn> = system(fields.shift_remove("system"))?.into_iter().collect();
        let Some(Value::Array(messages)) = messages else {
            return Err(missing(&fields, "messages", "there are no messages, expected a list of them"));
        };
        for (at, message) in messages.into_iter().enumerate() {
            let refused = |what: String| Refusal::invalid("messages", format!("message {at} {what}"));
            read_message(message, &mut turns).map_err(refused)?;
        }
        if turns.iter().all(|turn| turn.speaker == Speaker::System) {
            return Err(Refusal::invalid("messages", NOTHING_ASKED));
        }
        let ending = Ending::of(turns.last(), None, None);
        let ending = ending.map_err(|cause| Refusal::invalid("messages", cause.to_owned()))?;
        let mut fields = answered(fields)?;
        let tools = tools::take(&mut fields)?;
        let asked = ParsedRequest::take(fields, model)?;
        Ok((Conversation { turns, ending, tools, variables: BTreeMap::new() }, asked))
    }
}

/// That a field is missing, with the one that was perhaps to be it.
fn missing(fields: &Map<String, Value>, name: &'static str, message: &str) -> Refusal {
    let is_own = |given: &str| is_known(given) || OWN.contains(&given) || TAKEN.contains(&given);
    refusal::missing(name, message, fields.keys().map(String::as_str).filter(|given| !is_own(given)))
}

/// How a request is answered, under the names of a chat's fields.
fn answered(mut fields: Map<String, Value>) -> Checked<Fields> {
    TAKEN.iter().for_each(|name| drop(fields.shift_remove(*name)));
    let thinks = fields.shift_remove("thinking").filter(|thinking| !thinking.is_null());
    if thinks.is_some_and(|thinking| thinking["type"] != "disabled") {
        return Err(refusal::unsupported("thinking", "expected {\"type\": \"disabled\"}: the model is asked as it is"));
    }
    if let Some(tools) = fields.shift_remove("tools") {
        fields.insert("tools".to_owned(), described(tools)?);
    }
    if let Some(choice) = fields.shift_remove("tool_choice").filter(|choice| !choice.is_null()) {
        let alone = choice["disable_parallel_tool_use"].clone();
        fields.insert("tool_choice".to_owned(), chosen(&choice)?);
        match alone {
            Value::Null => {}
            Value::Bool(alone) => drop(fields.insert("parallel_tool_calls".to_owned(), (!alone).into())),
            _ => {
                let message = "tool_choice has a disable_parallel_tool_use that is not true or false";
                return Err(Refusal::invalid("tool_choice", message));
            }
        }
    }
    if let Some(stops) = fields.shift_remove("stop_sequences").filter(|stops| !stops.is_null()) {
        fields.insert("stop".to_owned(), stops);
    }
    fields.entry("max_tokens").or_insert(COUNTED.into());
    let read = serde_json::from_value(Value::Object(fields)).map(|fields: Fields| fields.with_names(OWN));
    read.map_err(|error: serde_json::Error| {
        Refusal::invalid(None, format!("the request is not what is wanted here: {}", parser_words(&error)))
    })
}

/// Tools as chats describe them.
fn described(tools: Value) -> Checked<Value> {
    let Value::Array(tools) = tools else { return Err(Refusal::invalid("tools", "tools is no list")) };
    let one = |(at, mut tool): (usize, Value)| {
        let kind = tool["type"].as_str().unwrap_or("custom").to_owned();
        if kind != "custom" {
            let kind: String = kind.chars().take(40).collect();
            return Err(refusal::unsupported("tools", &format!("tool {at} is of type {kind:?}, expected custom")));
        }
        let mut function = json!({ "name": tool["name"].take(), "parameters": tool["input_schema"].take() });
        if let description @ Value::String(_) = tool["description"].take() {
            function["description"] = description;
        }
        Ok(json!({ "type": "function", "function": function }))
    };
    let objects = tools.iter().all(Value::is_object);
    match objects {
        true => tools.into_iter().enumerate().map(one).collect::<Checked<Vec<Value>>>().map(Value::Array),
        false => Err(Refusal::invalid("tools", "a tool is no object")),
    }
}

fn chosen(choice: &Value) -> Checked<Value> {
    match choice["type"].as_str() {
        Some("auto") => Ok("auto".into()),
        Some("any") => Ok("required".into()),
        Some("none") => Ok("none".into()),
        Some("tool") => Ok(json!({ "type": "function", "function": { "name": choice["name"] } })),
        _ => Err(Refusal::invalid("tool_choice", "tool_choice has no type, expected auto, any, tool or none")),
    }
}

fn system(system: Option<Value>) -> Checked<Option<ChatTurn>> {
    let Some(system) = system.filter(|system| !system.is_null()) else { return Ok(None) };
    let text = text_of(system).map_err(|what| Refusal::invalid("system", format!("system {what}")))?;
    Ok((!text.is_empty()).then(|| ChatTurn::new(Speaker::System, text)))
}

/// A text, or blocks that are texts, joined.
fn text_of(content: Value) -> Result<String, String> {
    match content {
        Value::Null => Ok(String::new()),
        Value::String(text) => Ok(text),
        Value::Array(blocks) => {
            let text = |mut block: Value| match (block["text"].take(), block["type"].as_str()) {
                (Value::String(text), Some("text")) => Ok(text),
                (_, kind) => Err(no_block(kind)),
            };
            let objects = blocks.iter().all(Value::is_object);
            let texts = blocks.into_iter().filter(|_| objects).map(text).collect::<Result<Vec<_>, String>>()?;
            if objects { Ok(texts.join("\n")) } else { Err("has a block that is no object".to_owned()) }
        }
        _ => Err("has content that is no text and no list of blocks".to_owned()),
    }
}

fn no_block(kind: Option<&str>) -> String {
    let kind: String = kind.unwrap_or("none").chars().take(40).collect();
    format!("has a block of type {kind:?}, expected text, tool_use or tool_result: the model reads texts")
}

/// A message's turns: what came of tools stands before what the user says.
fn read_message(mut message: Value, turns: &mut Vec<ChatTurn>) -> Result<(), String> {
    if !message.is_object() {
        return Err("is no object".to_owned());
    }
    let content = message["content"].take();
    let speaker = match message["role"].as_str() {
        Some("user") => Speaker::User,
        Some("assistant") => Speaker::Assistant,
        Some("system") => Speaker::System,
        role => {
            let role: String = role.unwrap_or("none").chars().take(40).collect();
            return Err(format!("has role {role:?}, expected user or assistant"));
        }
    };
    let Value::Array(blocks) = content else {
        turns.push(ChatTurn::new(speaker, text_of(content)?));
        return Ok(());
    };
    let (mut texts, mut calls, mut results) = (Vec::new(), Vec::new(), Vec::new());
    for mut block in blocks {
        if !block.is_object() {
            return Err("has a block that is no object".to_owned());
        }
        match block["type"].as_str() {
            Some("text") => texts.push(text_of(block["text"].take())?),
            // What a model thought is not told it again.
            Some("thinking" | "redacted_thinking") => {}
            Some("tool_use") if speaker == Speaker::Assistant => calls.push(call(block)?),
            Some("tool_result") if speaker == Speaker::User => results.push(result(block)?),
            kind => return Err(no_block(kind)),
        }
    }
    let says = !texts.is_empty();
    let is_empty = !says && calls.is_empty() && results.is_empty();
    turns.extend(results);
    if says || !calls.is_empty() || is_empty {
        let tooling = Tooling { is_mute: !says && !calls.is_empty(), calls, ..Tooling::default() };
        let tooling = (tooling != Tooling::default()).then(|| Box::new(tooling));
        turns.push(ChatTurn { speaker, text: texts.join("\n"), tooling });
    }
    Ok(())
}

fn call(mut block: Value) -> Result<ToolCall, String> {
    let name = block["name"].as_str().ok_or("has a tool_use without a name")?.to_owned();
    let id = block["id"].as_str().unwrap_or_default().to_owned();
    let arguments = match block["input"].take() {
        Value::Null => json!({}),
        input => input,
    };
    Ok(ToolCall { id, name, arguments })
}

fn result(mut block: Value) -> Result<ChatTurn, String> {
    let call_id = block["tool_use_id"].as_str().map(str::to_owned);
    let text = text_of(block["content"].take())?;
    let text = if block["is_error"] == true { format!("Error: {text}") } else { text };
    let tooling = Tooling { call_id, ..Tooling::default() };
    Ok(ChatTurn { tooling: Some(Box::new(tooling)), ..ChatTurn::new(Speaker::Tool, text) })
}

#[cfg(test)]
mod tests {
    use asterism_models::{Checkpoint, TemplateSource};

    use super::*;

    fn read(body: Value) -> Checked<(Conversation, ParsedRequest)> {
        let front = ModelFront::load(&Checkpoint::embedded().unwrap(), None, TemplateSource::in_process).unwrap();
        serde_json::from_value::<MessagesRequest>(body).expect("an object").of_model(&front)
    }

    #[test]
    fn a_session_of_an_agent_is_a_conversation_with_calls() {
        let (conversation, asked) = read(json!({
            "max_tokens": 64, "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
            "stop_sequences": ["END"], "metadata": {"user_id": "me"},
            "tools": [{"name": "read", "description": "Reads.", "input_schema": {"type": "object"}}],
            "tool_choice": {"type": "any"},
            "messages": [
                {"role": "user", "content": "What is in a.txt?"},
                {"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "hm", "signature": ""}, {"type": "text", "text": "Let me see."},
                    {"type": "tool_use", "id": "t1", "name": "read", "input": {"path": "a.txt"}}]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "whales"}]},
                    {"type": "text", "text": "Go on."}]},
            ],
        }))
        .unwrap();
        let said: Vec<_> = conversation.turns.iter().map(|turn| (turn.speaker, turn.text.as_str())).collect();
        use Speaker::{Assistant, System, Tool, User};
        let expected = [
            (System, "Be brief."),
            (User, "What is in a.txt?"),
            (Assistant, "Let me see."),
            (Tool, "whales"),
            (User, "Go on."),
        ];
        assert_eq!(said, expected);
        assert_eq!(conversation.turns[2].tooling.as_ref().unwrap().calls[0].arguments, json!({"path": "a.txt"}));
        assert_eq!(conversation.tools.unwrap().choice, tools::ToolChoice::Required);
        assert_eq!((asked.job.max_tokens, asked.job.stop), (64, vec!["END".to_owned()]));
        for (choice, parallel) in [
            (json!({"type": "auto"}), true),
            (json!({"type": "auto", "disable_parallel_tool_use": true}), false),
            (json!({"type": "any", "disable_parallel_tool_use": true}), false),
            (json!({"type": "auto", "disable_parallel_tool_use": false}), true),
        ] {
            let tools = json!([{"name": "read", "input_schema": {"type": "object"}}]);
            let messages = json!([{"role": "user", "content": "a"}]);
            let read = read(json!({"messages": messages, "tools": tools, "tool_choice": choice})).unwrap();
            assert_eq!(read.0.tools.unwrap().parallel, parallel, "{choice}");
        }
    }

    #[test]
    fn an_answer_has_a_bound_and_a_count_needs_none() {
        let messages = json!([{"role": "user", "content": "a"}]);
        for body in [json!({"messages": messages}), json!({"messages": messages, "max_tokens": null})] {
            let request: MessagesRequest = serde_json::from_value(body).unwrap();
            let refused = request.bounded().unwrap_err().to_string();
            assert!(refused.contains("max_tokens is not there"), "{refused}");
        }
        let bounded: MessagesRequest = serde_json::from_value(json!({"max_tokens": 3})).unwrap();
        bounded.bounded().unwrap();
        read(json!({"messages": messages})).unwrap();
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_by_name() {
        let one = json!([{"role": "user", "content": "a"}]);
        for (body, cause) in [
            (json!({"messages": []}), "nothing to answer"),
            (json!({}), "no messages"),
            (json!({"messages": one, "thinking": {"type": "enabled", "budget_tokens": 5}}), "thinking"),
            (json!({"messages": one, "tools": [{"type": "web_search_20250305", "name": "w"}]}), "web_search"),
            (json!({"messages": one, "unheard_of": 1}), "unheard_of"),
            (json!({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}), "image"),
            (json!({"messages": [{"role": "robot", "content": "a"}]}), "robot"),
            (json!({"messages": [3]}), "no object"),
            (json!({"messages": [{"role": "user", "content": [3]}]}), "no object"),
            (json!({"messages": [{"role": "user", "content": 3}]}), "no text"),
            (json!({"messages": one, "tools": [3]}), "no object"),
            (
                json!({"messages": one, "tool_choice": {"type": "auto", "disable_parallel_tool_use": 1}}),
                "true or false",
            ),
        ] {
            let refused = read(body.clone()).err().map(|refused| refused.to_string()).unwrap_or_default();
            assert!(refused.contains(cause), "{body}: {refused}");
        }
    }
}
