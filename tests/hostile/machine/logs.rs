//! What a cluster says in its logs: one line for each thing that happened, and none for each token.

use std::fs;

use serde_json::{Value, json};
use tests::{Cluster, ClusterSpec};

const BINARY: &str = env!("CARGO_BIN_EXE_asterism-under-test");
/// Words that no line may repeat.
const SECRET: &str = "zanzibar";

fn cluster() -> Cluster {
    let method = "[attention.star]\nblock_tokens = 64";
    let spec = ClusterSpec { contexts: 2, model: None, method, listen: "127.0.0.1:0".into() };
    let cluster = Cluster::written(BINARY, &spec, |text| text + "\n[observability]\nlog_format = \"json\"\n");
    let up = cluster.run(&["up", "--detach"]);
    assert!(up.status.success(), "up failed:\n{}", String::from_utf8_lossy(&up.stderr));
    cluster
}

/// The lines of a process so far.
fn log(cluster: &Cluster, process: &str) -> Vec<Value> {
    let text = fs::read_to_string(cluster.folder().join(format!("data/logs/{process}.log"))).expect("a log");
    assert!(!text.contains(SECRET), "a user's words:\n{text}");
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

fn message(line: &Value) -> &str {
    line["fields"]["message"].as_str().expect("a message")
}

/// The fields of the lines with which `key` is `value`, each behind its message.
fn about(lines: &[Value], key: &str, value: &Value) -> Vec<(String, Value)> {
    let of = lines.iter().filter(|line| line["fields"][key] == *value);
    of.map(|line| (message(line).to_owned(), line["fields"].clone())).collect()
}

fn messages(reported: &[(String, Value)]) -> Vec<&str> {
    reported.iter().map(|(message, _)| message.as_str()).collect()
}

/// Asks and waits for the answer; returns the job's id.
fn answered(cluster: &Cluster, source: (&str, Value), max_tokens: usize) -> String {
    let mut request = json!({"query": format!("{SECRET}?"), "max_tokens": max_tokens, "ignore_eos": true});
    request[source.0] = source.1;
    let server = cluster.server();
    let sent = ureq::post(format!("{server}/api/v1/jobs")).send_json(&request).expect("the job is taken");
    let id = sent.into_body().read_json::<Value>().expect("JSON")["id"].as_str().expect("an id").to_owned();
    let events = ureq::get(format!("{server}/api/v1/jobs/{id}/events")).call().expect("events");
    let text = events.into_body().read_to_string().expect("UTF-8");
    assert!(text.contains("SUCCEEDED"), "{text}");
    id
}

fn lines(cluster: &Cluster) -> usize {
    ["supervisor", "context-0", "context-1", "query-0"].iter().map(|name| log(cluster, name).len()).sum()
}

#[test]
fn every_step_has_one_line_and_a_hundred_tokens_have_none() {
    let cluster = cluster();
    let supervisor = || log(&cluster, "supervisor");
    let context = json!(format!("The {SECRET} is white. ").repeat(40));

    // A session, asked and dropped.
    let session = json!({"name": "moby", "context": context, "ttl_s": 600});
    ureq::post(format!("{}/api/v1/sessions", cluster.server())).send_json(&session).expect("taken");
    let asked = answered(&cluster, ("session", json!("moby")), 1);
    let reported = supervisor();
    let of_session: Vec<_> = about(&reported, "session", &json!("moby"));
    assert_eq!(messages(&of_session), ["session created", "job submitted", "session ready"]);
    assert!(of_session[2].1["encode_s"].as_f64().expect("seconds") > 0.0, "{of_session:?}");
    assert_eq!(of_session[1].1["job"], json!(asked));

    // Jobs: the same number of lines, however long the answer is.
    let before = lines(&cluster);
    let short = answered(&cluster, ("context", context.clone()), 1);
    let one = lines(&cluster);
    let long = answered(&cluster, ("context", context), 100);
    assert_eq!(one - before, lines(&cluster) - one, "lines of an answer of one token, and of a hundred");
    let reported = supervisor();
    for (id, tokens) in [(&short, 1), (&long, 100)] {
        let of_job = about(&reported, "job", &json!(id));
        assert_eq!(messages(&of_job), ["job submitted", "job started", "job answered"]);
        let (submitted, end) = (&of_job[0].1, &of_job[2].1);
        assert_eq!(end["generated_tokens"], json!(tokens));
        let seconds = ["queue_s", "encode_s", "query_s", "decode_s", "total_s"].map(|key| end[key].as_f64());
        assert!(seconds.iter().all(Option::is_some), "{end}");
        let generation = about(&log(&cluster, "query-0"), "number", &submitted["number"]);
        assert_eq!(messages(&generation), ["generation started", "generation ended"]);
        assert_eq!(
            (&generation[1].1["how"], &generation[1].1["generated_tokens"]),
            (&json!("answered"), &json!(tokens))
        );
        let hosts =
            ["context-0", "context-1"].map(|host| about(&log(&cluster, host), "context", &submitted["context"]));
        let encoded: Vec<_> = hosts.iter().flatten().collect();
        assert!(encoded.iter().all(|(message, _)| message == "shards encoded"), "{encoded:?}");
        assert!(encoded.iter().all(|(_, fields)| fields["encode_s"].as_f64().expect("seconds") > 0.0), "{encoded:?}");
    }

    // A host dies: the session's shards are encoded again.
    cluster.kill("context-1");
    cluster.wait_for("its next process", |status| status["ready"] == true && status["hosts"][1]["restarts"] == 1);
    answered(&cluster, ("session", json!("moby")), 1);
    let reported = supervisor();
    let of_host = about(&reported, "host", &json!("context-1"));
    let sequence: Vec<_> = messages(&of_host).into_iter().filter(|message| *message != "host suspect").collect();
    assert_eq!(sequence, ["host joined", "host ready", "host lost", "host joined", "host ready"]);
    let again = reported.iter().find(|line| message(line) == "shards encoded again").expect("what it cost");
    assert_eq!(again["fields"]["context"], of_session[0].1["context"]);
    assert!(again["fields"]["seconds"].as_f64().expect("seconds") > 0.0, "{again}");

    // What is cancelled, and what ends.
    ureq::delete(format!("{}/api/v1/sessions/moby", cluster.server())).call().expect("dropped");
    let reported = supervisor();
    assert_eq!(messages(&about(&reported, "session", &json!("moby"))).last(), Some(&"session dropped"));
    assert!(reported.iter().all(|line| line["level"] != "ERROR"), "{reported:#?}");
}
