//! The worst bodies that there are of each kind, to every endpoint that takes one, many at once: what the supervisor takes for them,
//! and whether it hears its hosts meanwhile.

use std::{
    collections::BTreeSet,
    fs,
    io::{Read, Write},
    net::TcpStream,
    path::Path,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tests::{Cluster, DEADLINE};

use super::openai::{JSON, api, cluster, send};

/// Beyond what the supervisor holds accepted, docs/guarantees.md says.
const MEMORY_BOUND: u64 = 512 << 20;
/// How late heartbeats may be heard, of a hundred all but one.
const LATE: Duration = Duration::from_millis(100);
/// As heartbeats are sent.
const HEARTBEAT: Duration = Duration::from_millis(250);
/// Requests at once.
const AT_ONCE: usize = 16;
/// About the largest body that the embedded model takes, and that of a file.
const LARGEST: usize = 1_300_000;
const FILE: usize = 32 << 20;
/// Bytes of a text that is tokenised before it is refused.
const TOKENISED: usize = 200_000;

/// Times that each body is sent.
fn times() -> usize {
    std::env::var("ASTERISM_BODIES").ok().and_then(|times| times.parse().ok()).unwrap_or(1)
}

/// A part of a body, and what stands around a list of as many as fit.
const PARTS: &[(&str, &str, &str)] = &[
    ("[", "{\"\":0}", "]"),
    ("[", "{}", "]"),
    ("[", "[]", "]"),
    ("[", "\"\"", "]"),
    ("[", "0", "]"),
    ("[", "-1e9", "]"),
    ("[", "null", "]"),
    ("[", "{\"role\":\"user\",\"content\":\"\"}", "]"),
    ("[{\"role\":\"user\",\"content\":[", "{\"type\":\"text\",\"text\":\"\"}", "]}]"),
    ("[{\"role\":\"assistant\",\"tool_calls\":[", "{\"function\":{\"name\":\"f\",\"arguments\":\"[[],[]]\"}}", "]}]"),
    ("[{\"role\":\"user\",\"content\":[", "{\"type\":\"tool_result\",\"content\":[]}", "]}]"),
    ("{", "\"\":0", "}"),
    ("{", "\"a\":{\"b\":[]}", "}"),
];

/// Something of about `bytes` bytes, of each kind.
fn patterns(bytes: usize) -> Vec<String> {
    let list = |(open, part, close): &(&str, &str, &str)| {
        format!("{open}{}{close}", vec![*part; bytes / (part.len() + 1)].join(","))
    };
    let keys: Vec<String> = (0..bytes / 12).map(|at| format!("\"{at:x}\":0")).collect();
    let deep = |open: &str, close: &str| open.repeat(100) + &close.repeat(100);
    let mut made: Vec<String> = PARTS.iter().map(list).collect();
    made.extend([
        format!("{{{}}}", keys.join(",")),
        format!("\"{}\"", "x".repeat(bytes)),
        format!("\"{}\"", "\\u0001".repeat(bytes / 6)),
        "9".repeat(bytes),
        format!("[{}0]", (deep("[", "]") + ",").repeat(bytes / 201)),
        format!("[{}0]", (deep("{\"a\":", "").replace("}", "") + "0" + &"}".repeat(100) + ",").repeat(bytes / 601)),
        "[".repeat(bytes),
        format!("\"{}\"", "The whale is white. ".repeat(bytes / 20)),
    ]);
    made
}

/// Fields of the endpoints that take the OpenAI API's bodies.
const FIELDS: &[&str] = &[
    "messages",
    "input",
    "prompt",
    "context",
    "metadata",
    "tools",
    "stop",
    "user",
    "system",
    "tokens",
    "response_format",
    "guided_choice",
    "logit_bias",
    "chat_template_kwargs",
    "\\u0000",
];

/// Every endpoint that takes JSON, with the names of its fields: of the admin API as its document has them.
fn endpoints(cluster: &Cluster) -> Vec<(String, String, Vec<String>)> {
    let document = ureq::get(format!("{}/api/openapi.json", cluster.server())).call().expect("the document");
    let document: Value = document.into_body().read_json().expect("JSON");
    let mut found = Vec::new();
    for (path, methods) in document["paths"].as_object().expect("paths") {
        for (method, operation) in methods.as_object().expect("methods") {
            let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
            let name = schema["$ref"].as_str().and_then(|name| name.rsplit('/').next());
            let schema = name.map_or(schema, |name| &document["components"]["schemas"][name]);
            let Some(fields) = schema["properties"].as_object() else { continue };
            let path = path.replace("{name}", "nobody").replace("{id}", "nobody");
            let address = cluster.server().replace("http://", "");
            found.push((address, format!("{} {path}", method.to_uppercase()), fields.keys().cloned().collect()));
        }
    }
    let own = asterism::api::openai::ENDPOINTS.iter().filter(|(method, path)| *method == "POST" && !path.contains('{'));
    for (method, path) in own.filter(|(_, path)| *path != "/v1/files") {
        let fields = FIELDS.iter().map(|field| (*field).to_owned()).collect();
        found.push((api(cluster), format!("{method} {path}"), fields));
    }
    assert!(found.len() >= 10, "{found:?}");
    found
}

/// Sends a body by hand, and reads the status of the answer; none where the connection is closed before.
fn post(address: &str, way: &str, kind: &str, body: &[&[u8]]) -> Option<u16> {
    posted(address, way, kind, body).0
}

/// The same, with the beginning of the answer.
fn posted(address: &str, way: &str, kind: &str, body: &[&[u8]]) -> (Option<u16>, String) {
    let mut stream = TcpStream::connect(address).expect("a listener");
    stream.set_read_timeout(Some(DEADLINE)).expect("a deadline");
    let length: usize = body.iter().map(|part| part.len()).sum();
    let head = format!(
        "{way} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n"
    );
    // Who is refused early may not be read to the end.
    let _ = stream.write_all(head.as_bytes()).and_then(|()| body.iter().try_for_each(|part| stream.write_all(part)));
    let mut answer = String::new();
    let _ = stream.take(4096).read_to_string(&mut answer);
    (answer.split(' ').nth(1).and_then(|status| status.parse().ok()), answer)
}

/// A line of /proc about the supervisor, in bytes.
fn memory(cluster: &Cluster, line: &str) -> u64 {
    let status = fs::read_to_string(process(cluster).join("status")).expect("it runs");
    let found = status.lines().find_map(|text| text.strip_prefix(line)).expect("a line of status");
    let kib: u64 = found.trim_start_matches(':').trim().trim_end_matches(" kB").parse().expect("a number");
    kib << 10
}

fn process(cluster: &Cluster) -> std::path::PathBuf {
    Path::new("/proc").join(cluster.supervisor().to_string())
}

/// How late the heartbeats of hosts were heard while something was done: of a hundred looks all but one.
fn lateness(cluster: &Cluster, work: impl FnOnce()) -> Duration {
    let (done, server) = (AtomicBool::new(false), cluster.server());
    let look = || {
        let mut late = Vec::new();
        while !done.load(Ordering::Relaxed) || late.len() < 100 {
            let status: Option<Value> = ureq::get(format!("{server}/api/v1/topology"))
                .call()
                .ok()
                .and_then(|answer| answer.into_body().read_json().ok());
            let hosts = status.as_ref().and_then(|status| status["hosts"].as_array()).into_iter().flatten();
            let oldest = hosts.filter_map(|host| host["heartbeat_age_s"].as_f64()).fold(0.0, f64::max);
            late.push(Duration::from_secs_f64(oldest).saturating_sub(HEARTBEAT));
            thread::park_timeout(Duration::from_millis(5));
        }
        late.sort_unstable();
        late[late.len() * 99 / 100]
    };
    thread::scope(|scope| {
        let looking = scope.spawn(look);
        work();
        done.store(true, Ordering::Relaxed);
        looking.join().expect("no panic")
    })
}

/// Does something and says what it took: bytes beyond those before, and how late heartbeats were heard.
fn measured(cluster: &Cluster, what: &str, usual: Duration, work: impl FnOnce()) {
    fs::write(process(cluster).join("clear_refs"), "5").expect("its peak is forgotten");
    let before = memory(cluster, "VmRSS");
    let began = Instant::now();
    let late = lateness(cluster, work);
    let grown = memory(cluster, "VmHWM").saturating_sub(before);
    println!("{what}: {} MiB beyond {}, heartbeats late by {late:?}, {:?}", grown >> 20, before >> 20, began.elapsed());
    assert!(grown < MEMORY_BOUND, "{what}: {grown}");
    assert!(late < LATE.max(2 * usual), "{what}: {late:?}, where {usual:?} is usual");
}

/// Sends each of some bodies several times, as many at once as there are hands.
fn flood(bodies: Vec<(String, String)>, send: impl Fn(&str, &str) -> Option<u16> + Sync) {
    let left = Mutex::new(bodies.into_iter().flat_map(|body| vec![body; times()]).collect::<Vec<_>>());
    let statuses = Mutex::new(BTreeSet::new());
    let next = || left.lock().expect("no panic").pop();
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some((way, body)) = next() {
                    statuses.lock().expect("no panic").insert(send(&way, &body));
                }
            });
        }
    });
    let statuses = statuses.into_inner().expect("no panic");
    assert!(statuses.iter().flatten().all(|status| [200, 202, 400, 404, 413, 503].contains(status)), "{statuses:?}");
}

