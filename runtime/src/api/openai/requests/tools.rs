//! Tools that a request names, and how the model is told of them. Calls none.

use asterism_models::{ChatTurn, Constraint, Speaker, Tooling, tools_as_text};
use serde_json::{Value, json};

use super::fields::{Fields, wrong};
use crate::api::{
    http::error::Refusal,
    openai::{Checked, refusal},
};

/// Most tools of a request, and letters of a name.
const MOST_TOOLS: usize = 128;
const MOST_NAME_LETTERS: usize = 128;

/// Tools of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Tools {
    /// As OpenAI's clients describe them.
    pub described: Vec<Value>,
    /// Their names.
    pub names: Vec<String>,
    /// Whether the model has to call one.
    pub choice: ToolChoice,
    /// Whether an answer may call several.
    pub parallel: bool,
}

/// Whether the model has to call a tool.
#[derive(Clone, Debug, PartialEq)]
pub enum ToolChoice {
    /// As it likes.
    Auto,
    /// One of them.
    Required,
    /// This one.
    Named(String),
}

/// The tools of a request, unless it has none or wants none called.
pub fn take(fields: &mut Fields) -> Checked<Option<Tools>> {
    let tools: Vec<Value> = fields.take("tools")?.unwrap_or_default();
    let (choice, parallel) = (fields.value("tool_choice"), parallel(fields)?);
    fields.value(PARALLEL);
    if tools.len() > MOST_TOOLS {
        return Err(Refusal::invalid(
            "tools",
            format!("there are {} tools, expected at most {MOST_TOOLS}", tools.len()),
        ));
    }
    let mut names: Vec<String> = Vec::with_capacity(tools.len());
    let mut described = Vec::with_capacity(tools.len());
    for (at, tool) in tools.into_iter().enumerate() {
        let (name, tool) = tool_of(at, tool)?;
        if names.contains(&name) {
            return Err(Refusal::invalid("tools", format!("two tools are called {name}")));
        }
        names.push(name);
        described.push(tool);
    }
    let Some(choice) = chosen(choice, &names)? else { return Ok(None) };
    if names.is_empty() {
        return match choice {
            ToolChoice::Auto => Ok(None),
            _ => Err(Refusal::invalid("tool_choice", "a tool is to be called, and there are no tools")),
        };
    }
    Ok(Some(Tools { described, names, choice, parallel }))
}

const PARALLEL: &str = "parallel_tool_calls";

/// `parallel_tool_calls`: whether an answer may call several tools; stays there.
pub fn parallel(fields: &Fields) -> Checked<bool> {
    match fields.peek(PARALLEL) {
        None => Ok(true),
        Some(Value::Bool(parallel)) => Ok(*parallel),
        Some(_) => Err(wrong(PARALLEL, &"expected true or false")),
    }
}

/// A tool's name, and itself as templates expect it: Responses write it without a level.
fn tool_of(at: usize, tool: Value) -> Checked<(String, Value)> {
    let refused = |what: &str| Refusal::invalid("tools", format!("tool {at} {what}"));
    match tool.get("type").and_then(Value::as_str) {
        Some("function") => {}
        Some(kind) => {
            let shown: String = kind.chars().take(40).collect();
            return Err(refusal::unsupported("tools", &format!("tool {at} is of type {shown:?}, expected function")));
        }
        None => return Err(refused("has no type, expected function")),
    }
    let tool = match tool.get("function") {
        Some(_) => tool,
        None => {
            let mut function = tool;
            let fields = function.as_object_mut().ok_or_else(|| refused("is no object"))?;
            fields.shift_remove("type");
            json!({ "type": "function", "function": function })
        }
    };
    let function = &tool["function"];
    let name = function.get("name").and_then(Value::as_str).ok_or_else(|| refused("has no name"))?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/".contains(&byte);
    if !(1..=MOST_NAME_LETTERS).contains(&name.len()) || !name.bytes().all(plain) {
        return Err(refused(&format!(
            "has a name that is not 1 to {MOST_NAME_LETTERS} letters, digits, '-', '_', '.', ':' or '/'"
        )));
    }
    if function.get("parameters").is_some_and(|parameters| !parameters.is_object() && !parameters.is_null()) {
        return Err(refused("has parameters that are no JSON schema"));
    }
    Ok((name.to_owned(), tool))
}

