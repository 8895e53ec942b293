//! What a cluster tells of itself as it happens: who was cut off misses nothing, or hears that it did.

use std::io::{BufRead, BufReader, Read};

use serde_json::{Value, json};
use tests::{Cluster, DEADLINE, kill};

use super::edges::{ask, is_alive};
use crate::api::openai;

/// Status and body of the stream behind `query`, for a client that heard `last`.
fn listen(cluster: &Cluster, query: &str, last: &str) -> (u16, BufReader<impl Read + use<>>) {
    let config = ureq::Agent::config_builder().http_status_as_error(false).timeout_recv_body(Some(DEADLINE));
    let agent: ureq::Agent = config.build().into();
    let request = agent.get(format!("{}/api/v1/events{query}", cluster.server())).header("last-event-id", last);
    let answer = request.call().expect("an answer");
    (answer.status().as_u16(), BufReader::new(answer.into_body().into_reader()))
}

/// The next event: its id, and what its data say.
fn next(stream: &mut impl BufRead) -> Option<(String, Value)> {
    let (mut id, mut named) = (String::new(), String::new());
    for line in stream.lines().map(|line| line.expect("a line")) {
        if let Some(text) = line.strip_prefix("id: ") {
            id = text.to_owned();
        } else if let Some(text) = line.strip_prefix("event: ") {
            named = text.to_owned();
        } else if let Some(text) = line.strip_prefix("data: ") {
            let event: Value = serde_json::from_str(text).expect("JSON");
            assert_eq!((&event["event"], &event["id"]), (&json!(named), &json!(id)), "{event}");
            return Some((id, event));
        }
    }
    None
}

/// The first event with this name, and its id.
fn heard(stream: &mut impl BufRead, name: &str) -> (String, Value) {
    std::iter::from_fn(|| next(stream)).find(|(_, event)| event["event"] == name).expect("it is told")
}

fn job(cluster: &Cluster, id: &str) {
    let (status, answer) = ask(cluster, &json!({"id": id, "context": "a b c", "query": "d", "max_tokens": 1}));
    assert_eq!(status, 202, "{answer}");
}

#[test]
fn who_was_cut_off_goes_on_behind_what_it_heard() {
    let cluster = openai::cluster(None);
    let (status, mut stream) = listen(&cluster, "", "");
    assert_eq!(status, 200);
    // What happened before it listened comes first.
    let host = heard(&mut stream, "host_ready").1;
    assert!(host["host"].is_string() && host["time"].as_f64() > Some(1e9), "{host}");
    job(&cluster, "first");
    let (_, submitted) = heard(&mut stream, "job_submitted");
    assert_eq!((&submitted["job"], submitted["query_tokens"].is_u64()), (&json!("first"), true), "{submitted}");
    let (last, ended) = heard(&mut stream, "job_ended");
    assert_eq!((&ended["job"], &ended["state"]), (&json!("first"), &json!("SUCCEEDED")), "{ended}");
    drop(stream);
    job(&cluster, "second");
    for (query, header) in [("", last.as_str()), (&*format!("?after={last}"), ""), ("?after=0-1", last.as_str())] {
        let (_, mut stream) = listen(&cluster, query, header);
        let (_, event) = next(&mut stream).expect("an event");
        assert_eq!((&event["event"], &event["job"]), (&json!("job_submitted"), &json!("second")), "{query}: {event}");
        heard(&mut stream, "job_ended");
    }
    let printed = cluster.run(&["events", "--after", &last]);
    let printed = String::from_utf8_lossy(&printed.stdout).into_owned();
    assert!(
        printed.lines().next().is_some_and(|line| line.contains(" job_submitted ") && line.contains("job=second")),
        "{printed}"
    );
    let listed = cluster.run(&["events", "-o", "json"]);
    let listed: Vec<Value> = serde_json::from_slice(&listed.stdout).expect("a list");
    assert!(listed.iter().any(|event| event["event"] == "job_ended" && event["job"] == "second"), "{listed:?}");
    // Behind the latest of all comes nothing, and who does not follow hears the end.
    let (_, mut stream) = listen(&cluster, "?follow=false", &last);
    let latest = std::iter::from_fn(|| next(&mut stream)).last().expect("the second job").0;
    let (_, mut stream) = listen(&cluster, "?follow=false", &latest);
    assert_eq!(next(&mut stream), None);

    let lost = cluster.supervisor();
    kill(lost);
    cluster.wait_for("another supervisor", |status| status["ready"] == true && cluster.supervisor() != lost);
    let (_, mut stream) = listen(&cluster, "", &latest);
    assert_eq!(next(&mut stream).expect("an event").1["event"], "events_missed");
    heard(&mut stream, "host_ready");
}

#[test]
fn what_is_no_event_is_refused_by_name() {
    let cluster = super::edges::started();
    let long = "f".repeat(4000);
    let wrong = [
        ("?after=x", "", "after"),
        ("", "x", "Last-Event-ID"),
        ("?follow=maybe", "", "follow"),
        ("?limit=3", "", "limit"),
        ("", &long, "Last-Event-ID"),
    ];
    for (query, header, param) in wrong {
        let (status, answer) = listen(&cluster, query, header);
        let answer: Value = serde_json::from_reader(answer).expect("JSON");
        assert_eq!((status, answer["error"]["param"].as_str()), (400, Some(param)), "{query} {answer}");
    }
    is_alive(&cluster);
}
