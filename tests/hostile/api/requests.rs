//! Requests that name what is not theirs, cost too much, or hold numbers that cannot be meant.

mod nearly;

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    path::Path,
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tests::{Cluster, ClusterSpec, golden};

const BINARY: &str = env!("CARGO_BIN_EXE_asterism-under-test");
/// Beyond what the supervisor holds accepted, docs/guarantees.md says.
const MEMORY_BOUND: u64 = 512 << 20;

fn cluster() -> Cluster {
    let spec = ClusterSpec { contexts: 1, model: None, method: "[attention.star]", listen: "127.0.0.1:0".to_string() };
    Cluster::start(BINARY, &spec)
}

/// Status, and body as JSON.
fn send(cluster: &Cluster, method: &str, path: &str, body: &str) -> (u16, Value) {
    let (status, body) = exchange(cluster, method, path, body.as_bytes(), body.len());
    (status, serde_json::from_str(&body).unwrap_or(Value::String(body)))
}

/// One HTTP exchange by hand: clients of our own would not send all of this.
fn exchange(cluster: &Cluster, method: &str, path: &str, body: &[u8], length: usize) -> (u16, String) {
    let server = cluster.server();
    let address = server.strip_prefix("http://").expect("plain HTTP");
    let mut stream = TcpStream::connect(address).expect("a listener");
    stream.set_read_timeout(Some(tests::DEADLINE)).expect("a deadline");
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).expect("a head is taken");
    // Who is refused early may not be read to the end.
    let _ = stream.write_all(body);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    (status, answer.split_once("\r\n\r\n").map_or(String::new(), |(_, body)| body.to_string()))
}

fn submit(cluster: &Cluster, request: &Value) -> (u16, Value) {
    send(cluster, "POST", "/api/v1/jobs", &request.to_string())
}

fn request() -> Value {
    json!({"context": "The whale is white.", "query": "Which colour?", "max_tokens": 2})
}

fn with(key: &str, value: Value) -> Value {
    let mut request = request();
    request[key] = value;
    request
}

/// A line of /proc about the supervisor, in bytes.
fn memory(cluster: &Cluster, line: &str) -> u64 {
    let path = Path::new("/proc").join(cluster.supervisor().to_string()).join("status");
    let status = fs::read_to_string(path).expect("it runs");
    let found = status.lines().find_map(|text| text.strip_prefix(line)).expect("a line of status");
    let kib: u64 = found.trim_start_matches(':').trim().trim_end_matches(" kB").parse().expect("a number");
    kib << 10
}

fn refused(cluster: &Cluster, request: &Value, param: &str) {
    let (status, answer) = submit(cluster, request);
    let error = &answer["error"];
    assert_eq!((status, error["code"].as_str()), (400, Some("invalid_request")), "{request}: {answer}");
    let message = error["message"].as_str().expect("a message");
    assert!(error["param"] == param || message.contains(param), "{request}: {answer}");
    assert!(message.len() < 1000 && !message.chars().any(char::is_control), "{request}: {answer}");
}

#[test]
fn no_request_names_a_file() {
    let cluster = cluster();
    let before = memory(&cluster, "VmHWM");
    for path in ["/dev/zero", "/etc/passwd", "../cluster.toml", "no-such-heads"] {
        let (status, answer) = submit(&cluster, &with("method", json!({"apb": {"retaining_heads": path}})));
        let message = answer["error"]["message"].as_str().expect("a message");
        assert_eq!((status, &answer["error"]["param"]), (400, &json!("method")), "{answer}");
        assert!(message.contains("no retaining heads are called") && !message.contains("os error"), "{message}");
        let session = json!({"name": "s", "context": "c", "method": {"apb": {"retaining_heads": path}}});
        assert_eq!(send(&cluster, "POST", "/api/v1/sessions", &session.to_string()).0, 400);
    }
    assert!(memory(&cluster, "VmHWM") < before + MEMORY_BOUND);
}

#[test]
fn what_would_be_read_another_way_is_refused() {
    let cluster = cluster();
    let sent = ureq::post(format!("{}/api/v1/jobs", cluster.server()))
        .config()
        .http_status_as_error(false)
        .build()
        .header("content-encoding", "gzip")
        .send_json(request());
    assert_eq!(sent.expect("an answer").status(), 415);
}

