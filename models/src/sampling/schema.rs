//! Which schemas stand within a schema, and where. Compiles nothing.

use serde_json::Value;

/// The schemas within a schema, by their paths.
pub fn parts(schema: &Value) -> Vec<(String, &Value)> {
    let mut parts = Vec::new();
    let Some(fields) = schema.as_object() else { return parts };
    for (name, value) in fields {
        match (name.as_str(), value) {
            ("properties" | "patternProperties" | "$defs" | "definitions", Value::Object(inner)) => {
                parts.extend(inner.iter().map(|(key, part)| (format!("/{name}/{}", segment(key)), part)));
            }
            ("anyOf" | "oneOf" | "allOf" | "prefixItems", Value::Array(inner)) => {
                parts.extend(inner.iter().enumerate().map(|(at, part)| (format!("/{name}/{at}"), part)));
            }
            ("items" | "additionalProperties" | "not" | "if" | "then" | "else", Value::Object(_)) => {
                parts.push((format!("/{name}"), value));
            }
            _ => {}
        }
    }
    parts
}

/// A name in a path.
pub fn segment(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}
