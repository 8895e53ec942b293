//! OpenAI's API: the same answers as jobs give, and what no request of it may do.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    time::Instant,
};

use serde_json::{Value, json};
use tests::{Cluster, ClusterSpec, DEADLINE, kill};
use ureq::{Agent, http::Request};

pub const BINARY: &str = env!("CARGO_BIN_EXE_asterism-under-test");
/// SHA-256 of `moon` and of `sun`, who may have one request open.
pub const KEYS: &str = "moon 9e78b43ea00edcac8299e0cc8df7f6f913078171335f733a21d5d911b6999132\n\
                    sun 27756f050e14a1cb1c1ee867f0eace9ea4d9fcb81b8bee089469f1ebd5fd7b17 1\n";
pub const CHAT: &str = "/v1/chat/completions";

pub fn cluster(keys: Option<&str>) -> Cluster {
    let method = "[attention.star]\nblock_tokens = 64";
    let spec = ClusterSpec { contexts: 1, model: None, method, listen: "127.0.0.1:0".into() };
    let named = if keys.is_some() { "api_key_file = \"keys\"\n" } else { "" };
    let cluster = Cluster::written(BINARY, &spec, |text| {
        text.replace("[api]\n", &format!("[api]\nlisten = \"127.0.0.1:0\"\n{named}"))
    });
    if let Some(keys) = keys {
        fs::write(cluster.folder().join("keys"), keys).expect("a file");
    }
    let up = cluster.run(&["up", "--detach"]);
    assert!(up.status.success(), "{}", String::from_utf8_lossy(&up.stderr));
    cluster
}

pub fn api(cluster: &Cluster) -> String {
    cluster.record()["api"].as_str().expect("it listens").to_owned()
}