fn chosen(choice: Option<Value>, names: &[String]) -> Checked<Option<ToolChoice>> {
    let Some(choice) = choice else { return Ok(Some(ToolChoice::Auto)) };
    let named = choice.get("function").unwrap_or(&choice).get("name").and_then(Value::as_str);
    if let Some(kind) = choice.get("type").and_then(Value::as_str).filter(|kind| *kind != "function") {
        let shown: String = kind.chars().take(40).collect();
        return Err(refusal::unsupported("tool_choice", &format!("it is of type {shown:?}, expected function")));
    }
    match (choice.as_str(), named) {
        (Some("none"), _) => Ok(None),
        (Some("auto"), _) => Ok(Some(ToolChoice::Auto)),
        (Some("required"), _) => Ok(Some(ToolChoice::Required)),
        (None, Some(name)) if names.iter().any(|known| known == name) => Ok(Some(ToolChoice::Named(name.to_owned()))),
        (None, Some(name)) => {
            let name: String = name.chars().take(80).collect();
            Err(Refusal::invalid("tool_choice", format!("there is no tool {name:?}")))
        }
        _ => Err(wrong(
            "tool_choice",
            &"expected none, auto, required, or an object of type function with the name of a tool",
        )),
    }
}

impl Tools {
    /// As responses describe them, which write them without a level.
    pub fn flat(&self) -> Vec<Value> {
        let flat = |tool: &Value| {
            let function = &tool["function"];
            json!({
                "type": "function",
                "name": function["name"],
                "description": function["description"],
                "parameters": function["parameters"],
                "strict": function["strict"].as_bool().unwrap_or(false),
            })
        };
        self.described.iter().map(flat).collect()
    }

    /// `tool_choice`, as responses write it.
    pub fn flat_choice(&self) -> Value {
        match &self.choice {
            ToolChoice::Auto => "auto".into(),
            ToolChoice::Required => "required".into(),
            ToolChoice::Named(name) => json!({ "type": "function", "name": name }),
        }
    }

    /// Those that were described so; none where there are none.
    pub fn of_flat((tools, choice, parallel): (&[Value], &Value, bool)) -> Option<Self> {
        let (names, described): (Vec<String>, _) =
            tools.iter().enumerate().filter_map(|(at, tool)| tool_of(at, tool.clone()).ok()).unzip();
        let choice = chosen(Some(choice.clone()), &names).ok().flatten().filter(|_| !names.is_empty())?;
        Some(Self { described, names, choice, parallel })
    }

    /// Where an answer ends that may be a call, and only one: behind it, whatever form it has otherwise.
    pub fn ending(&self, form: Option<Constraint>) -> Option<Constraint> {
        match (&self.choice, self.parallel) {
            (ToolChoice::Auto, false) => {
                Some(Constraint::OneCall { tools: self.names.clone(), form: form.map(Box::new) })
            }
            _ => form,
        }
    }

    /// The form that an answer has which has to be a call, and only one.
    pub fn form(&self) -> Option<Constraint> {
        let functions = || self.described.iter().map(|tool| &tool["function"]);
        match &self.choice {
            ToolChoice::Auto => None,
            ToolChoice::Named(name) => {
                functions().find(|function| function["name"] == **name).map(arguments).map(Constraint::JsonSchema)
            }
            ToolChoice::Required => {
                let call = |(at, function): (usize, &Value)| {
                    let mut arguments = arguments(function);
                    move_references(&mut arguments, &format!("#/anyOf/{at}/properties/arguments"));
                    json!({
                        "type": "object",
                        "properties": { "name": { "const": function["name"] }, "arguments": arguments },
                        "required": ["name", "arguments"],
                        "additionalProperties": false,
                    })
                };
                Some(Constraint::JsonSchema(json!({ "anyOf": functions().enumerate().map(call).collect::<Vec<_>>() })))
            }
        }
    }
}