#[test]
fn head_is_get_without_its_body_and_a_wrong_method_is_told_the_right_ones() {
    let cluster = cluster();
    for path in ["/livez", "/readyz", "/metrics", "/", "/console.css"] {
        assert_eq!(exchange(&cluster, "HEAD", path, b"", 0), (200, String::new()), "{path}");
    }
    let (status, answer) = send(&cluster, "PUT", "/api/v1/jobs", "{}");
    assert_eq!((status, &answer["error"]["code"]), (405, &json!("method_not_allowed")));
    let answer =
        ureq::delete(format!("{}/livez", cluster.server())).config().http_status_as_error(false).build().call();
    let answer = answer.expect("an answer");
    assert_eq!((answer.status().as_u16(), &answer.headers()["allow"]), (405, &"GET, HEAD".parse().expect("a header")));
    assert_eq!(send(&cluster, "PUT", "/api/v1/nothing", "{}").0, 404);
}

#[test]
fn heads_of_the_cluster_file_are_known_by_name() {
    let spec = ClusterSpec {
        contexts: 1,
        model: Some(golden().join("models/tiny-llama")),
        method: "[attention.dense]",
        listen: "127.0.0.1:0".to_string(),
    };
    let cluster = Cluster::start(BINARY, &spec);
    let ids = |name: &str| json!({"context": [5, 6, 7, 8], "query": [9], "max_tokens": 1, "method": {"apb": {"retaining_heads": name}}});
    assert_eq!(submit(&cluster, &ids("trained")).0, 202);
    let (status, answer) = submit(&cluster, &ids("untrained"));
    assert_eq!(status, 400);
    assert!(answer["error"]["message"].as_str().expect("a message").contains("known are trained"), "{answer}");
}

#[test]
fn sixty_megabytes_are_refused_before_they_cost() {
    let cluster = cluster();
    let before = memory(&cluster, "VmHWM");
    let text = "The whale is white. ".repeat(3 << 20);
    let body = json!({"context": text, "query": "Which colour?"}).to_string();
    let started = Instant::now();
    let (status, answer) = send(&cluster, "POST", "/api/v1/jobs", &body);
    let took = started.elapsed();
    println!("one of {} bytes: {status} after {took:?}", body.len());
    assert_eq!((status, answer["error"]["code"].as_str()), (413, Some("payload_too_large")), "{answer}");
    assert!(took < Duration::from_secs(10), "{took:?}");
    thread::scope(|scope| {
        let senders: Vec<_> =
            (0..4).map(|_| scope.spawn(|| send(&cluster, "POST", "/api/v1/sessions", &body).0)).collect();
        senders.into_iter().for_each(|sender| assert_eq!(sender.join().expect("no panic"), 413));
    });
    // A length alone is enough to be refused, and a body without one is read no further than needed.
    let started = Instant::now();
    assert_eq!(exchange(&cluster, "POST", "/api/v1/jobs", b"{", 1 << 40).0, 413);
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    let grown = memory(&cluster, "VmHWM").saturating_sub(before);
    println!("grown by {} MiB", grown >> 20);
    assert!(grown < MEMORY_BOUND, "{grown}");
    assert_eq!(submit(&cluster, &request()).0, 202);
}

#[test]
fn texts_that_are_costly_to_tokenise_are_not() {
    let cluster = cluster();
    let before = memory(&cluster, "VmHWM");
    let most = 300_000;
    for part in ["a", " ", "\n", "7", ".", "é", "你", "word ", "<|eot_id|>", "'s"] {
        let text = part.repeat(most / part.len());
        let started = Instant::now();
        let (status, answer) = submit(&cluster, &with("context", json!(text)));
        assert!([413, 400].contains(&status), "{part:?}: {status} {answer}");
        assert!(started.elapsed() < Duration::from_secs(20), "{part:?}: {:?}", started.elapsed());
    }
    let ids = vec![1; 100_000];
    assert_eq!(submit(&cluster, &json!({"context": ids, "query": [1], "chat_template": false})).0, 413);
    let grown = memory(&cluster, "VmHWM").saturating_sub(before);
    assert!(grown < MEMORY_BOUND, "{grown}");
}