/// Status and body of an answer.
pub fn send(cluster: &Cluster, (method, path): (&str, &str), headers: &[(&str, &str)], body: &str) -> (u16, Value) {
    let agent: Agent = Agent::config_builder().http_status_as_error(false).build().into();
    let mut request = Request::builder().method(method).uri(format!("http://{}{path}", api(cluster)));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let answer = match method {
        "GET" => agent.run(request.body(()).expect("a request")),
        _ => agent.run(request.body(body.to_owned()).expect("a request")),
    };
    let answer = answer.expect("an answer");
    assert!(answer.headers().contains_key("x-request-id"), "every answer names its request");
    let status = answer.status().as_u16();
    let text = answer.into_body().read_to_string().expect("UTF-8");
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

pub const JSON: (&str, &str) = ("content-type", "application/json");

/// The answer to a request that is to succeed.
pub fn answered(cluster: &Cluster, path: &str, body: &Value) -> Value {
    let (status, answer) = send(cluster, ("POST", path), &[JSON], &body.to_string());
    assert_eq!(status, 200, "{body}: {answer}");
    answer
}

/// What stands behind `data:` of a stream's events.
pub fn streamed(cluster: &Cluster, path: &str, body: &Value) -> Vec<Value> {
    let mut body = body.clone();
    body["stream"] = json!(true);
    let Value::String(text) = answered(cluster, path, &body) else { panic!("no stream") };
    let events = text.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
    events.map(|data| serde_json::from_str(data).expect("JSON")).collect()
}

fn ask(cluster: &Cluster, body: &Value) -> (u16, Value) {
    send(cluster, ("POST", CHAT), &[JSON], &body.to_string())
}

pub fn whale() -> String {
    "The whale is white. ".repeat(40)
}

fn messages() -> Value {
    json!([{"role": "system", "content": whale()}, {"role": "user", "content": "Which colour?"}])
}

/// The newest job, as the admin API shows it.
pub fn newest(cluster: &Cluster) -> Value {
    let jobs = ureq::get(format!("{}/api/v1/jobs?limit=1", cluster.server())).call().expect("jobs");
    jobs.into_body().read_json::<Value>().expect("JSON")[0].clone()
}

pub fn wait_until_cancelled(cluster: &Cluster, what: &str) {
    let started = Instant::now();
    while newest(cluster)["state"] != "CANCELLED" {
        assert!(started.elapsed() < DEADLINE, "{what}: {:#}", newest(cluster));
    }
}

/// Opens a connection and asks for more than it waits for.
fn open(cluster: &Cluster, key: &str, stream: bool) -> BufReader<TcpStream> {
    let body = json!({"messages": messages(), "max_tokens": 8000, "ignore_eos": true, "stream": stream}).to_string();
    let mut client = TcpStream::connect(api(cluster)).expect("a listener");
    client.set_read_timeout(Some(DEADLINE)).expect("a deadline");
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    client.write_all(head.as_bytes()).and_then(|()| client.write_all(body.as_bytes())).expect("it is taken");
    BufReader::new(client)
}

#[test]
fn a_chat_and_a_completion_answer_as_a_job_does() {
    let cluster = cluster(None);
    // A completion is a raw text, which the template puts nothing before.
    let job = |id: &str, chat_template: bool| {
        let request = json!({"context": whale(), "query": "Which colour?", "max_tokens": 8, "id": id, "chat_template": chat_template});
        ureq::post(format!("{}/api/v1/jobs", cluster.server())).send_json(&request).expect("the job is taken");
        let job = cluster.run(&["job", "result", id, "-o", "json"]);
        let job: Value = serde_json::from_slice(&job.stdout).expect("JSON");
        let (context, query) = (job["context_tokens"].as_u64(), job["query_tokens"].as_u64());
        let tokens = context.zip(query).map(|(context, query)| context + query).expect("numbers");
        (job["text"].clone(), Some(tokens))
    };
    let (rendered, raw) = (job("rendered", true), job("raw", false));
    let text = format!("{}\n\nWhich colour?", whale());
    let bodies = [
        (CHAT, json!({"messages": messages(), "max_tokens": 8})),
        (CHAT, json!({"messages": [{"role": "user", "content": text}], "max_tokens": 8})),
        (
            CHAT,
            json!({"messages": [{"role": "user", "content": whale()}, {"role": "user", "content": "Which colour?"}], "max_tokens": 8}),
        ),
        ("/v1/completions", json!({"prompt": text, "max_tokens": 8})),
        ("/v1/completions", json!({"context": whale(), "prompt": "Which colour?", "max_tokens": 8})),
    ];
    for (path, body) in bodies {
        let (status, answer) = send(&cluster, ("POST", path), &[JSON], &body.to_string());
        assert_eq!(status, 200, "{answer}");
        let choice = &answer["choices"][0];
        let printed = if path == CHAT { &choice["message"]["content"] } else { &choice["text"] };
        let expected = if path == CHAT { &rendered } else { &raw };
        assert_eq!(&(printed.clone(), answer["usage"]["prompt_tokens"].as_u64()), expected, "{path} {body}");
    }
}

#[test]
fn what_is_wrong_has_its_status_its_code_and_its_field() {
    let cluster = cluster(None);
    let with = |name: &str, value: Value| {
        let mut body = json!({"messages": messages(), "max_tokens": 1});
        body[name] = value;
        body.to_string()
    };
    let long = json!([{"role": "user", "content": "word ".repeat(20_000)}]);
    let cases = [
        ("{".to_owned(), 400, "invalid_request", None),
        ("[]".to_owned(), 400, "invalid_request", None),
        ("{}".to_owned(), 400, "invalid_request", Some("messages")),
        ("[".repeat(10_000), 400, "invalid_request", None),
        (with("model", json!("gpt-4")), 404, "model_not_found", Some("model")),
        (with("messages", json!([])), 400, "invalid_request", Some("messages")),
        (with("messages", long), 400, "context_too_long", Some("messages")),
        (with("max_tokens", json!(0)), 400, "invalid_request", Some("max_tokens")),
        (with("max_tokens", json!(16_380)), 400, "context_too_long", Some("messages")),
        (with("max_tokens", json!(1e99)), 400, "invalid_request", Some("max_tokens")),
        (with("temperature", json!(-1)), 400, "sampling", Some("temperature")),
        (with("seed", json!(1.5)), 400, "invalid_request", Some("seed")),
        (with("stop", json!(vec!["x"; 99])), 400, "invalid_request", Some("stop")),
        (with("n", json!(17)), 400, "invalid_request", Some("n")),
        (with("logprobs", json!(5)), 400, "invalid_request", Some("logprobs")),
        (with("top_logprobs", json!(5)), 400, "invalid_request", Some("top_logprobs")),
        (
            json!({"messages": messages(), "logprobs": true, "top_logprobs": 21}).to_string(),
            400,
            "invalid_request",
            Some("top_logprobs"),
        ),
        (with("tools", json!([{}])), 400, "invalid_request", Some("tools")),
        (with("tools", json!([{"type": "web_search"}])), 400, "unsupported_parameter", Some("tools")),
        (with("guided_regex", json!("(")), 400, "invalid_request", Some("guided_regex")),
        (with("presence_penalty", json!(3)), 400, "sampling", Some("presence_penalty")),
        (with("logit_bias", json!({"99999999": 1})), 400, "invalid_request", Some("logit_bias")),
        (with("min_tokens", json!(2)), 400, "invalid_request", Some("min_tokens")),
        (with("cache_salt", json!(3)), 400, "invalid_request", Some("cache_salt")),
        (with("cache_salt", json!("")), 400, "invalid_request", Some("cache_salt")),
        (with("cache_salt", json!("x".repeat(257))), 400, "invalid_request", Some("cache_salt")),
        (with("whale", json!(3)), 400, "unknown_parameter", Some("whale")),
        (with("context", json!("text")), 400, "unknown_parameter", Some("context")),
        (with("attention", json!("none")), 400, "invalid_request", Some("attention")),
        (
            with("attention", json!({"method": "apb", "retaining_heads": "/etc/passwd"})),
            400,
            "invalid_request",
            Some("attention"),
        ),
        (
            json!({"messages": [{"role": "user", "content": "q"}], "session_id": "none"}).to_string(),
            404,
            "session_not_found",
            Some("session_id"),
        ),
        (with("session_id", json!("../../etc")), 400, "invalid_request", Some("messages")),
    ];
    for (body, expected, code, param) in cases {
        let (status, answer) = send(&cluster, ("POST", CHAT), &[JSON], &body);
        let error = &answer["error"];
        let shown: String = body.chars().take(200).collect();
        assert_eq!(
            (status, error["code"].as_str(), error["param"].as_str()),
            (expected, Some(code), param),
            "{shown}: {answer}"
        );
        let message = error["message"].as_str().expect("a message");
        assert!(message.len() < 1000 && !message.chars().any(char::is_control), "{answer}");
        assert!(code != "context_too_long" || message.contains("maximum context length is 16384 tokens"), "{answer}");
    }
    for (way, headers, expected) in [
        (("GET", "/v1/whales"), &[][..], 404),
        (("GET", "/v1/models/whale"), &[], 404),
        (("GET", "/api/v1/jobs"), &[], 404),
        (("POST", "/api/v1/shutdown"), &[JSON], 404),
        (("POST", CHAT), &[("content-type", "text/plain")], 415),
        (("GET", "/v1/models"), &[("origin", "https://evil.example")], 403),
        (("GET", "/v1/models"), &[("host", "evil.example")], 403),
        (("GET", "/v1/models"), &[("x-asterism-cluster", "another")], 421),
    ] {
        let (status, answer) = send(&cluster, way, headers, "{}");
        assert_eq!(status, expected, "{way:?} {headers:?}: {answer}");
    }
    assert_eq!(ask(&cluster, &json!({"messages": messages(), "max_tokens": 1})).0, 200);
}

#[test]
fn a_head_without_an_end_is_refused() {
    let cluster = cluster(None);
    let mut client = TcpStream::connect(api(&cluster)).expect("a listener");
    client.set_read_timeout(Some(DEADLINE)).expect("a deadline");
    let head = format!("GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX-Whale: {}", "white".repeat(1 << 20));
    // Who is refused early may not be read to the end.
    let _ = client.write_all(head.as_bytes());
    let mut answer = Vec::new();
    let _ = client.read_to_end(&mut answer);
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 4"), "{}", String::from_utf8_lossy(&answer));
    assert_eq!(send(&cluster, ("GET", "/v1/models"), &[], "").0, 200);
}

#[test]
fn who_goes_away_is_not_worked_for() {
    let cluster = cluster(None);
    let mut streamed = open(&cluster, "none", true);
    let reported =
        streamed.by_ref().lines().map(|line| line.expect("a line")).find(|line| line.contains("content\":\" "));
    assert!(reported.is_some(), "a token comes before the end");
    drop(streamed);
    wait_until_cancelled(&cluster, "a stream that nobody reads");
    let before = newest(&cluster)["id"].clone();
    let waiting = open(&cluster, "none", false);
    let started = Instant::now();
    while newest(&cluster)["id"] == before {
        assert!(started.elapsed() < DEADLINE, "the job is not there");
    }
    drop(waiting);
    wait_until_cancelled(&cluster, "an answer that nobody waits for");
}

#[test]
fn who_has_said_all_and_reads_on_gets_an_answer() {
    let cluster = cluster(None);
    for (version, stream) in [("1.1", false), ("1.1", true), ("1.0", true)] {
        let body = json!({"messages": messages(), "max_tokens": 60, "ignore_eos": true, "stream": stream}).to_string();
        let mut client = TcpStream::connect(api(&cluster)).expect("a listener");
        client.set_read_timeout(Some(DEADLINE)).expect("a deadline");
        let head = format!(
            "POST {CHAT} HTTP/{version}\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        client.write_all(head.as_bytes()).and_then(|()| client.write_all(body.as_bytes())).expect("it is taken");
        client.shutdown(std::net::Shutdown::Write).expect("half of it closes");
        let mut answer = String::new();
        client.read_to_string(&mut answer).expect("the connection ends with the answer");
        assert!(
            answer.contains(" 200 OK\r\n") && answer.contains("\"finish_reason\":\"length\""),
            "{version} {stream}: {answer}"
        );
        assert_eq!(newest(&cluster)["state"], "SUCCEEDED", "{version} {stream}");
    }
}

#[test]
fn what_a_lost_supervisor_was_asked_for_is_not_gone_on_with() {
    let cluster = cluster(None);
    let mut streamed = open(&cluster, "none", true);
    let reported =
        streamed.by_ref().lines().map(|line| line.expect("a line")).find(|line| line.contains("content\":\" "));
    assert!(reported.is_some(), "a token comes before the end");
    let (lost, address) = (cluster.supervisor(), api(&cluster));
    kill(lost);
    cluster.wait_for("another supervisor", |status| status["ready"] == true && cluster.supervisor() != lost);
    wait_until_cancelled(&cluster, "a job whose connection went with the supervisor");
    assert_eq!(api(&cluster), address, "clients find it where it was");
}

#[test]
fn keys_open_the_door_and_each_has_so_many_requests() {
    let cluster = cluster(Some(KEYS));
    let models = |headers: &[(&str, &str)]| send(&cluster, ("GET", "/v1/models"), headers, "");
    assert_eq!(models(&[("authorization", "Bearer moon")]).0, 200);
    for wrong in ["Bearer whale", "Bearer", "moon", "Basic moon", "Bearer moonmoon"] {
        let (status, answer) = models(&[("authorization", wrong)]);
        assert_eq!((status, answer["error"]["code"].as_str()), (401, Some("invalid_api_key")), "{wrong}");
    }
    assert_eq!(models(&[]).0, 401);
    let mut held = open(&cluster, "sun", true);
    let mut line = String::new();
    held.read_line(&mut line).expect("an answer");
    assert!(line.contains("200"), "{line}");
    let (status, answer) = models(&[("authorization", "Bearer sun")]);
    assert_eq!((status, answer["error"]["code"].as_str()), (429, Some("rate_limit_exceeded")));
    assert_eq!(models(&[("authorization", "Bearer moon")]).0, 200, "another key is not held up");
    drop(held);
    let started = Instant::now();
    while models(&[("authorization", "Bearer sun")]).0 == 429 {
        assert!(started.elapsed() < DEADLINE, "its place is not free again");
    }
}

#[test]
fn an_api_for_everybody_on_the_network_is_not_opened_by_mistake() {
    let cluster = cluster(Some(KEYS));
    for (edit, cause) in [
        ("listen = \"0.0.0.0:0\"", "lets everybody who reaches this machine ask"),
        ("listen = \"127.0.0.1:0\"\napi_key_file = \"no-such-file\"", "cannot be read"),
        ("listen = \"127.0.0.1:0\"\napi_key_file = \"cluster.toml\"", "expected NAME SHA256"),
    ] {
        let text = fs::read_to_string(cluster.file()).expect("a file");
        let file = cluster.folder().join("other.toml");
        let own = "listen = \"127.0.0.1:0\"\napi_key_file = \"keys\"";
        fs::write(&file, text.replacen(own, edit, 1)).expect("a file");
        let mut validate = std::process::Command::new(BINARY);
        let output = validate.args(["validate", "-f"]).arg(&file).output().expect("the binary under test");
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && printed.contains(cause), "{edit}: {printed}");
    }
}
