//! The form that an answer has, under the names that OpenAI's and vLLM's clients have for it. Compiles none.

use asterism_models::Constraint;
use serde_json::Value;

use super::fields::{Fields, wrong};
use crate::api::{
    http::error::Refusal,
    openai::{Checked, refusal},
};

/// Where responses have it.
const OF_TEXT: &str = "text.format";

/// The form that a request asks for, and the field that asks for it.
pub fn take(fields: &mut Fields) -> Checked<Option<(&'static str, Constraint)>> {
    let mut found: Option<(&'static str, Constraint)> = None;
    for (name, form) in [
        ("response_format", of_format("response_format", fields.value("response_format"))?),
        (OF_TEXT, of_text(fields)?),
        ("guided_json", fields.value("guided_json").map(|schema| of_schema("guided_json", schema)).transpose()?),
        ("guided_regex", fields.take("guided_regex")?.map(Constraint::Regex)),
        ("guided_choice", fields.take("guided_choice")?.map(Constraint::Choice)),
        ("structured_outputs", of_structured(fields.value("structured_outputs"))?),
    ] {
        let Some(form) = form else { continue };
        // Any JSON, and what it is: some clients say both.
        if matches!((&found, &form), (Some((_, Constraint::JsonObject)), Constraint::JsonSchema(_))) {
            found = None;
        }
        if let Some((other, _)) = found {
            return Err(Refusal::invalid(name, format!("{name} and {other} ask for two forms: give one of them")));
        }
        found = Some((name, form));
    }
    Ok(found)
}

fn of_schema(name: &str, schema: Value) -> Checked<Constraint> {
    let schema = match schema {
        // Some clients write the schema as a text.
        Value::String(text) => serde_json::from_str(&text).map_err(|error| wrong(name, &error))?,
        schema => schema,
    };
    match schema {
        Value::Object(_) | Value::Bool(_) => Ok(Constraint::JsonSchema(schema)),
        _ => Err(wrong(name, &"expected a JSON schema, which is an object")),
    }
}

fn of_format(name: &str, format: Option<Value>) -> Checked<Option<Constraint>> {
    let Some(format) = format else { return Ok(None) };
    match format.get("type").and_then(Value::as_str) {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some(Constraint::JsonObject)),
        Some("json_schema") => {
            // Chats write it a level deeper than responses do.
            let stated = format.get("json_schema").unwrap_or(&format);
            match stated.get("schema").filter(|schema| !schema.is_null()) {
                Some(schema) => of_schema(name, schema.clone()).map(Some),
                None => Ok(Some(Constraint::JsonObject)),
            }
        }
        Some(kind) => {
            let kind: String = kind.chars().take(40).collect();
            let expected = format!("its type is {kind:?}, expected text, json_object or json_schema");
            Err(refusal::unsupported(name, &expected))
        }
        None => Err(wrong(name, &"it has no type, expected text, json_object or json_schema")),
    }
}

/// `text` of a response: its format, and how much it says.
fn of_text(fields: &mut Fields) -> Checked<Option<Constraint>> {
    let Some(text) = fields.value("text") else { return Ok(None) };
    let Value::Object(mut text) = text else { return Err(wrong("text", &"expected an object")) };
    let format = text.shift_remove("format").filter(|format| !format.is_null());
    match text.shift_remove("verbosity") {
        None | Some(Value::Null) => {}
        Some(Value::String(verbosity)) if verbosity == "medium" => {}
        Some(_) => return Err(refusal::unsupported("text.verbosity", "expected medium: the model is asked as it is")),
    }
    if let Some((name, _)) = text.iter().find(|(_, value)| !value.is_null()) {
        return Err(refusal::unknown(&format!("text.{name}"), ["text.format", "text.verbosity"]));
    }
    of_format(OF_TEXT, format)
}

/// vLLM's: one of `json`, `json_object`, `regex` and `choice`.
fn of_structured(stated: Option<Value>) -> Checked<Option<Constraint>> {
    let name = "structured_outputs";
    let stated = match stated {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Object(stated)) => stated,
        Some(_) => return Err(wrong(name, &"expected an object")),
    };
    let mut forms = stated.into_iter().filter(|(_, value)| !value.is_null());
    let form = match forms.next() {
        None => return Ok(None),
        Some((kind, value)) => match (kind.as_str(), value) {
            ("json", schema) => of_schema(name, schema)?,
            ("json_object", Value::Bool(true)) => Constraint::JsonObject,
            ("regex", Value::String(regex)) => Constraint::Regex(regex),
            ("choice", choice) => {
                Constraint::Choice(serde_json::from_value(choice).map_err(|error| wrong(name, &error))?)
            }
            _ => return Err(refusal::unsupported(name, "expected json, json_object, regex or choice")),
        },
    };
    match forms.next() {
        None => Ok(Some(form)),
        Some(_) => Err(wrong(name, &"expected one form alone")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn taken(body: Value) -> Checked<Option<Constraint>> {
        Ok(take(&mut serde_json::from_value(body).expect("an object"))?.map(|(_, form)| form))
    }

    #[test]
    fn a_form_is_found_under_each_of_its_names() {
        let schema = json!({"type": "object", "properties": {"z": {}, "a": {}}});
        let (form, deep) =
            (Constraint::JsonSchema(schema.clone()), json!({"name": "x", "strict": true, "schema": schema}));
        for (body, expected) in [
            (json!({"response_format": {"type": "text"}}), None),
            (json!({"text": {"format": {"type": "text"}, "verbosity": "medium"}}), None),
            (json!({"response_format": {"type": "json_object"}}), Some(Constraint::JsonObject)),
            (json!({"response_format": {"type": "json_schema", "json_schema": deep}}), Some(form.clone())),
            (json!({"text": {"format": {"type": "json_schema", "name": "x", "schema": schema}}}), Some(form.clone())),
            (json!({"guided_json": schema.to_string()}), Some(form.clone())),
            (json!({"structured_outputs": {"json": schema, "regex": null}}), Some(form)),
            (
                json!({"response_format": {"type": "json_object"}, "guided_json": {}}),
                Some(Constraint::JsonSchema(json!({}))),
            ),
            (json!({"guided_regex": "a+"}), Some(Constraint::Regex("a+".into()))),
            (json!({"guided_choice": ["a", "b"]}), Some(Constraint::Choice(vec!["a".into(), "b".into()]))),
        ] {
            assert_eq!(taken(body.clone()).unwrap(), expected, "{body}");
        }
        for (body, cause) in [
            (json!({"response_format": {"type": "grammar"}}), "cannot be honoured"),
            (json!({"response_format": {}}), "has no type"),
            (json!({"guided_json": 3}), "expected a JSON schema"),
            (json!({"guided_regex": "a", "guided_choice": ["a"]}), "two forms"),
            (json!({"text": {"verbosity": "low"}}), "text.verbosity"),
            (json!({"text": {"format": {"type": "grammar"}}}), "text.format cannot be honoured"),
            (json!({"text": {"format": {}}}), "text.format is not"),
            (json!({"text": {"format": {"type": "json_schema", "schema": 3}}}), "text.format is not"),
            (json!({"structured_outputs": {"grammar": "x"}}), "expected json"),
        ] {
            let refused = taken(body.clone()).unwrap_err().to_string();
            assert!(refused.contains(cause), "{body}: {refused}");
        }
    }
}
