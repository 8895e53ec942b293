//! Spans as OTLP words them in JSON (opentelemetry-proto 1.x, `ExportTraceServiceRequest`). Sends nothing.

use std::time::Duration;

use asterism_actors::trace::{Kind, Span, Value as Said};
use serde_json::{Value, json};

/// Whose spans they are.
pub struct Resource {
    /// The cluster.
    pub cluster: String,
    /// The process: a host by name, or `supervisor`.
    pub instance: String,
}

/// The body that tells a collector of `spans`.
pub fn request(resource: &Resource, spans: &[Span]) -> Value {
    let text = |key: &str, value: &str| json!({ "key": key, "value": { "stringValue": value } });
    let attributes = [
        text("service.name", "asterism"),
        text("service.version", env!("CARGO_PKG_VERSION")),
        text("service.namespace", &resource.cluster),
        text("service.instance.id", &resource.instance),
    ];
    let spans: Vec<Value> = spans.iter().map(span).collect();
    let scope = json!({ "name": "asterism", "version": env!("CARGO_PKG_VERSION") });
    json!({ "resourceSpans": [{
        "resource": { "attributes": attributes },
        "scopeSpans": [{ "scope": scope, "spans": spans }],
    }]})
}

fn span(span: &Span) -> Value {
    let Span { context, parent, name, kind, times: (begin, end), attributes, error } = span;
    let attributes: Vec<Value> =
        attributes.iter().map(|(key, value)| json!({ "key": key, "value": worded(value) })).collect();
    let status = match error {
        Some(cause) => json!({ "code": 2, "message": cause }),
        None => json!({}),
    };
    json!({
        "traceId": format!("{:032x}", context.trace),
        "spanId": format!("{:016x}", context.span),
        "parentSpanId": parent.map_or(String::new(), |parent| format!("{parent:016x}")),
        "name": name,
        "kind": if *kind == Kind::Server { 2 } else { 1 },
        "startTimeUnixNano": nanoseconds(*begin),
        "endTimeUnixNano": nanoseconds(*end),
        "attributes": attributes,
        "status": status,
    })
}

fn worded(value: &Said) -> Value {
    match value {
        Said::Text(text) => json!({ "stringValue": text }),
        // 64 bits are more than a number of JSON keeps.
        Said::Integer(number) => json!({ "intValue": number.to_string() }),
        Said::Texts(texts) => {
            let texts: Vec<Value> = texts.iter().map(|text| json!({ "stringValue": text })).collect();
            json!({ "arrayValue": { "values": texts } })
        }
    }
}

fn nanoseconds(since_1970: Duration) -> String {
    since_1970.as_nanos().to_string()
}

#[cfg(test)]
mod tests {
    use asterism_actors::api::TraceContext;

    use super::*;

    #[test]
    fn a_span_is_worded_as_collectors_read_it() {
        let context = TraceContext { trace: 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c, span: 0xb7ad_6b71_6920_3331 };
        let span = Span {
            context,
            parent: None,
            name: "job".into(),
            kind: Kind::Server,
            times: (Duration::from_secs(1), Duration::from_millis(1500)),
            attributes: vec![("n", 3_usize.into()), ("a", Said::Texts(vec!["stop".into()]))],
            error: Some("timeout: too late".into()),
        };
        let body = request(&Resource { cluster: "c".into(), instance: "context-0".into() }, &[span]);
        let of = &body["resourceSpans"][0];
        assert_eq!(of["resource"]["attributes"][3]["value"]["stringValue"], "context-0");
        let expected = json!({
            "traceId": "0af7651916cd43dd8448eb211c80319c",
            "spanId": "b7ad6b7169203331",
            "parentSpanId": "",
            "name": "job",
            "kind": 2,
            "startTimeUnixNano": "1000000000",
            "endTimeUnixNano": "1500000000",
            "attributes": [
                {"key": "n", "value": {"intValue": "3"}},
                {"key": "a", "value": {"arrayValue": {"values": [{"stringValue": "stop"}]}}},
            ],
            "status": {"code": 2, "message": "timeout: too late"},
        });
        assert_eq!(of["scopeSpans"][0]["spans"][0], expected);
    }
}
