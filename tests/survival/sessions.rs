//! Questions to sessions while hosts die: to exact ones, as the default method makes them, and to blocks, of which each question
//! gets some tokens anew.

use std::{fs, process::Stdio};

use serde_json::{Value, json};
use tests::{Cluster, ClusterSpec};

use super::{BINARY, embedded, signal};

const EXACT: &str = "[supervisor]\nrecovery = \"redistribute\"\nmax_restarts = 1000\n\n[attention.auto]";
const BLOCKS: &str = "[supervisor]\nrecovery = \"redistribute\"\nmax_restarts = 1000\n\n[attention.pulsar]";

/// Killed at once, the query host has not encoded what the question gets anew; a moment later it generates.
#[test]
fn a_session_of_blocks_answers_the_same_whoever_dies() {
    answers_the_same_whoever_dies(BLOCKS, "pulsar");
}

#[test]
fn an_exact_session_answers_the_same_whoever_dies() {
    answers_the_same_whoever_dies(EXACT, "chain");
}

fn answers_the_same_whoever_dies(settings: &'static str, method: &str) {
    let cluster = Cluster::start(BINARY, &ClusterSpec { method: settings, ..embedded(3) });
    let filler = |town: usize| format!("The road to town {town} is long and the river beside it is slow. ");
    fs::write(cluster.folder().join("document.txt"), (0..300).map(filler).collect::<String>()).expect("written");
    let made = cluster.run(&["session", "create", "--context", "document.txt", "--name", "book", "-o", "json"]);
    let printed = String::from_utf8_lossy(&made.stderr);
    assert_eq!(made.status.code(), Some(0), "{printed}");
    let session: Value = serde_json::from_slice(&made.stdout).expect("JSON");
    assert_eq!(session["method"], method, "{session:#}");
    let question = "Tell what is said about the road and the river, and about all that is slow.";
    let ask = ["session", "ask", "book", question, "--max-tokens", "120", "-o", "json"];
    let answer = |stdout: &[u8]| serde_json::from_slice::<Value>(stdout).expect("JSON")["tokens"].clone();
    let undisturbed = cluster.run(&ask);
    assert_eq!(undisturbed.status.code(), Some(0), "{}", String::from_utf8_lossy(&undisturbed.stderr));
    let tokens = answer(&undisturbed.stdout);
    assert_eq!(tokens.as_array().map(Vec::len), Some(120), "a long answer, so that there is time to kill somebody");
    for (host, generating) in [("query-0", false), ("query-0", true), ("context-1", true), ("supervisor", true)] {
        let mut command = cluster.command(&ask);
        let client = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary under test");
        cluster.wait_for("the question to be worked on", |status| status["jobs_running"] == 1);
        if generating {
            let asked = |jobs: &Value| jobs[0]["generated_tokens"].as_u64().is_some_and(|tokens| tokens > 2);
            let jobs = || serde_json::from_slice(&cluster.run(&["job", "list", "--limit", "1", "-o", "json"]).stdout);
            super::eventually("some tokens", || jobs().is_ok_and(|jobs| asked(&jobs)));
        }
        let pid = if host == "supervisor" { cluster.supervisor() } else { cluster.pid(host) };
        signal("-KILL", pid);
        let output = client.wait_with_output().expect("its end");
        let printed = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{host} {generating}: {printed}");
        assert_eq!(answer(&output.stdout), tokens, "{host} {generating}: {printed}");
    }
}

/// Ids that no text has, so that no tokenizer decides where one part ends.
fn ids(tokens: usize) -> Vec<u32> {
    (0..tokens as u32).map(|at| 300 + at.wrapping_mul(2_654_435_761).wrapping_add(at / 7) % 1000).collect()
}

/// The answer to what is sent, asked again while the supervisor is away.
fn posted(cluster: &Cluster, path: &str, body: &Value) -> Value {
    let mut printed = None;
    super::eventually("an answer", || {
        let sent = ureq::post(format!("{}{path}", cluster.server())).send_json(body);
        printed = sent.ok().and_then(|answer| answer.into_body().read_json().ok());
        printed.is_some()
    });
    printed.expect("it was heard")
}

fn shown(cluster: &Cluster, name: &str) -> Option<Value> {
    let answer = ureq::get(format!("{}/api/v1/sessions/{name}", cluster.server())).call().ok()?;
    answer.into_body().read_json().ok()
}

/// A session of these tokens, once it is ready.
fn created(cluster: &Cluster, name: &str, ids: &[u32]) -> Value {
    posted(cluster, "/api/v1/sessions", &json!({"name": name, "context": ids}));
    let mut session = Value::Null;
    super::eventually("a session that is ready", || {
        session = shown(cluster, name).unwrap_or_default();
        session["state"] == "ready"
    });
    session
}