#[test]
fn json_that_is_meant_to_cost_is_refused() {
    let cluster = cluster();
    let nested = format!("{}{}", "[".repeat(200_000), "]".repeat(200_000));
    for body in [
        nested.clone(),
        format!("{{\"context\":{nested},\"query\":\"q\"}}"),
        format!("{{\"{}\":1}}", "x".repeat(400_000)),
        json!({"context": "c", "query": "q", "max_tokens": "9".repeat(400_000)}).to_string(),
    ] {
        let (status, answer) = send(&cluster, "POST", "/api/v1/jobs", &body);
        assert_eq!((status, answer["error"]["code"].as_str()), (400, Some("invalid_request")), "{answer}");
        assert!(answer["error"]["message"].as_str().expect("a message").len() < 2000);
    }
    let many: Value = (0..1000).map(|i| (format!("k{i}"), json!("v"))).collect::<serde_json::Map<_, _>>().into();
    refused(&cluster, &with("labels", many), "labels");
    refused(&cluster, &with("stop", json!(vec!["x"; 1000])), "stop");
    refused(&cluster, &with("stop", json!(["x".repeat(10_000)])), "stop");
    let (status, _) = submit(&cluster, &with("query", json!("why ".repeat(60_000))));
    assert_eq!(status, 413);
    let small = "[1,".repeat(20_000);
    assert_eq!(send(&cluster, "POST", "/api/v1/join-tokens", &small).0, 413);
}

/// Hosts have memory for keys and values of 128 tokens at once, however few a session has.
#[test]
fn the_least_that_a_session_takes_is_counted() {
    let spec = ClusterSpec { contexts: 1, model: None, method: "[attention.star]", listen: "127.0.0.1:0".to_string() };
    let cluster = Cluster::written(BINARY, &spec, |text| {
        text.replace("[api]\n", "[sessions]\nmax_pinned_bytes = \"4MiB\"\n\n[api]\n")
    });
    assert!(cluster.run(&["up", "--detach"]).status.success());
    let create = |at: usize| {
        let session =
            json!({"name": format!("s{at}"), "context": format!("Whale {at} is white."), "ttl_s": 31_536_000});
        send(&cluster, "POST", "/api/v1/sessions", &session.to_string())
    };
    let (taken, refused) =
        (0..16).map(|at| (at, create(at))).find(|(_, (status, _))| *status != 202).expect("one too many");
    assert_eq!((taken, refused.1["error"]["code"].as_str()), (4, Some("capacity_exhausted")), "{refused:?}");
    let message = refused.1["error"]["message"].as_str().expect("a message");
    assert!(message.contains("sessions.max_pinned_bytes is 4194304"), "{message}");
}

#[test]
fn an_id_is_one_request_of_one_client() {
    let cluster = cluster();
    for own in ["job-2", "job-37", "job-"] {
        refused(&cluster, &with("id", json!(own)), "id");
    }
    let (status, victim) = submit(&cluster, &request());
    assert_eq!(status, 202);
    let id = victim["id"].as_str().expect("an id");
    assert!(id.len() == "job-".len() + 32, "{id} can be guessed");
    let mine = with("id", json!("mine"));
    assert_eq!(submit(&cluster, &mine), (202, json!({"id": "mine"})));
    assert_eq!(submit(&cluster, &mine), (202, json!({"id": "mine"})));
    let mut other = mine.clone();
    other["query"] = json!("What does job mine say?");
    let (status, answer) = submit(&cluster, &other);
    assert_eq!((status, answer["error"]["code"].as_str()), (409, Some("job_exists")), "{answer}");
    assert_eq!(answer["error"]["type"], "invalid_request_error", "{answer}");
    let asked = |query: &str| {
        fs::write(cluster.folder().join("c.txt"), "The whale is white.").expect("a file");
        let arguments = ["job", "submit", "--context", "c.txt", "--query", query, "--max-tokens", "2", "--id", "cli"];
        cluster.run(&arguments).status.code()
    };
    assert_eq!([asked("Which colour?"), asked("Which colour?"), asked("Which size?")], [Some(0), Some(0), Some(5)]);
    // The journal knows what was asked, too.
    tests::kill(cluster.supervisor());
    cluster.wait_for("the supervisor", |status| status["ready"] == true);
    assert_eq!(submit(&cluster, &mine).0, 202);
    assert_eq!(submit(&cluster, &other).0, 409);
}

