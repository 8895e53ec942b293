//! What every answer of the admin API has, and what no request may have.

use std::{
    fs,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tests::{Cluster, ClusterSpec};
use ureq::{
    Agent, Body,
    http::{Request, Response},
};

const BINARY: &str = env!("CARGO_BIN_EXE_asterism-under-test");

fn cluster() -> Cluster {
    let method = "[attention.star]\nblock_tokens = 64";
    Cluster::start(BINARY, &ClusterSpec { contexts: 1, model: None, method, listen: "127.0.0.1:0".into() })
}

fn send(cluster: &Cluster, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Response<Body> {
    let agent: Agent =
        Agent::config_builder().http_status_as_error(false).allow_non_standard_methods(true).build().into();
    let mut request = Request::builder().method(method).uri(format!("{}{path}", cluster.server()));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    match body.is_empty() && method == "GET" {
        true => agent.run(request.body(()).expect("a request")).expect("an answer"),
        false => agent.run(request.body(body.to_owned()).expect("a request")).expect("an answer"),
    }
}

/// Status, name of the request, and body.
fn reported(answer: Response<Body>) -> (u16, String, Value) {
    let id = answer.headers().get("x-request-id").map(|id| id.to_str().expect("plain").to_owned());
    let (status, text) = (answer.status().as_u16(), answer.into_body().read_to_string().expect("UTF-8"));
    (status, id.expect("every answer has it"), serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

const JSON: (&str, &str) = ("content-type", "application/json");

#[test]
fn every_answer_repeats_the_requests_name() {
    let cluster = cluster();
    for path in ["/livez", "/readyz", "/metrics", "/api/v1/jobs", "/api/v1/nothing", "/nothing"] {
        let (_, own, body) = reported(send(&cluster, "GET", path, &[("x-request-id", "trace-1:a")], ""));
        let (_, made, _) = reported(send(&cluster, "GET", path, &[("x-request-id", "not sane\u{9}")], ""));
        assert_eq!((own.as_str(), made.starts_with("req-")), ("trace-1:a", true), "{path}");
        assert!(body["error"].is_null() || body["error"]["request_id"] == "trace-1:a", "{path}: {body}");
    }
    let request = json!({"context": "The whale is white. ".repeat(30), "query": "?", "max_tokens": 1}).to_string();
    let (status, _, job) =
        reported(send(&cluster, "POST", "/api/v1/jobs", &[JSON, ("x-request-id", "mine-7")], &request));
    assert_eq!(status, 202, "{job}");
    let log = fs::read_to_string(cluster.folder().join("data/logs/supervisor.log")).expect("a log");
    let line = log.lines().find(|line| line.contains("mine-7")).expect("a line of the request");
    assert!(line.contains(job["id"].as_str().expect("an id")), "{line}");
}

#[test]
fn refusals_name_what_is_at_fault() {
    let cluster = cluster();
    let good = r#"{"context": "c", "query": "q"}"#;
    let (jobs, sessions) = ("/api/v1/jobs", "/api/v1/sessions");
    let cases = [
        ("POST", jobs, Some(JSON), r#"{"context": "c", "query": "q", "max_tokens": "many"}"#, 400, Some("max_tokens")),
        ("POST", jobs, Some(JSON), r#"{"context": "c", "qery": "q"}"#, 400, Some("qery")),
        ("POST", jobs, Some(JSON), r#"{"context": "c"}"#, 400, Some("query")),
        ("POST", jobs, None, good, 415, None),
        ("POST", jobs, Some(("content-type", "text/plain")), good, 415, None),
        ("POST", sessions, None, good, 415, None),
        ("GET", "/api/v1/jobs?limit=0", None, "", 400, Some("limit")),
        ("GET", "/api/v1/jobs?limit=many", None, "", 400, Some("limit")),
        ("GET", "/api/v1/jobs?state=ended", None, "", 400, Some("state")),
        ("GET", "/api/v1/jobs?order=up", None, "", 400, Some("order")),
        ("GET", "/api/v1/jobs?lmit=3", None, "", 400, Some("lmit")),
        ("GET", "/api/v1/sessions?limit=0", None, "", 400, Some("limit")),
        ("GET", "/api/v1/sessions?role=context", None, "", 400, Some("role")),
        ("GET", "/api/v1/hosts?role=whale", None, "", 400, Some("role")),
        ("GET", "/api/v1/version?verbose", None, "", 400, Some("verbose")),
        ("POST", "/api/v1/hosts/context-0/drain", Some(JSON), r#"{"deadline": 3}"#, 400, Some("deadline")),
        ("POST", "/api/v1/hosts/context-0/drain", None, r#"{"deadline_s": 3}"#, 415, None),
        ("POST", "/api/v1/sessions/moby/extend", Some(JSON), "", 400, Some("ttl_s")),
    ];
    for (method, path, kind, body, expected, param) in cases {
        let (status, _, answer) = reported(send(&cluster, method, path, kind.as_slice(), body));
        let error = &answer["error"];
        assert_eq!((status, error["param"].as_str()), (expected, param), "{method} {path} {body}: {answer}");
        assert!(status != 415 || error["message"].as_str().is_some_and(|m| m.contains("application/json")), "{answer}");
    }
}

#[test]
fn another_sites_page_reaches_nothing_in_a_browser() {
    let cluster = cluster();
    let pages: [&[(&str, &str)]; 4] = [
        &[("origin", "https://evil.example")],
        &[("origin", "null")],
        &[("sec-fetch-site", "cross-site")],
        // A name of the site's own that means this machine.
        &[("host", "evil.example"), ("origin", "http://evil.example"), ("sec-fetch-site", "same-origin")],
    ];
    for page in pages {
        for (method, path) in
            [("POST", "/api/v1/shutdown"), ("GET", "/api/v1/jobs"), ("POST", "/api/v1/hosts/context-0/cordon")]
        {
            let (status, _, answer) = reported(send(&cluster, method, path, page, ""));
            assert_eq!(
                (status, answer["error"]["code"].as_str()),
                (403, Some("cross_origin")),
                "{method} {path} {page:?}"
            );
        }
    }
    let own = cluster.server();
    let page = [("origin", own.as_str()), ("sec-fetch-site", "same-origin")];
    let (status, _, hosts) = reported(send(&cluster, "GET", "/api/v1/hosts", &page, ""));
    assert_eq!((status, hosts[0]["scheduling"].as_str()), (200, Some("open")), "{hosts}");
    for path in ["/", "/console.css", "/console.js"] {
        let answer = send(&cluster, "GET", path, &[], "");
        let policy =
            answer.headers().get("content-security-policy").expect("a policy").to_str().expect("plain").to_owned();
        assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{path}: {policy}");
    }
    for path in ["/console.html", "/console/../cluster.toml", "/..%2f..%2fetc/passwd", "/console.js/"] {
        assert_eq!(reported(send(&cluster, "GET", path, &[], "")).0, 404, "{path}");
    }
}

#[test]
fn a_remedy_is_told_once() {
    let cluster = cluster();
    for (command, list) in [("job", "job list"), ("session", "session list"), ("host", "host list")] {
        let printed = cluster.run(&[command, if command == "job" { "status" } else { "show" }, "nobody"]);
        assert_eq!(printed.status.code(), Some(5));
        let printed = String::from_utf8_lossy(&printed.stderr).into_owned();
        assert_eq!(printed.matches(list).count(), 1, "{printed}");
    }
}

#[test]
fn lists_are_cut_and_filtered_newest_first() {
    let cluster = cluster();
    let context = "The whale is white. ".repeat(30);
    for at in 0..3 {
        let request = json!({"id": format!("n-{at}"), "context": context, "query": "?", "max_tokens": 1}).to_string();
        assert_eq!(reported(send(&cluster, "POST", "/api/v1/jobs", &[JSON], &request)).0, 202);
        let session = json!({"name": format!("s-{at}"), "context": context}).to_string();
        assert_eq!(reported(send(&cluster, "POST", "/api/v1/sessions", &[JSON], &session)).0, 202);
    }
    let names = |path: &str, key: &str| -> Vec<String> {
        let (_, _, list) = reported(send(&cluster, "GET", path, &[], ""));
        list.as_array().expect("a list").iter().map(|entry| entry[key].as_str().expect("a name").to_owned()).collect()
    };
    assert_eq!(names("/api/v1/jobs?limit=2", "id"), ["n-2", "n-1"]);
    assert_eq!(names("/api/v1/jobs?after=n-1", "id"), ["n-0"]);
    assert_eq!(names("/api/v1/jobs?order=asc&limit=1", "id"), ["n-0"]);
    assert_eq!(names("/api/v1/sessions?after=s-0&limit=1", "name"), ["s-1"]);
    assert_eq!(names("/api/v1/sessions?state=failed", "name"), [""; 0]);
    assert_eq!(names("/api/v1/hosts?role=query&state=ready", "name"), ["query-0"]);
    assert_eq!(names("/api/v1/hosts?limit=1", "name"), ["context-0"]);
    let listed = cluster.run(&["job", "list", "-o", "json"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).expect("JSON");
    assert_eq!(listed[0]["id"], "n-2");
    assert!(listed[0]["created_at"].as_u64().expect("a time") > 1_700_000_000);
}

#[test]
fn a_command_for_another_cluster_is_not_carried_out() {
    let cluster = cluster();
    let folder = tempfile::tempdir().expect("a folder");
    let text = fs::read_to_string(cluster.file()).expect("a file");
    let data = cluster.folder().join("data").display().to_string();
    let admin = format!("admin_listen = \"{}\"", cluster.server().trim_start_matches("http://"));
    let other = text.replace("name = \"scenario\"", "name = \"other\"").replace(&data, "data");
    let file = folder.path().join("cluster.toml");
    fs::write(&file, other.replace("admin_listen = \"127.0.0.1:0\"", &admin)).expect("a file");
    for arguments in [&["status"][..], &["job", "list"], &["session", "drop", "s"]] {
        let mut command = std::process::Command::new(BINARY);
        let printed =
            command.args(arguments).arg("-f").arg(&file).env_remove("ASTERISM_SERVER").output().expect("it runs");
        let words = String::from_utf8_lossy(&printed.stderr).into_owned();
        assert_eq!(printed.status.code(), Some(3), "{arguments:?}: {words}");
        assert!(words.contains("this is cluster 'scenario', and the request is for cluster 'other'"), "{words}");
    }
    assert!(cluster.run(&["status"]).status.success());
}

#[test]
fn a_folder_whose_cluster_is_down_drives_no_other_of_its_name() {
    let cluster = cluster();
    let folder = tempfile::tempdir().expect("a folder");
    let text = fs::read_to_string(cluster.file()).expect("a file");
    let data = cluster.folder().join("data").display().to_string();
    let admin = format!("admin_listen = \"{}\"", cluster.server().trim_start_matches("http://"));
    let file = folder.path().join("cluster.toml");
    let other = text.replace(&data, "data").replace("admin_listen = \"127.0.0.1:0\"", &admin);
    fs::write(&file, other).expect("a file");
    let text_of = ["job", "submit", "--context", "cluster.toml", "--query", "why"];
    for arguments in
        [&["status"][..], &["session", "drop", "s"], &["host", "restart", "context-0"], &text_of, &["down"]]
    {
        let mut command = std::process::Command::new(BINARY);
        command.args(arguments).arg("-f").arg(&file).env_remove("ASTERISM_SERVER").current_dir(folder.path());
        let began = Instant::now();
        let printed = command.output().expect("it runs");
        let words = String::from_utf8_lossy(&printed.stderr).into_owned();
        assert_eq!(printed.status.code(), Some(3), "{arguments:?}: {words}");
        assert!(began.elapsed() < Duration::from_secs(30), "nobody waits for it to become another: {words}");
        assert!(words.contains("runs from another data_dir than the one that the request is for"), "{words}");
        // Who names it means it.
        if arguments == ["status"] {
            assert!(command.args(["--server", &cluster.server()]).status().expect("it runs").success());
        }
    }
    assert!(cluster.run(&["status"]).status.success());
}

#[test]
fn what_was_told_to_end_was_not_lost() {
    let cluster = cluster();
    let restarts = || -> Vec<u64> {
        let status = cluster.status();
        status["hosts"]
            .as_array()
            .expect("hosts")
            .iter()
            .map(|host| host["restarts"].as_u64().expect("a number"))
            .collect()
    };
    assert!(cluster.run(&["down"]).status.success());
    assert!(cluster.run(&["up", "--detach"]).status.success());
    assert_eq!(restarts(), [0, 0], "a planned end");
    let before = cluster.pid("context-0");
    cluster.kill("context-0");
    cluster.wait_for("its next process", |status| {
        status["ready"] == true && status["hosts"][0]["pid"].as_u64().is_some_and(|pid| pid != before)
    });
    assert_eq!(restarts(), [1, 0]);
    let valid = cluster.run(&["validate", "-o", "json"]);
    let valid: Value = serde_json::from_slice(&valid.stdout).expect("JSON");
    assert_eq!(
        (&valid["model"], &valid["method"]["star"]["block_tokens"]),
        (&json!("embedded"), &json!(64)),
        "{valid}"
    );
}