/// The tokens of an answer, and of the context that it was answered from.
fn asked(cluster: &Cluster, name: &str) -> (Value, Value) {
    let question = json!({"session": name, "query": [400, 401, 707, 500], "max_tokens": 24, "ignore_eos": true});
    let id = posted(cluster, "/api/v1/jobs", &question)["id"].clone();
    let mut job = Value::Null;
    super::eventually("an answer to a question", || {
        let status = ureq::get(format!("{}/api/v1/jobs/{}", cluster.server(), id.as_str().expect("an id"))).call();
        job = status.ok().and_then(|answer| answer.into_body().read_json().ok()).unwrap_or_default();
        assert!(job["state"] != "FAILED", "{job:#}");
        job["state"] == "SUCCEEDED"
    });
    (job["tokens"].clone(), job["context_tokens"].clone())
}

#[test]
fn a_session_of_blocks_grows_to_what_it_would_have_been_created_as_whoever_dies() {
    grows_to_what_it_would_have_been_created_as_whoever_dies(BLOCKS);
}

#[test]
fn an_exact_session_grows_to_what_it_would_have_been_created_as_whoever_dies() {
    grows_to_what_it_would_have_been_created_as_whoever_dies(EXACT);
}

fn grows_to_what_it_would_have_been_created_as_whoever_dies(settings: &'static str) {
    let start = || Cluster::start(BINARY, &ClusterSpec { method: settings, ..embedded(3) });
    let (cluster, undisturbed, all) = (start(), start(), ids(12_000));
    created(&cluster, "book", &all[..2500]);
    let mut tokens = 2500;
    for (at, victim) in ["context-1", "query-0", "supervisor", "context-0"].into_iter().enumerate() {
        let more = &all[tokens..tokens + 2300];
        posted(&cluster, "/api/v1/sessions/book/append", &json!({"context": more}));
        signal("-KILL", if victim == "supervisor" { cluster.supervisor() } else { cluster.pid(victim) });
        tokens += more.len();
        super::eventually("all of it appended", || {
            let session = shown(&cluster, "book").unwrap_or_default();
            assert!(session["append_error"].is_null(), "{session:#}");
            session["context_tokens"] == tokens && session["state"] == "ready"
        });
        let name = format!("whole-{at}");
        created(&undisturbed, &name, &all[..tokens]);
        assert_eq!(asked(&cluster, "book"), asked(&undisturbed, &name), "{victim}");
    }
}

#[test]
fn the_same_blocks_again_are_not_encoded_and_answer_the_same() {
    the_same_context_again_is_not_encoded_and_answers_the_same(BLOCKS, 4096);
}

#[test]
fn the_same_chain_again_is_not_encoded_and_answers_the_same() {
    the_same_context_again_is_not_encoded_and_answers_the_same(EXACT, 4096);
}

fn the_same_context_again_is_not_encoded_and_answers_the_same(settings: &'static str, kept: u32) {
    let cluster = Cluster::start(BINARY, &ClusterSpec { method: settings, ..embedded(3) });
    let all = ids(5000);
    let first = created(&cluster, "first", &all);
    assert_eq!((&first["cached_tokens"], &first["context_tokens"]), (&json!(0), &json!(5000)));
    let expected = asked(&cluster, "first");
    let beside = created(&cluster, "beside", &all);
    assert_eq!(beside["cached_tokens"], 5000, "{beside:#}");
    assert_eq!(asked(&cluster, "beside"), expected);
    for name in ["first", "beside"] {
        assert!(cluster.run(&["session", "drop", name]).status.success());
    }
    let idle = |status: &Value| {
        let hosts = status["hosts"].as_array().expect("hosts");
        let of = |key: &str| hosts.iter().filter_map(|host| host[key].as_u64()).sum::<u64>();
        of("kv_bytes") == 0 && of("idle_kv_bytes") > 0
    };
    cluster.wait_for("nothing but idle shards", idle);
    let mut other = all.clone();
    other[4500] += 1;
    let again = created(&cluster, "again", &other);
    assert_eq!(again["cached_tokens"], kept, "all but the block that has another token: {again:#}");
    assert_ne!(asked(&cluster, "again").0, Value::Null);
    // Killed hosts hold nothing any more.
    (0..3).for_each(|host| cluster.kill(&format!("context-{host}")));
    let status = created(&cluster, "anew", &all);
    assert!(status["cached_tokens"].as_u64() < Some(5000), "{status:#}");
    assert_eq!(asked(&cluster, "anew"), expected);
    assert!(cluster.metrics().contains("asterism_phase1_cached_tokens_total"));
}
