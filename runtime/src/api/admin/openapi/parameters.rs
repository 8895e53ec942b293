//! Parameters in the paths of the admin API and behind their `?`. What they mean, the handlers know.

use serde_json::{Value, json};

use crate::api::{admin::lists::MAX_LISTED, http::request};

/// What ids and names may be.
const NAME_SCHEMA: &str = "^[A-Za-z0-9._-]{1,64}$";

/// Those of a path's pattern, by method.
pub fn of(method: &str, path: &str) -> Vec<Value> {
    let within = path.split('{').skip(1).filter_map(|rest| rest.split('}').next());
    let within = within.map(|name| {
        let schema = json!({"type": "string", "pattern": NAME_SCHEMA});
        json!({"name": name, "in": "path", "required": true, "schema": schema})
    });
    within.chain(request::queries(method, path).iter().map(|name| behind(path, name))).collect()
}

fn behind(path: &str, name: &str) -> Value {
    let schema = match name {
        "limit" => json!({"type": "integer", "minimum": 1, "maximum": MAX_LISTED}),
        "order" => json!({"type": "string", "enum": ["asc", "desc"]}),
        "follow" => json!({"type": "string", "enum": ["true", "false"]}),
        "role" => words(&["context", "query", "spare"]),
        "state" => words(states(path)),
        _ => json!({"type": "string"}),
    };
    // Words of a list stand behind each other with commas.
    json!({"name": name, "in": "query", "schema": schema, "style": "form", "explode": false})
}

fn words(known: &[&str]) -> Value {
    json!({"type": "array", "items": {"type": "string", "enum": known}})
}

fn states(path: &str) -> &'static [&'static str] {
    match path {
        "/api/v1/jobs" => &["pending", "running", "succeeded", "failed", "cancelled"],
        "/api/v1/hosts" => &["starting", "loading", "ready", "suspect", "dead"],
        _ => &["encoding", "ready", "recovering", "failed"],
    }
}
