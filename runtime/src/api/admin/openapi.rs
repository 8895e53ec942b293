//! `/api/openapi.json`: what the admin API takes and gives, out of the types that it takes and gives. Answers nothing else.

mod operations;
mod parameters;
pub(crate) mod schema;

use std::{collections::BTreeMap, sync::LazyLock};

use actix_web::{HttpResponse, Responder, get, http::header::ContentType};
use asterism_actors::authority::{self, Action, Party};
use schemars::{SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use crate::api::http::{document, error::ErrorEnvelope};
use operations::{OPERATIONS, Operation, RequestSchema, ResponseSchema};
use schema::schema;

/// Where schemas are.
const SCHEMAS: &str = "/components/schemas";
/// What a request without the token, where one is wanted, may not ask.
const BEARER: &str = "bearer";

static DOCUMENT: LazyLock<String> = LazyLock::new(|| document().to_string());

#[get("/api/openapi.json")]
pub async fn openapi() -> impl Responder {
    HttpResponse::Ok().content_type(ContentType::json()).body(DOCUMENT.as_str())
}

/// Schemas of what is read and of what is written: the same type may leave out what it writes always.
struct Schemas {
    read: SchemaGenerator,
    written: SchemaGenerator,
}

impl Schemas {
    fn new() -> Self {
        let settings = SchemaSettings::draft2020_12().with(|settings| {
            settings.definitions_path = SCHEMAS.into();
            settings.meta_schema = None;
        });
        let read = settings.clone().for_deserialize().into_generator();
        Self { read, written: settings.for_serialize().into_generator() }
    }

    fn into_components(self) -> Map<String, Value> {
        let (mut read, written) = ({ self.read }.take_definitions(true), { self.written }.take_definitions(true));
        for (name, schema) in written {
            let other = read.insert(name.clone(), schema.clone());
            debug_assert!(other.is_none_or(|other| other == schema), "{name} is read and written, and not the same");
        }
        read
    }
}

/// The document, for OpenAPI 3.1.
pub fn document() -> Value {
    let mut schemas = Schemas::new();
    let mut paths: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    for operation in OPERATIONS {
        let described = described(operation, &mut schemas);
        paths.entry(operation.path).or_default().insert(operation.method.to_lowercase(), described);
    }
    let description = "Jobs, sessions, hosts and events of a cluster. Fields that are not known are refused by name.";
    let mut document = document::head("Asterism's admin API", description);
    document["paths"] = json!(paths);
    document["components"] = json!({
        "schemas": schemas.into_components(),
        "securitySchemes": {BEARER: {
            "type": "http",
            "scheme": "bearer",
            "description": "The text of `[security] token_file`; where a cluster has none, everybody may ask.",
        }},
    });
    document
}

fn described(operation: &Operation, schemas: &mut Schemas) -> Value {
    let Operation { method, path, id, summary, takes, gives } = operation;
    let mut described = json!({
        "operationId": id,
        "summary": summary,
        "responses": responses(gives, schemas),
    });
    let parameters = parameters::of(method, path);
    if !parameters.is_empty() {
        described["parameters"] = parameters.into();
    }
    if let Some(RequestSchema { make, required }) = takes {
        let schema = make(&mut schemas.read);
        described["requestBody"] = json!({"required": required, "content": {"application/json": {"schema": schema}}});
    }
    let open = authority::endpoint(method, path).is_some_and(|act: Action| authority::allows(Party::Stranger, act));
    if !open {
        described["security"] = json!([{BEARER: []}]);
    }
    described
}

fn responses(gives: &ResponseSchema, schemas: &mut Schemas) -> Value {
    let mut given = json!({});
    match gives {
        ResponseSchema::Json { status, make } => {
            let schema = make(&mut schemas.written);
            given[status] = json!({"description": "As asked.", "content": {"application/json": {"schema": schema}}});
        }
        ResponseSchema::Text { kind, statuses } => {
            for status in *statuses {
                given[status] = json!({"description": "As text.", "content": {*kind: {"schema": {"type": "string"}}}});
            }
        }
        ResponseSchema::Nothing => given["204"] = json!({"description": "Done."}),
    }
    let error = schema::<ErrorEnvelope>(&mut schemas.written);
    for (status, why) in REFUSALS {
        if given.get(status).is_none() {
            given[status] = json!({"description": why, "content": {"application/json": {"schema": error}}});
        }
    }
    given
}

/// What a request may be refused with.
const REFUSALS: &[(&str, &str)] = &[
    ("4XX", "Refused: `code` says why, `param` which field is at fault."),
    ("503", "Not now: asked again after `Retry-After`, it may be done."),
    ("507", "The journal's disk is full."),
];

#[cfg(test)]
mod tests {
    use asterism_actors::authority::TABLE;

    use super::*;

    #[test]
    fn every_endpoint_is_described_and_nothing_else() {
        let document = document();
        let mut described: Vec<(String, String)> = Vec::new();
        for (path, methods) in document["paths"].as_object().unwrap() {
            described.extend(methods.as_object().unwrap().keys().map(|method| (method.to_uppercase(), path.clone())));
        }
        let mut known: Vec<(String, String)> = TABLE
            .iter()
            .filter_map(|rule| match rule.act {
                Action::Http(method, path) => Some((method.to_string(), path.to_string())),
                _ => None,
            })
            .collect();
        described.sort();
        known.sort();
        assert_eq!(described, known);
    }

    #[test]
    fn every_reference_leads_somewhere_and_every_parameter_of_a_path_is_named() {
        fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
            match value {
                Value::Object(fields) => {
                    found.extend(fields.get("$ref").and_then(Value::as_str));
                    fields.values().for_each(|value| references(value, found));
                }
                Value::Array(items) => items.iter().for_each(|value| references(value, found)),
                _ => {}
            }
        }
        let document = document();
        let mut found = Vec::new();
        references(&document, &mut found);
        assert!(found.len() > 50, "{}", found.len());
        for reference in found {
            let place = reference.strip_prefix('#').unwrap();
            assert!(document.pointer(place).is_some_and(Value::is_object), "{reference}");
        }
        for (path, methods) in document["paths"].as_object().unwrap() {
            for operation in methods.as_object().unwrap().values() {
                let named = operation["parameters"].as_array().into_iter().flatten();
                let named = named.filter(|parameter| parameter["in"] == "path").count();
                assert_eq!(named, path.matches('{').count(), "{path}");
            }
        }
    }

    /// What is refused when it is sent, the document refuses too.
    #[test]
    fn schemas_are_as_strict_as_what_reads_them() {
        let document = document();
        let schema = |name: &str| document["components"]["schemas"][name].clone();
        for name in ["JobRequest", "SessionRequest", "AppendRequest", "Drain", "Sampling", "StarConfig"] {
            assert_eq!(schema(name)["additionalProperties"], json!(false), "{name}");
        }
        assert_eq!(schema("JobRequest")["required"], json!(["query"]));
        assert_eq!(schema("StarConfig")["properties"]["block_tokens"]["maximum"], json!(1 << 30));
        // What is written has all that is always there.
        let written = schema("JobStatus")["required"].clone();
        for always in ["id", "state", "phase", "text", "timings"] {
            assert!(written.as_array().unwrap().contains(&json!(always)), "{always}: {written}");
        }
        assert!(!written.as_array().unwrap().contains(&json!("waiting")), "{written}");
    }
}
