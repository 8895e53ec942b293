//! Scenarios with real processes over QUIC: the same tokens as the reference, and clean failures.

use std::{fs, net::UdpSocket};

use serde_json::{Value, json};
use tests::{Cluster, ClusterSpec, golden, golden_cases};

const BINARY: &str = env!("CARGO_BIN_EXE_asterism-under-test");

fn embedded(contexts: usize) -> ClusterSpec {
    ClusterSpec { contexts, model: None, method: "[attention.star]", listen: "127.0.0.1:0".to_string() }
}

fn tiny(contexts: usize) -> ClusterSpec {
    ClusterSpec { model: Some(golden().join("models/tiny-llama")), ..embedded(contexts) }
}

/// The method table of a golden star case.
fn star(case: &Value) -> Value {
    let params = &case["params"];
    json!({"star": {"block_tokens": params["block_size"], "anchor_tokens": params["anchor_size"]}})
}

fn plain(case: &Value) -> bool {
    case["params"]["anchor_position"] == "first" && case["params"]["anchor_content"] == "first"
}

#[test]
fn star_over_quic_gives_the_golden_tokens() {
    for (model, contexts) in
        [("tiny-llama", 1), ("tiny-llama", 2), ("tiny-llama", 3), ("tiny-llama", 5), ("tiny-qwen2", 3)]
    {
        let model_folder = golden().join("models").join(model);
        let cluster = Cluster::start(BINARY, &ClusterSpec { model: Some(model_folder), ..embedded(contexts) });
        for case in golden_cases(model, "star").iter().filter(|case| plain(case)) {
            let status = cluster.answer_tokens(case, star(case));
            assert_eq!(status["tokens"], case["expected"]["greedy_tokens"], "{}: {status:#}", case["id"]);
        }
    }
}

#[test]
fn a_killed_context_host_fails_the_job_and_nothing_else() {
    let cluster = Cluster::start(BINARY, &embedded(2));
    let document = cluster.folder().join("document.txt");
    fs::write(&document, "The grass is green. The sky is blue. The sun is yellow.\n".repeat(700)).expect("a document");
    let path = document.to_str().expect("UTF-8");
    let question = "What is the special magic number for sky-blue?";
    let ask = ["job", "submit", "--context", path, "--query", question, "--max-tokens", "2"];
    let mut no_wait = ask.to_vec();
    no_wait.extend(["--no-wait", "--id", "hit"]);
    assert_eq!(cluster.run(&no_wait).status.code(), Some(0));
    cluster.wait_for("the job to run", |status| status["jobs_running"] == 1);
    cluster.kill("context-1");
    let result = cluster.run(&["job", "result", "hit"]);
    let said = String::from_utf8_lossy(&result.stderr);
    assert_eq!(result.status.code(), Some(1), "{said}");
    assert!(said.contains("host_lost") && said.contains("context-1"), "{said}");
    let status = cluster.status();
    let health: Vec<_> = status["hosts"].as_array().expect("hosts").iter().map(|host| &host["health"]).collect();
    assert_eq!(health, ["ready", "dead", "ready"]);
    let next = cluster.run(&ask);
    assert_eq!(next.status.code(), Some(0), "{}", String::from_utf8_lossy(&next.stderr));
    assert!(cluster.metrics().contains("asterism_host_failures_total"));
}

#[test]
fn down_leaves_no_process() {
    let cluster = Cluster::start(BINARY, &tiny(2));
    let hosts = ["context-0", "context-1", "query-0"].map(|host| cluster.pid(host));
    let down = cluster.run(&["down"]);
    assert_eq!(down.status.code(), Some(0), "{}", String::from_utf8_lossy(&down.stderr));
    for pid in hosts {
        assert!(!fs::exists(format!("/proc/{pid}")).expect("a process table"), "process {pid} is left");
    }
}

#[test]
fn a_host_of_another_certificate_authority_is_refused_and_counted() {
    let free = UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port");
    let theirs = Cluster::start(BINARY, &ClusterSpec { listen: free.to_string(), ..tiny(1) });
    let ours = Cluster::start(BINARY, &tiny(1));
    let stray = ours.run(&["host", "--name", "context-0", "--supervisor", &free.to_string()]);
    assert_eq!(stray.status.code(), Some(6), "{}", String::from_utf8_lossy(&stray.stderr));
    let metrics = theirs.metrics();
    assert!(metrics.contains("asterism_transport_rejects_total{reason=\"certificate\"}"), "{metrics}");
}
