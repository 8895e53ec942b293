//! More work than the cluster can do at once.

use std::{
    collections::BTreeSet,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use tests::{Cluster, ClusterSpec};

const BINARY: &str = env!("CARGO_BIN_EXE_asterism-under-test");

const CLIENTS: usize = 3;
const EACH: usize = 500;
/// Bounds of a debug build on a machine that does other things as well.
const LIVEZ: Duration = Duration::from_millis(500);
const SUBMIT: Duration = Duration::from_secs(2);

/// A cluster of one context host that queues 3,000 jobs, of which it answers one at a time.
fn cluster() -> Cluster {
    let method = "[attention.star]\nblock_tokens = 64";
    let spec = ClusterSpec { contexts: 1, model: None, method, listen: "127.0.0.1:0".into() };
    let cluster = Cluster::written(BINARY, &spec, |text| {
        text.replace("[api]", "[serving]\nmax_generating = 1\n\n[api]\nmax_queue = 3000")
    });
    let up = cluster.run(&["up", "--detach"]);
    assert!(up.status.success(), "up failed:\n{}", String::from_utf8_lossy(&up.stderr));
    cluster
}

fn submit(server: &str, id: &str) {
    let context: Vec<u32> = (0..200).map(|at| 10 + at % 150).collect();
    let request = json!({
        "id": id, "context": context, "query": [11, 12], "max_tokens": 16, "ignore_eos": true, "chat_template": false,
        "allow_idle_hosts": true,
    });
    ureq::post(format!("{server}/api/v1/jobs")).send_json(&request).expect("the job is taken");
}

fn list(server: &str, query: &str) -> Vec<Value> {
    let page = ureq::get(format!("{server}/api/v1/jobs?{query}")).call().expect("a list");
    page.into_body().read_json().expect("JSON")
}

/// The time below which 99 of 100 are.
fn p99(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() * 99 / 100]
}

#[test]
fn a_full_queue_answers_and_loses_nothing() {
    let cluster = cluster();
    let (server, supervisor) = (cluster.server(), cluster.supervisor());
    let (submits, done) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    let alive = thread::scope(|scope| {
        let asked = scope.spawn(|| {
            let mut alive = Vec::new();
            while !done.load(Ordering::SeqCst) {
                let began = Instant::now();
                ureq::get(format!("{server}/livez")).call().expect("it is alive");
                alive.push(began.elapsed());
            }
            alive
        });
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (server, submits) = (&server, &submits);
                scope.spawn(move || {
                    for number in 0..EACH {
                        let began = Instant::now();
                        submit(server, &format!("mine-{client}-{number}"));
                        submits.lock().expect("no holder panics").push(began.elapsed());
                    }
                })
            })
            .collect();
        clients.into_iter().for_each(|client| client.join().expect("every submit is taken"));
        done.store(true, Ordering::SeqCst);
        asked.join().expect("every answer is good")
    });
    let (alive, submits) = (p99(alive), p99(submits.into_inner().expect("no holder panicked")));
    eprintln!("/livez p99 {alive:?}, submit p99 {submits:?}");
    assert!(alive < LIVEZ && submits < SUBMIT, "/livez p99 {alive:?}, submit p99 {submits:?}");

    let mut known = BTreeSet::new();
    let mut after = String::new();
    loop {
        let part = list(&server, &format!("limit=400{after}"));
        let ids = part.iter().map(|job| job["id"].as_str().expect("an id").to_owned());
        after = ids.clone().next_back().map_or(after, |last| format!("&after={last}"));
        known.extend(ids);
        if part.len() < 400 {
            break;
        }
    }
    assert_eq!(known.len(), CLIENTS * EACH, "every acknowledged job is known");

    let waiting = list(&server, "state=pending&limit=500");
    let last = waiting.first().expect("a queue")["id"].as_str().expect("an id");
    let began = Instant::now();
    let cancelled =
        ureq::post(format!("{server}/api/v1/jobs/{last}/cancel")).send_json(json!(null)).expect("cancelled");
    let status: Value = cancelled.into_body().read_json().expect("JSON");
    assert_eq!((status["state"].as_str(), began.elapsed() < SUBMIT), (Some("CANCELLED"), true));
    assert!(list(&server, "state=cancelled").iter().any(|job| job["id"].as_str() == Some(last)));
    let wrong = ureq::get(format!("{server}/api/v1/jobs?limit=501")).call();
    assert!(matches!(wrong, Err(ureq::Error::StatusCode(400))), "{wrong:?}");
    assert_eq!(cluster.supervisor(), supervisor, "the same process all the time");
}

#[test]
fn what_is_too_much_is_told_to_come_later() {
    let method = "[attention.star]\nblock_tokens = 64";
    let spec = ClusterSpec { contexts: 1, model: None, method, listen: "127.0.0.1:0".into() };
    let limits = "[api]\nmax_queue = 5000\nmax_queue_bytes = \"1MiB\"";
    let cluster = Cluster::written(BINARY, &spec, |text| text.replace("[api]", limits));
    assert!(cluster.run(&["up", "--detach"]).status.success());
    let server = cluster.server();
    let context: Vec<u32> = (0..8000).map(|at| 10 + at % 150).collect();
    let request = json!({
        "context": context, "query": [11], "max_tokens": 1, "ignore_eos": true, "chat_template": false,
        "allow_idle_hosts": true,
    });
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let refused = (0..200).find_map(|_| {
        let answer = agent.post(format!("{server}/api/v1/jobs")).send_json(&request).expect("an answer");
        (answer.status() != 202).then_some(answer)
    });
    let refused = refused.expect("a mebibyte is full of some ten contexts of 8,000 tokens");
    assert_eq!((refused.status().as_u16(), refused.headers()["retry-after"].to_str().ok()), (503, Some("1")));
    let error: Value = refused.into_body().read_json().expect("JSON");
    assert_eq!(error["error"]["code"], "overloaded", "{error}");
}
