//! Pages of other sites in browsers, on every listener and path: what they are let do, and what they are told.

use serde_json::Value;
use tests::{Cluster, ClusterSpec};
use ureq::{Agent, http::Request};

use super::openai::{BINARY, api, send};

const PAGE: &str = "https://app.example";

/// A cluster that is not started, with this in its `[api]`.
fn written(settings: &str) -> Cluster {
    let method = "[attention.star]\nblock_tokens = 64";
    let spec = ClusterSpec { contexts: 1, model: None, method, listen: "127.0.0.1:0".into() };
    Cluster::written(BINARY, &spec, |text| {
        text.replace("[api]\n", &format!("[api]\nlisten = \"127.0.0.1:0\"\n{settings}\n"))
    })
}

fn cluster(settings: &str) -> Cluster {
    let cluster = written(settings);
    let up = cluster.run(&["up", "--detach"]);
    assert!(up.status.success(), "{}", String::from_utf8_lossy(&up.stderr));
    cluster
}

/// Status, headers by name, and body of an answer.
fn reported(
    server: &str,
    (method, path): (&str, &str),
    headers: &[(&str, &str)],
) -> (u16, impl Fn(&str) -> String + use<>, Value) {
    let agent: Agent =
        Agent::config_builder().http_status_as_error(false).allow_non_standard_methods(true).build().into();
    let mut request = Request::builder().method(method).uri(format!("{server}{path}"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let answer = agent.run(request.body(()).expect("a request")).expect("an answer");
    let (status, all) = (answer.status().as_u16(), answer.headers().clone());
    let text = answer.into_body().read_to_string().expect("UTF-8");
    let header = move |name: &str| all.get(name).map_or("", |value| value.to_str().expect("plain")).to_owned();
    (status, header, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

#[test]
fn no_path_answers_a_name_that_a_site_chose() {
    let cluster = cluster("");
    let renamed = [("host", "evil.example")];
    let foreign = [("origin", "https://evil.example"), ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "cors")];
    for path in ["/livez", "/readyz", "/metrics", "/", "/console.js", "/api/v1/jobs", "/api/openapi.json", "/nothing"] {
        for headers in [&renamed[..], &foreign] {
            let (status, _, answer) = reported(&cluster.server(), ("GET", path), headers);
            assert_eq!((status, answer["error"]["code"].as_str()), (403, Some("cross_origin")), "{path} {headers:?}");
        }
        let (status, _, _) = reported(&cluster.server(), ("GET", path), &[("host", "localhost")]);
        assert!(status != 403, "{path}");
    }
    // A link leads to the console, not into the API.
    let link = [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")];
    assert_eq!(reported(&cluster.server(), ("GET", "/"), &link).0, 200);
    assert_eq!(reported(&cluster.server(), ("GET", "/api/v1/jobs"), &link).0, 403);
    let (_, _, answer) = reported(&cluster.server(), ("GET", "/metrics"), &renamed);
    assert!(answer["error"]["message"].as_str().expect("a message").contains("[security] token_file"), "{answer}");
    let (status, answer) = send(&cluster, ("GET", "/v1/models"), &renamed, "");
    assert!(status == 403 && answer["error"]["message"].as_str().expect("a message").contains("[api] api_key_file"));
    let (status, answer) = send(&cluster, ("GET", "/v1/models"), &foreign, "");
    assert!(status == 403 && answer["error"]["message"].as_str().expect("a message").contains("[api] allow_origins"));
}

#[test]
fn pages_that_are_let_in_are_told_so_and_no_others() {
    let cluster = cluster(&format!("allow_origins = [\"{PAGE}\"]"));
    let server = format!("http://{}", api(&cluster));
    let asks = |origin: &'static str| {
        [
            ("origin", origin),
            ("access-control-request-method", "POST"),
            ("access-control-request-headers", "authorization,content-type"),
            ("sec-fetch-site", "cross-site"),
        ]
    };
    let (status, header, _) = reported(&server, ("OPTIONS", "/v1/chat/completions"), &asks(PAGE));
    assert_eq!((status, header("access-control-allow-origin")), (204, PAGE.to_owned()));
    assert_eq!(header("access-control-allow-headers"), "authorization,content-type");
    assert!(header("access-control-allow-methods").contains("POST") && header("vary").contains("Origin"));
    let (status, header, _) =
        reported(&server, ("GET", "/v1/models"), &[("origin", PAGE), ("sec-fetch-site", "cross-site")]);
    assert_eq!((status, header("access-control-allow-origin")), (200, PAGE.to_owned()));
    // What is refused can be read as well.
    let (status, header, _) = reported(&server, ("GET", "/v1/models/none"), &[("origin", PAGE)]);
    assert_eq!((status, header("access-control-allow-origin")), (404, PAGE.to_owned()));
    let (status, header, _) = reported(&server, ("OPTIONS", "/v1/chat/completions"), &asks("https://evil.example"));
    assert_eq!((status, header("access-control-allow-origin")), (403, String::new()));
    // The admin API lets no page in.
    let (status, header, _) = reported(&cluster.server(), ("OPTIONS", "/api/v1/jobs"), &asks(PAGE));
    assert_eq!((status, header("access-control-allow-origin")), (403, String::new()));
    let printed = written(&format!("allow_origins = [\"{PAGE}/path\"]")).run(&["validate"]);
    assert!(printed.status.code() == Some(2) && String::from_utf8_lossy(&printed.stderr).contains("api.allow_origins"));
}