#[test]
fn the_worst_bodies_of_every_endpoint_cost_what_they_are_charged_for() {
    let cluster = cluster(None);
    let usual = lateness(&cluster, || {});
    for (address, way, fields) in endpoints(&cluster) {
        let mut bodies = patterns(LARGEST);
        for (at, pattern) in patterns(LARGEST).into_iter().enumerate() {
            // Each pattern in some field, and each field with some pattern.
            let of_pattern = (0..fields.len()).filter(|field| (at + field) % 3 == 0).map(|field| &fields[field]);
            bodies.extend(of_pattern.map(|field| format!("{{\"{field}\":{pattern}}}")));
        }
        let text = "The whale is white. ".repeat(TOKENISED / 20);
        bodies.push(json!({"messages": [{"role": "user", "content": text}]}).to_string());
        bodies.extend(["input", "prompt"].map(|field| json!({field: text}).to_string()));
        bodies.push(json!({"context": text, "query": "Which?"}).to_string());
        bodies.push(json!({"name": "long", "context": text}).to_string());
        let bodies = bodies.into_iter().map(|body| (way.clone(), body)).collect();
        measured(&cluster, &way, usual, || {
            flood(bodies, |way, body| post(&address, way, "application/json", &[body.as_bytes()]));
        });
    }
    let (status, answer) = send(&cluster, ("GET", "/v1/models"), &[], "");
    assert_eq!(status, 200, "{answer}");
}