/// The schema of a function's arguments, which are an object whether it says so or not.
fn arguments(function: &Value) -> Value {
    const SAY_WHAT_THEY_ARE: [&str; 7] = ["type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"];
    let mut schema = function["parameters"].clone();
    match schema.as_object_mut() {
        Some(fields) if SAY_WHAT_THEY_ARE.iter().all(|key| !fields.contains_key(*key)) => {
            fields.insert("type".to_owned(), json!("object"));
            schema
        }
        Some(_) => schema,
        None => json!({ "type": "object" }),
    }
}

/// Has references to places of a schema follow it to where it stands in another; those to an `$anchor` find it anywhere.
fn move_references(schema: &mut Value, to: &str) {
    match schema {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value.as_str().and_then(|path| path.strip_prefix('#')) {
                    Some(path) if name == "$ref" && (path.is_empty() || path.starts_with('/')) => {
                        *value = json!(format!("{to}{path}"))
                    }
                    _ => move_references(value, to),
                }
            }
        }
        Value::Array(parts) => parts.iter_mut().for_each(|part| move_references(part, to)),
        _ => {}
    }
}

/// A conversation for a template that has no place for tools: they are described in its first message, and what was called and came
/// of it is text.
pub fn without_tools(turns: Vec<ChatTurn>, tools: &[Value]) -> Vec<ChatTurn> {
    let mut plain: Vec<ChatTurn> = turns.into_iter().map(as_text).collect();
    if tools.is_empty() {
        return plain;
    }
    let described = tools_as_text(tools);
    match plain.first_mut().filter(|first| first.speaker == Speaker::System) {
        Some(first) => first.text = format!("{}\n\n{described}", first.text),
        None => plain.insert(0, ChatTurn::new(Speaker::System, described)),
    }
    plain
}

fn as_text(turn: ChatTurn) -> ChatTurn {
    let ChatTurn { speaker, mut text, tooling } = turn;
    let Tooling { calls, .. } = *tooling.unwrap_or_default();
    for call in calls {
        let call = json!({ "name": call.name, "arguments": call.arguments });
        let before = if text.is_empty() { "" } else { "\n" };
        text += &format!("{before}<tool_call>\n{call}\n</tool_call>");
    }
    match speaker {
        Speaker::Tool => ChatTurn::new(Speaker::User, format!("<tool_response>\n{text}\n</tool_response>")),
        speaker => ChatTurn::new(speaker, text),
    }
}

#[cfg(test)]
mod tests {
    use asterism_models::ToolCall;

    use super::*;

    fn taken(body: Value) -> Checked<Option<Tools>> {
        take(&mut serde_json::from_value(body).expect("an object"))
    }

