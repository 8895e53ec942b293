//! What a template is given of a conversation: its messages, tools and further variables, with all texts in one order, so that texts
//! can be marked whichever value they stand in. Renders nothing.

use std::borrow::Cow;

use minijinja::Value;
use serde_json::Value as Json;

use crate::chat::{ChatTurn, RenderOptions, Tooling};

/// A conversation and what goes with it.
#[derive(Clone, Copy)]
pub struct Subject<'t> {
    pub turns: &'t [ChatTurn],
    pub options: &'t RenderOptions,
}

/// The same as a template gets it.
pub struct TemplateInput {
    pub messages: Value,
    pub tools: Value,
    pub variables: Vec<(String, Value)>,
    /// Bytes of its texts.
    pub bytes: usize,
    /// Messages and tools.
    pub count: usize,
}

impl<'t> Subject<'t> {
    /// All texts: first what the messages say, then the others in the order of [`Subject::input`].
    pub fn texts(&self) -> Vec<&'t str> {
        let mut texts: Vec<&str> = self.turns.iter().map(|turn| turn.text.as_str()).collect();
        for tooling in self.turns.iter().filter_map(|turn| turn.tooling.as_deref()) {
            let Tooling { calls, call_id, name, .. } = tooling;
            for call in calls {
                texts.extend([call.id.as_str(), &call.name]);
                walk(&call.arguments, &mut |text| texts.push(text));
            }
            texts.extend(call_id.as_deref().into_iter().chain(name.as_deref()));
        }
        let RenderOptions { tools, variables, .. } = self.options;
        tools.iter().chain(variables.values()).for_each(|value| walk(value, &mut |text| texts.push(text)));
        texts
    }

    /// Names of fields within calls and tools.
    pub fn keys(&self) -> Vec<&'t str> {
        let mut keys = Vec::new();
        let calls = self.turns.iter().filter_map(|turn| turn.tooling.as_deref()).flat_map(|tooling| &tooling.calls);
        calls.for_each(|call| walk_keys(&call.arguments, &mut keys));
        let RenderOptions { tools, variables, .. } = self.options;
        tools.iter().chain(variables.values()).for_each(|value| walk_keys(value, &mut keys));
        keys
    }

    /// What the template gets, with these texts in the place of its own.
    pub fn input(&self, texts: &[Cow<'_, str>]) -> TemplateInput {
        let (said, others) = texts.split_at(self.turns.len());
        let mut others = others.iter();
        let mut next = || Value::from(others.next().map_or("", AsRef::as_ref));
        let messages = self.turns.iter().zip(said).map(|(turn, text)| message(turn, text, &mut next)).collect();
        let RenderOptions { tools, variables, .. } = self.options;
        let count = self.turns.len() + tools.len();
        let filled: Vec<Value> = tools.iter().map(|tool| fill(tool, &mut next)).collect();
        let tools = if tools.is_empty() { Value::from(()) } else { Value::from(filled) };
        let variables = variables.iter().map(|(name, value)| (name.clone(), fill(value, &mut next))).collect();
        TemplateInput { messages, tools, variables, bytes: texts.iter().map(|text| text.len()).sum(), count }
    }
}

fn message(turn: &ChatTurn, text: &str, next: &mut dyn FnMut() -> Value) -> Value {
    let role = ("role", Value::from(turn.speaker.role()));
    let Some(tooling) = turn.tooling.as_deref() else {
        return Value::from_pairs([role, ("content", Value::from(text))]);
    };
    let content = if tooling.is_mute { Value::from(()) } else { Value::from(text) };
    let mut fields = vec![role, ("content", content)];
    if !tooling.calls.is_empty() {
        let mut calls = Vec::with_capacity(tooling.calls.len());
        for call in &tooling.calls {
            let (id, name) = (next(), next());
            let arguments = fill(&call.arguments, next);
            let function = Value::from_pairs([("name", name), ("arguments", arguments)]);
            calls.push(Value::from_pairs([("id", id), ("type", Value::from("function")), ("function", function)]));
        }
        fields.push(("tool_calls", Value::from(calls)));
    }
    fields.extend(tooling.call_id.as_ref().map(|_| ("tool_call_id", next())));
    fields.extend(tooling.name.as_ref().map(|_| ("name", next())));
    Value::from_pairs(fields)
}

/// A value with the texts that come next in the place of its own.
fn fill(value: &Json, next: &mut dyn FnMut() -> Value) -> Value {
    match value {
        Json::String(_) => next(),
        Json::Array(items) => items.iter().map(|item| fill(item, next)).collect(),
        Json::Object(fields) => Value::from_pairs(fields.iter().map(|(name, value)| (name.clone(), fill(value, next)))),
        Json::Null => Value::from(()),
        Json::Bool(truth) => Value::from(*truth),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Value::from(number),
            (_, Some(number)) => Value::from(number),
            _ => Value::from(number.as_f64().unwrap_or_default()),
        },
    }
}

fn walk<'t>(value: &'t Json, each: &mut impl FnMut(&'t str)) {
    match value {
        Json::String(text) => each(text),
        Json::Array(items) => items.iter().for_each(|item| walk(item, each)),
        Json::Object(fields) => fields.values().for_each(|value| walk(value, each)),
        _ => {}
    }
}

fn walk_keys<'t>(value: &'t Json, keys: &mut Vec<&'t str>) {
    match value {
        Json::Array(items) => items.iter().for_each(|item| walk_keys(item, keys)),
        Json::Object(fields) => fields.iter().for_each(|(name, value)| {
            keys.push(name);
            walk_keys(value, keys);
        }),
        _ => {}
    }
}