/// Purpose and content of a file as a form.
fn form(content: &[u8]) -> Vec<u8> {
    let head = "--w\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n\
                --w\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n";
    [head.as_bytes(), content, b"\r\n--w--\r\n"].concat()
}

const FORM: &str = "multipart/form-data; boundary=w";

#[test]
fn files_and_batches_of_the_worst_lines_cost_what_they_are_charged_for() {
    let cluster = cluster(None);
    let address = api(&cluster);
    let usual = lateness(&cluster, || {});
    measured(&cluster, "POST /v1/files", usual, || {
        thread::scope(|scope| {
            for _ in 0..AT_ONCE {
                scope.spawn(|| post(&address, "POST /v1/files", FORM, &[&form(&vec![b'x'; FILE - 1024])]));
            }
        });
    });
    let line = |body: &str| {
        format!("{{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/chat/completions\",\"body\":{body}}}")
    };
    let mut contents = vec![
        // All in one line, in lines as long as they may be, and nothing but lines.
        line(&format!("{{\"messages\":[{}]}}", "{\"\":0},".repeat((FILE - 2048) / 7))),
        vec![line(&format!("{{\"messages\":[{}0]}}", "{\"\":0},".repeat(LARGEST / 8))); 24].join("\n"),
        "\nx".repeat(FILE / 2 - 1024),
        vec!["{}"; FILE / 3 - 1024].join("\n"),
    ];
    contents
        .extend(patterns(LARGEST).iter().map(|pattern| line(&format!("{{\"x\":{pattern}}}")) + "\n" + &line(pattern)));
    let upload = |content: &String| {
        let (status, answer) = posted(&address, "POST /v1/files", FORM, &[&form(content.as_bytes())]);
        assert_eq!(status, Some(200), "{answer}");
        let file: Value = serde_json::from_str(answer.split("\r\n\r\n").nth(1).expect("a body")).expect("JSON");
        json!({"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}).to_string()
    };
    let bodies: Vec<(String, String)> =
        contents.iter().map(|content| ("POST /v1/batches".to_owned(), upload(content))).collect();
    measured(&cluster, "POST /v1/batches", usual, || {
        flood(bodies, |way, body| post(&address, way, "application/json", &[body.as_bytes()]));
    });
    // Lines that are requests, each too long by its tokens, not by its bytes.
    let long: String = (0..FILE / TOKENISED - 1)
        .map(|at| {
            let messages = json!([{"role": "user", "content": "The whale is white. ".repeat(TOKENISED / 21)}]);
            let body = json!({"messages": messages});
            json!({"custom_id": format!("{at}"), "method": "POST", "url": "/v1/chat/completions", "body": body})
                .to_string()
                + "\n"
        })
        .collect();
    measured(&cluster, "a batch at work", usual, || {
        let (status, batch) = send(&cluster, ("POST", "/v1/batches"), &[JSON], &upload(&long));
        assert_eq!(status, 200, "{batch}");
        let path = format!("/v1/batches/{}", batch["id"].as_str().expect("an id"));
        let started = Instant::now();
        let ended = loop {
            let (_, batch) = send(&cluster, ("GET", &path), &[], "");
            if batch["status"] == "completed" {
                break batch;
            }
            assert!(started.elapsed() < 2 * DEADLINE, "{batch}");
        };
        assert_eq!(ended["request_counts"]["failed"], ended["request_counts"]["total"], "{ended}");
    });
    measured(&cluster, "GET /v1/files/{id}/content", usual, || {
        let (_, files) = send(&cluster, ("GET", "/v1/files?order=asc&limit=1"), &[], "");
        let path = format!("GET /v1/files/{}/content", files["data"][0]["id"].as_str().expect("a file"));
        // Nobody reads on.
        let unread: Vec<TcpStream> = (0..4 * AT_ONCE)
            .map(|_| {
                let mut stream = TcpStream::connect(&address).expect("a listener");
                write!(stream, "{path} HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("sent");
                stream.set_read_timeout(Some(DEADLINE)).expect("a deadline");
                stream.read_exact(&mut [0; 12]).expect("an answer");
                stream
            })
            .collect();
        drop(unread);
    });
}
