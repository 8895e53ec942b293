//! `/openapi.json`: what this listener takes, out of the tables of its endpoints and fields. Answers nothing else.

use std::{collections::BTreeMap, sync::LazyLock};

use actix_web::{HttpResponse, Responder, get, http::header::ContentType};
use asterism_actors::api::bounds::SALT_BYTES;
use serde_json::{Map, Value, json};

use crate::api::{
    http::document,
    openai::{
        requests::known::HONOURED,
        shared::{ENDPOINTS, FOR_EVERYBODY},
    },
};

static DOCUMENT: LazyLock<String> = LazyLock::new(|| document().to_string());

#[get("/openapi.json")]
pub async fn openapi() -> impl Responder {
    HttpResponse::Ok().content_type(ContentType::json()).body(DOCUMENT.as_str())
}

/// What a request may be refused with.
const API_REFUSALS: [(&str, &str); 5] = [
    ("4XX", "Refused: `code` says why, `param` which field is at fault."),
    ("501", "Cannot be done here."),
    ("503", "Not now: asked again after `Retry-After`, it may be done."),
    ("504", "The job ran into its `timeout_s`."),
    ("507", "There is no room on the disk, or within what may be kept."),
];
/// What a request bears where there are keys.
const BEARER: &str = "bearer";

/// The document, for OpenAPI 3.1.
pub fn document() -> Value {
    let mut paths: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    for &(method, path) in ENDPOINTS {
        paths.entry(path).or_default().insert(method.to_lowercase(), operation(method, path));
    }
    let description = "OpenAI's API, and Anthropic's Messages API. Fields that are not known are refused by name.";
    let mut document = document::head("Asterism's API for applications", description);
    document["paths"] = json!(paths);
    document["components"] = json!({
        "schemas": { "Error": error() },
        "securitySchemes": { BEARER: { "type": "http", "scheme": "bearer" } },
    });
    document
}

fn operation(method: &str, path: &str) -> Value {
    let name = path.replace(['{', '}'], "").replace(['/', '.'], "_");
    let mut operation = json!({
        "operationId": format!("{}{name}", method.to_lowercase()),
        "responses": responses(path),
    });
    let parameters: Vec<Value> = path_parameters(path).chain(queries(method, path)).collect();
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    if let Some((kind, schema)) = body(method, path) {
        operation["requestBody"] = json!({ "required": true, "content": { kind: { "schema": schema } } });
    }
    if !FOR_EVERYBODY.contains(&path) {
        operation["security"] = json!([{ BEARER: [] }]);
    }
    operation
}

fn responses(path: &str) -> Value {
    let text = json!({ "schema": { "type": "string" } });
    let content = match path {
        "/v1/files/{id}/content" => json!({ "application/octet-stream": text, "application/jsonl": text }),
        _ => json!({ "application/json": { "schema": {} }, "text/event-stream": text, "text/plain": text }),
    };
    let mut responses = json!({ "200": { "description": "As asked." } });
    if path != "/health" {
        responses["200"]["content"] = content;
    }
    for (status, why) in API_REFUSALS {
        let schema = json!({ "$ref": "#/components/schemas/Error" });
        responses[status] = json!({ "description": why, "content": { "application/json": { "schema": schema } } });
    }
    responses
}

fn error() -> Value {
    json!({
        "type": "object",
        "properties": {
            "error": {
                "type": "object",
                "properties": {
                    "message": { "type": "string" },
                    "type": { "type": "string" },
                    "code": { "type": "string" },
                    "param": { "type": ["string", "null"] },
                },
                "required": ["message", "type", "code", "param"],
            },
        },
        "required": ["error"],
    })
}

fn path_parameters(path: &str) -> impl Iterator<Item = Value> {
    let names = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    names.map(
        |name| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string", "minLength": 1 } }),
    )
}

