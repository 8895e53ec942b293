//! What clients hear of a job on which nobody works yet.

use std::{
    fs,
    io::{BufRead, BufReader},
    process::Stdio,
};

use serde_json::Value;
use tests::{Cluster, ClusterSpec};

const BINARY: &str = env!("CARGO_BIN_EXE_asterism-under-test");

#[test]
fn a_job_before_its_hosts_says_whom_it_waits_for() {
    let method = "[attention.star]\nblock_tokens = 64";
    let spec = ClusterSpec { contexts: 1, model: None, method, listen: "127.0.0.1:0".into() };
    let cluster = Cluster::written(BINARY, &spec, |text| text);
    fs::write(cluster.folder().join("book.txt"), "The whale is white. ".repeat(60)).expect("a file");
    let log = fs::File::create(cluster.folder().join("supervisor.log")).expect("a file");
    let mut supervisor = cluster.command(&["supervisor"]).stderr(log).spawn().expect("it runs");
    cluster.wait_for("the supervisor", |_| true);

    let submit =
        ["job", "submit", "--context", "book.txt", "--query", "Which colour?", "--max-tokens", "2", "--id", "w"];
    let mut job = cluster.command(&submit).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it runs");
    let mut lines = BufReader::new(job.stderr.take().expect("piped")).lines();
    let first = lines.next().expect("a line").expect("UTF-8");
    assert_eq!(first, "waiting for context-0: starting, query-0: starting");
    let status = cluster.run(&["job", "status", "w", "-o", "json"]);
    let status: Value = serde_json::from_slice(&status.stdout).expect("JSON");
    assert_eq!(
        (&status["waiting"]["reason"], &status["waiting"]["hosts"][0]["host"]),
        (&"hosts".into(), &"context-0".into())
    );

    let join = cluster.record()["listen"].as_str().expect("an address").to_owned();
    let log = fs::File::create(cluster.folder().join("node.log")).expect("a file");
    let node = cluster.command(&["node", "--join", &join, "--name", "local"]).stderr(log).spawn();
    let mut node = node.expect("it runs");
    let rest: Vec<String> = lines.map(|line| line.expect("UTF-8")).collect();
    assert!(job.wait().expect("it ends").success(), "{rest:?}");
    let reported = rest.iter().any(|line| line.starts_with("job w: star") && line.contains("queued"));
    assert!(reported, "{rest:?}");
    cluster.run(&["down"]);
    let _ = (supervisor.wait(), node.wait());
}
