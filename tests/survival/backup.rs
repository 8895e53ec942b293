//! A cluster that is backed up while it works, destroyed, and put back from the one file.

use std::fs;

use serde_json::{Value, json};
use tests::Cluster;

use super::{BINARY, embedded, eventually, ready};

fn get(cluster: &Cluster, path: &str) -> Option<Value> {
    ureq::get(format!("{}{path}", cluster.server())).call().ok()?.into_body().read_json().ok()
}

fn post(cluster: &Cluster, path: &str, body: &Value) {
    ureq::post(format!("{}{path}", cluster.server())).send_json(body).expect("taken");
}

fn ended(cluster: &Cluster, id: &str) -> Value {
    let mut status = Value::Null;
    eventually("the job to end", || {
        status = get(cluster, &format!("/api/v1/jobs/{id}")).unwrap_or_default();
        assert!(status["state"] != "FAILED", "{status:#}");
        status["state"] == "SUCCEEDED"
    });
    status["tokens"].clone()
}

#[test]
fn a_cluster_that_lost_its_disk_goes_on_from_a_backup_that_was_taken_while_it_ran() {
    let cluster = Cluster::start(BINARY, &embedded(2));
    let document = "The special magic number for oak is 4711. The sky is blue. ".repeat(60);
    post(&cluster, "/api/v1/sessions", &json!({"name": "book", "context": document, "ttl_s": 3600}));
    let question = |id: &str| json!({"id": id, "session": "book", "query": "What is the special magic number for oak?", "max_tokens": 16});
    post(&cluster, "/api/v1/jobs", &question("first"));
    let answer = ended(&cluster, "first");
    let long =
        json!({"id": "long", "context": document, "query": "What is the sky?", "max_tokens": 200, "ignore_eos": true});
    post(&cluster, "/api/v1/jobs", &long);
    let file = cluster.folder().join("backup.tar");
    let path = file.to_str().expect("UTF-8");
    let backed_up = cluster.run(&["backup", path, "-o", "json"]);
    assert_eq!(backed_up.status.code(), Some(0), "{}", String::from_utf8_lossy(&backed_up.stderr));
    let report: Value = serde_json::from_slice(&backed_up.stdout).expect("JSON");
    assert_eq!(report["running"], true, "{report:#}");
    let expected = ended(&cluster, "long");
    let refused = cluster.run(&["restore", path]);
    assert_eq!(refused.status.code(), Some(5), "{}", String::from_utf8_lossy(&refused.stderr));
    // Killed, so that nothing of its end is on the disk, and then the disk is gone.
    tests::kill(cluster.parent());
    eventually("the supervisor to end", || {
        fs::remove_dir_all(cluster.folder().join("data")).is_ok() && !cluster.folder().join("data").exists()
    });
    fs::remove_file(cluster.file()).expect("the cluster file");
    let restored = cluster.run(&["restore", path]);
    assert_eq!(restored.status.code(), Some(0), "{}", String::from_utf8_lossy(&restored.stderr));
    let up = cluster.run(&["up", "--detach"]);
    assert_eq!(up.status.code(), Some(0), "{}", String::from_utf8_lossy(&up.stderr));
    cluster.wait_for("all hosts", ready);
    assert_eq!(ended(&cluster, "first"), answer, "what was answered is still known");
    assert_eq!(ended(&cluster, "long"), expected, "what was under way goes on");
    post(&cluster, "/api/v1/jobs", &question("second"));
    assert_eq!(ended(&cluster, "second"), answer, "the session answers the same");
    // A file that is no backup, and one that is cut.
    let whole = fs::read(&file).expect("the backup");
    for content in [&b"no backup"[..], &whole[..whole.len() / 2]] {
        fs::write(&file, content).expect("written");
        let refused = cluster.run(&["restore", path]);
        assert_eq!(refused.status.code(), Some(2), "{}", String::from_utf8_lossy(&refused.stderr));
    }
}