fn queries(method: &str, path: &str) -> impl Iterator<Item = Value> {
    let (limit, order) = (json!({ "type": "integer", "minimum": 1 }), json!({ "enum": ["asc", "desc"] }));
    let named = match (method, path) {
        ("GET", "/v1/files") => {
            vec![("purpose", text()), ("after", text()), ("limit", limit), ("order", order)]
        }
        ("GET", "/v1/batches") => vec![("after", text()), ("limit", limit)],
        ("GET", "/v1/responses/{id}") => {
            let number = json!({ "type": "integer", "minimum": 0 });
            vec![("stream", json!({ "type": "boolean" })), ("starting_after", number)]
        }
        _ => Vec::new(),
    };
    named.into_iter().map(|(name, schema)| json!({ "name": name, "in": "query", "schema": schema }))
}

/// A body's media type, and its schema.
fn body(method: &str, path: &str) -> Option<(&'static str, Value)> {
    if method != "POST" || path.ends_with("/cancel") {
        return None;
    }
    let schema = match path {
        "/v1/chat/completions" => asked("chats", ("messages", messages())),
        "/v1/completions" => {
            let mut schema = asked("completions", ("prompt", prompt()));
            schema["properties"]["context"] = text();
            schema
        }
        "/v1/responses" => asked("responses", ("input", json!({ "anyOf": [text(), messages()] }))),
        "/v1/messages" => messages_request(&["messages", "max_tokens"]),
        "/v1/messages/count_tokens" => messages_request(&["messages"]),
        "/v1/files" => {
            let file = json!({ "type": "string", "format": "binary" });
            let properties = json!({ "purpose": { "const": "batch" }, "file": file });
            let form = json!({ "type": "object", "properties": properties, "required": ["purpose", "file"] });
            return Some(("multipart/form-data", form));
        }
        "/v1/batches" => object(
            json!({
                "input_file_id": text(),
                "endpoint": { "enum": ["/v1/chat/completions", "/v1/completions", "/v1/responses"] },
                "completion_window": { "const": "24h" },
                "metadata": metadata(),
            }),
            &["input_file_id", "endpoint"],
        ),
        "/tokenize" => object(
            json!({
                "model": text(), "prompt": text(), "messages": messages(), "add_special_tokens": { "type": "boolean" },
                "return_token_strs": { "type": "boolean" },
            }),
            &[],
        ),
        "/detokenize" => object(json!({ "model": text(), "tokens": ids() }), &["tokens"]),
        _ => return None,
    };
    Some(("application/json", schema))
}