    fn weather() -> Value {
        json!({"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}})
    }

    #[test]
    fn tools_are_taken_as_both_apis_write_them() {
        assert_eq!(taken(json!({})).unwrap(), None);
        assert_eq!(taken(json!({"tools": [weather()], "tool_choice": "none"})).unwrap(), None);
        let auto = taken(json!({"tools": [weather()]})).unwrap().unwrap();
        assert_eq!((auto.names, auto.choice), (vec!["weather".to_owned()], ToolChoice::Auto));
        let flat = json!({"type": "function", "name": "weather", "parameters": weather()["function"]["parameters"]});
        let named = json!({"tools": [flat], "tool_choice": {"type": "function", "name": "weather"}});
        let named = taken(named).unwrap().unwrap();
        assert_eq!(named.described, [weather()]);
        assert_eq!(named.flat()[0]["parameters"], weather()["function"]["parameters"]);
        assert_eq!(named.flat_choice(), json!({"type": "function", "name": "weather"}));
        let again = Tools::of_flat((&named.flat(), &named.flat_choice(), true)).unwrap();
        assert_eq!((again.names, again.choice), (named.names.clone(), named.choice.clone()));
        assert_eq!(Tools::of_flat((&[], &json!("none"), true)), None);
        assert_eq!(named.form(), Some(Constraint::JsonSchema(weather()["function"]["parameters"].clone())));
        let required = taken(json!({"tools": [weather()], "tool_choice": "required"})).unwrap().unwrap();
        required.form().expect("a form").check().unwrap();
        for (body, cause) in [
            (json!({"tools": [{"type": "web_search"}]}), "web_search"),
            (json!({"tools": [weather(), weather()]}), "two tools"),
            (json!({"tools": [{"type": "function", "function": {}}]}), "no name"),
            (json!({"tools": [{"type": "function", "function": {"name": "a b"}}]}), "a name that"),
            (json!({"tools": [weather()], "tool_choice": {"function": {"name": "time"}}}), "no tool"),
            (json!({"tool_choice": "required"}), "no tools"),
            (json!({"tools": [weather()], "tool_choice": {"type": "web_search"}}), "web_search"),
            (json!({"tools": [weather()], "tool_choice": 3}), "expected none"),
            (json!({"tools": [weather()], "parallel_tool_calls": "no"}), "expected true or false"),
        ] {
            let refused = taken(body.clone()).unwrap_err().to_string();
            assert!(refused.contains(cause), "{body}: {refused}");
        }
    }

    #[test]
    fn arguments_are_objects_and_may_refer_to_their_own_parts() {
        let place = json!({"$defs": {"city": {"type": "string"}}, "type": "object", "properties": {"city": {"$ref": "#/$defs/city"}}, "required": ["city"]});
        let function = |name: &str, parameters: Value| json!({"type": "function", "function": {"name": name, "parameters": parameters}});
        let tools = [function("free", json!({})), function("near", place), weather()];
        for choice in [
            json!("required"),
            json!({"type": "function", "function": {"name": "free"}}),
            json!({"type": "function", "function": {"name": "near"}}),
        ] {
            let form = taken(json!({"tools": tools, "tool_choice": choice})).unwrap().unwrap().form().expect("a form");
            form.check().unwrap_or_else(|error| panic!("{choice}: {error}"));
        }
        let wrong = function("wrong", json!({"properties": {"a/b": {"type": "string", "pattern": "(?<=x)y"}}}));
        let form = taken(json!({"tools": [tools[0], wrong], "tool_choice": "required"})).unwrap().unwrap().form();
        // Refusals know the tool by this path.
        let refused = form.expect("a form").check().unwrap_err().to_string();
        assert!(refused.contains(" at /anyOf/1/properties/arguments/properties/a~1b: "), "{refused}");
        let free = taken(json!({"tools": tools, "tool_choice": {"type": "function", "function": {"name": "free"}}}));
        assert_eq!(free.unwrap().unwrap().form(), Some(Constraint::JsonSchema(json!({"type": "object"}))));
    }

    #[test]
    fn an_answer_that_may_call_once_ends_behind_its_call() {
        let asked = |parallel: Value| {
            let body = json!({"tools": [weather()], "parallel_tool_calls": parallel});
            taken(body).unwrap().unwrap()
        };
        for parallel in [json!(null), json!(true)] {
            assert_eq!(asked(parallel.clone()).ending(None), None, "{parallel}");
        }
        let ending = |form| Some(Constraint::OneCall { tools: vec!["weather".to_owned()], form });
        assert_eq!(asked(json!(false)).ending(None), ending(None));
        let object = Constraint::JsonObject;
        assert_eq!(asked(json!(false)).ending(Some(object.clone())), ending(Some(Box::new(object))));
        // One that has to call is held to one call in any case.
        let required = json!({"tools": [weather()], "tool_choice": "required", "parallel_tool_calls": false});
        assert_eq!(taken(required).unwrap().unwrap().ending(None), None);
    }

    #[test]
    fn a_template_without_tools_is_told_of_them_in_words() {
        let call = ToolCall { id: "1".into(), name: "weather".into(), arguments: json!({"city": "Oslo"}) };
        let tooling = Some(Box::new(Tooling { is_mute: true, calls: vec![call], ..Tooling::default() }));
        let turns = vec![
            ChatTurn::new(Speaker::User, "How is it in Oslo?"),
            ChatTurn { speaker: Speaker::Assistant, text: String::new(), tooling },
            ChatTurn::new(Speaker::Tool, "cold"),
        ];
        let plain = without_tools(turns, &[weather()]);
        assert!(plain[0].speaker == Speaker::System && plain[0].text.contains("\"weather\""));
        assert_eq!(
            plain[2].text,
            "<tool_call>\n{\"name\":\"weather\",\"arguments\":{\"city\":\"Oslo\"}}\n</tool_call>"
        );
        assert_eq!((plain[3].speaker, &*plain[3].text), (Speaker::User, "<tool_response>\ncold\n</tool_response>"));
    }
}