#[test]
fn numbers_have_bounds() {
    let cluster = cluster();
    let huge = [json!(u64::MAX), json!(-1), json!(1e308), json!(1_u64 << 32), json!(0.5)];
    for number in &huge {
        refused(&cluster, &with("max_tokens", number.clone()), "");
        for method in [
            json!({"star": {"block_tokens": number}}),
            json!({"star": {"anchor_tokens": number}}),
            json!({"pulsar": {"sink_tokens": number}}),
            json!({"pulsar": {"chunk_tokens": number}}),
            json!({"apb": {"query_insert_at": number}}),
            json!({"anchor": {"block_q": number}}),
            json!({"auto": {"dense_below_tokens": number}}),
        ] {
            refused(&cluster, &with("method", method), "");
        }
    }
    refused(&cluster, &with("max_tokens", json!(16_385)), "max_tokens");
    let constant = json!({"star": {"block_tokens": 16, "anchor_tokens": 4, "anchor_content": {"constant": {"token": 4_000_000_000_u32}}}});
    let long = json!({"context": "word ".repeat(100), "query": "q", "method": constant, "allow_idle_hosts": true});
    refused(&cluster, &long, "method");
    for seconds in [json!(u64::MAX), json!(-1), json!(0), json!(1e308), json!(1e-320)] {
        refused(&cluster, &with("timeout_s", seconds.clone()), "timeout_s");
        let session = json!({"name": "s", "context": "c", "ttl_s": seconds});
        assert_eq!(send(&cluster, "POST", "/api/v1/sessions", &session.to_string()).0, 400, "{seconds}");
        let extension = json!({"ttl_s": seconds}).to_string();
        assert_eq!(send(&cluster, "POST", "/api/v1/sessions/s/extend", &extension).0, 400, "{seconds}");
    }
    let deadline = json!({"deadline_s": 1e308}).to_string();
    assert_eq!(send(&cluster, "POST", "/api/v1/hosts/context-0/drain", &deadline).0, 400);
    for sampling in
        [json!({"temperature": 1e308}), json!({"temperature": -1}), json!({"top_p": 0}), json!({"top_p": 2})]
    {
        let (status, answer) = submit(&cluster, &with("sampling", sampling.clone()));
        assert_eq!(status, 400, "{sampling}: {answer}");
    }
}

#[test]
fn names_are_names() {
    let cluster = cluster();
    for bad in [".", "..", "", "a/b", "a b", "\u{1b}[2J", "é", "a\n", &"x".repeat(65)] {
        refused(&cluster, &with("id", json!(bad)), "id");
        refused(&cluster, &with("labels", json!({"k": bad})), "labels");
        refused(&cluster, &with("labels", json!({bad: "v"})), "labels");
        let session = json!({"name": bad, "context": "c"});
        assert_eq!(send(&cluster, "POST", "/api/v1/sessions", &session.to_string()).0, 400, "{bad:?}");
    }
    for salt in [json!(""), json!("x".repeat(257)), json!(3), json!(["a"])] {
        refused(&cluster, &with("cache_salt", salt), "cache_salt");
    }
    assert_eq!(submit(&cluster, &with("cache_salt", json!("x".repeat(256)))).0, 202);
    for path in ["jobs/%1b%5b2J", "jobs/a%2fb", "sessions/%00", "hosts/%0a", "jobs/%ff"] {
        let (status, answer) = send(&cluster, "GET", &format!("/api/v1/{path}"), "");
        assert!([400, 404].contains(&status), "{path}: {status} {answer}");
        let message = answer["error"]["message"].as_str().unwrap_or_else(|| panic!("{path}: {answer}"));
        assert!(!message.chars().any(char::is_control), "{path}: {message:?}");
    }
    let code = |arguments: &[&str]| cluster.run(arguments).status.code();
    assert_eq!(code(&["job", "status", ".."]), Some(2));
    assert_eq!(code(&["job", "cancel", "../hosts/context-0"]), Some(2));
    assert_eq!(code(&["session", "drop", "."]), Some(2));
    assert_eq!(code(&["job", "status", "no-such-job"]), Some(5));
}

/// What a server says comes to a terminal without what would control it, and to a pipe as it is.
#[test]
fn nothing_from_outside_controls_a_terminal() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let server = format!("http://{}", listener.local_addr().expect("an address"));
    let message = json!({"error": {"message": "no \u{1b}]0;owned\u{7} job", "type": "not_found_error", "code": "job_not_found", "param": null}});
    let answering = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        let _ = stream.read(&mut [0; 4096]);
        let body = message.to_string();
        let head = format!("HTTP/1.1 404 Not Found\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
        stream.write_all((head + &body).as_bytes()).expect("an answer");
    });
    let output = std::process::Command::new(BINARY)
        .args(["job", "status", "x", "--server", &server])
        .stdin(Stdio::null())
        .output()
        .expect("the binary under test");
    answering.join().expect("no panic");
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(printed.contains("\\u001b]0;owned\\u0007") && !printed.contains('\u{1b}'), "{printed:?}");
}