fn object(properties: Value, required: &[&str]) -> Value {
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

/// A request of the endpoints that are called so in the table of fields, whose texts are in this field.
fn asked(place: &str, (name, schema): (&str, Value)) -> Value {
    let here = |places: &str| places == "all" || places.split(", ").any(|one| one == place);
    let mut properties = Map::new();
    for (field, _, what) in HONOURED.iter().filter(|(_, places, _)| here(places)) {
        let mut schema = field_schema(field);
        schema["description"] = (*what).into();
        properties.insert((*field).to_owned(), schema);
    }
    properties.insert(name.to_owned(), schema);
    json!({ "type": "object", "properties": properties, "required": [name] })
}

fn text() -> Value {
    json!({ "type": "string" })
}

fn salt() -> Value {
    json!({ "type": "string", "minLength": 1, "maxLength": SALT_BYTES })
}

fn ids() -> Value {
    json!({ "type": "array", "items": { "type": "integer", "minimum": 0 } })
}

fn prompt() -> Value {
    json!({ "anyOf": [text(), ids(), { "type": "array", "items": text() }] })
}

fn metadata() -> Value {
    json!({ "type": "object", "additionalProperties": { "type": "string", "maxLength": 512 }, "maxProperties": 16 })
}

fn messages() -> Value {
    let part = json!({ "type": "object", "properties": { "type": { "const": "text" }, "text": text() }, "required": ["type", "text"] });
    let content = json!({ "anyOf": [text(), { "type": "array", "items": part }] });
    let role = json!({ "enum": ["system", "developer", "user", "assistant", "tool"] });
    let message = json!({ "type": "object", "properties": { "role": role, "content": content }, "required": ["role", "content"] });
    json!({ "type": "array", "items": message, "minItems": 1 })
}

fn messages_request(required: &[&str]) -> Value {
    let tool =
        object(json!({ "name": text(), "description": text(), "input_schema": { "type": "object" } }), &["name"]);
    let role = json!({ "enum": ["user", "assistant"] });
    let message = object(json!({ "role": role, "content": text() }), &["role", "content"]);
    object(
        json!({
            "model": text(),
            "messages": { "type": "array", "items": message, "minItems": 1 },
            "max_tokens": { "type": "integer", "minimum": 1 },
            "system": text(),
            "tools": { "type": "array", "items": tool },
            "tool_choice": { "type": "object", "properties": { "type": { "enum": ["auto", "any", "tool", "none"] } } },
            "stop_sequences": { "type": "array", "items": text(), "maxItems": 16 },
            "temperature": { "type": "number", "minimum": 0 },
            "top_p": { "type": "number", "minimum": 0, "maximum": 1 },
            "top_k": { "type": "integer", "minimum": 0 },
            "stream": { "type": "boolean" },
            "cache_salt": salt(),
            "metadata": { "type": "object" },
        }),
        required,
    )
}

/// A field that the table has; one of which this says nothing may be anything.
fn field_schema(name: &str) -> Value {
    let number = |least: f64, most: f64| json!({ "type": "number", "minimum": least, "maximum": most });
    let count = |least: i64, most: i64| json!({ "type": "integer", "minimum": least, "maximum": most });
    match name {
        "model"
        | "session_id"
        | "prompt_cache_key"
        | "template_date"
        | "query_separator"
        | "guided_regex"
        | "instructions"
        | "previous_response_id" => text(),
        "cache_salt" => salt(),
        "max_completion_tokens" | "max_output_tokens" | "max_tokens" => json!({ "type": "integer", "minimum": 1 }),
        "temperature" => json!({ "type": "number", "minimum": 0 }),
        "top_p" | "min_p" => number(0.0, 1.0),
        "top_k" => json!({ "type": "integer", "minimum": -1 }),
        "repetition_penalty" => json!({ "type": "number", "exclusiveMinimum": 0, "maximum": 10 }),
        "presence_penalty" | "frequency_penalty" => number(-2.0, 2.0),
        "seed" => json!({ "type": "integer" }),
        "min_tokens" => json!({ "type": "integer", "minimum": 0 }),
        "logit_bias" => json!({ "type": "object", "additionalProperties": number(-100.0, 100.0) }),
        "stop" => json!({ "anyOf": [text(), { "type": "array", "items": text(), "maxItems": 16 }] }),
        "n" | "best_of" => count(1, 16),
        "top_logprobs" | "prompt_logprobs" => count(0, 20),
        "logprobs" => json!({ "type": ["boolean", "integer"] }),
        "echo"
        | "stream"
        | "return_progress"
        | "ignore_eos"
        | "continue_final_message"
        | "add_generation_prompt"
        | "store"
        | "background" => json!({ "type": "boolean" }),
        "guided_choice" => json!({ "type": "array", "items": text(), "minItems": 1 }),
        "tools" => json!({ "type": "array", "items": { "type": "object" }, "maxItems": 128 }),
        "response_format" | "text" | "structured_outputs" | "chat_template_kwargs" | "stream_options" | "reasoning" => {
            json!({ "type": "object" })
        }
        "metadata" => metadata(),
        "truncation" => json!({ "enum": ["auto", "disabled"] }),
        "include" => json!({ "type": "array", "items": text() }),
        "timeout_s" => json!({ "type": "number", "exclusiveMinimum": 0 }),
        _ => json!({}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_endpoint_and_every_field_is_described() {
        let document = document();
        let paths = document["paths"].as_object().unwrap();
        for (method, path) in ENDPOINTS {
            let operation = &paths[*path][method.to_lowercase()];
            assert!(operation.is_object(), "{method} {path}");
            let named = operation["parameters"].as_array().into_iter().flatten();
            let named = named.filter(|parameter| parameter["in"] == "path").count();
            assert_eq!(named, path.matches('{').count(), "{path}");
        }
        let described = |path: &str, field: &str| {
            let body = &paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"];
            body[field].is_object()
        };
        for (field, places, _) in HONOURED {
            for (place, path) in
                [("chats", "/v1/chat/completions"), ("completions", "/v1/completions"), ("responses", "/v1/responses")]
            {
                let here = *places == "all" || places.contains(place);
                assert_eq!(described(path, field), here, "{field} {path}");
            }
        }
    }
}
