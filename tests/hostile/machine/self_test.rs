//! Clusters that compute wrongly, and find that out themselves.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Child, Command},
    time::Instant,
};

use serde_json::{Value, json};
use tests::{Cluster, ClusterSpec, DEADLINE, kill};

const BINARY: &str = env!("CARGO_BIN_EXE_asterism-under-test");
const WEIGHTS: &str = "model.safetensors";

/// The embedded model's folder, copied to where weights can be damaged.
fn model(folder: &Path) -> PathBuf {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/asterism-7m");
    fs::create_dir(folder).expect("a folder");
    for entry in fs::read_dir(from).expect("the model").flatten().filter(|entry| entry.path().is_file()) {
        fs::copy(entry.path(), folder.join(entry.file_name())).expect("a copy");
    }
    pad(&folder.join(WEIGHTS));
    folder.to_path_buf()
}

/// The header of a file of weights, and where its tensors begin.
fn header(bytes: &[u8]) -> (Value, usize) {
    let head = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
    (serde_json::from_slice(&bytes[8..8 + head]).expect("a header"), 8 + head)
}

/// Adds a tensor of those that change no answer, so that the file is one of those whose hashes are kept.
fn pad(weights: &Path) {
    let bytes = fs::read(weights).expect("weights");
    let (mut tensors, begins) = header(&bytes);
    let (ends, more) = (bytes.len() - begins, 64 << 20);
    tensors["rotary_emb.inv_freq"] = json!({"dtype": "BF16", "shape": [more / 2], "data_offsets": [ends, ends + more]});
    let head = tensors.to_string().into_bytes();
    let padded = [&(head.len() as u64).to_le_bytes()[..], &head, &bytes[begins..], &vec![0; more]].concat();
    fs::write(weights, padded).expect("a file");
}

/// Turns the signs of one layer's projection around, of a checkpoint that was hashed before: it loads, its numbers are finite, and
/// as if its disk gave back other bytes than were hashed, nobody sees by its digest that it is wrong.
fn damage(cluster: &Cluster, name: &str) {
    let folder = cluster.folder().join(name);
    let (path, hashes) = (folder.join(WEIGHTS), folder.join(".asterism-digest.json"));
    let started = Instant::now();
    // Hashes of a file that was only just written are not kept.
    while !hashes.exists() {
        assert!(started.elapsed() < DEADLINE, "no hashes are kept");
        cluster.command(&["doctor"]).env("ASTERISM__MODEL__PATH", &folder).output().expect("it runs");
    }
    let mut bytes = fs::read(&path).expect("weights");
    let (tensors, begins) = header(&bytes);
    let tensor = &tensors["model.layers.1.self_attn.v_proj.weight"];
    assert_eq!(tensor["dtype"], "BF16");
    let at = |end: usize| begins + tensor["data_offsets"][end].as_u64().expect("an offset") as usize;
    for number in bytes[at(0)..at(1)].chunks_exact_mut(2) {
        number[1] ^= 0x80;
    }
    replace(&path, &bytes);
    let now = fs::metadata(&path).expect("a file");
    let mut kept: Value = serde_json::from_slice(&fs::read(&hashes).expect("hashes")).expect("JSON");
    kept["files"][WEIGHTS]["stamp"] = json!({
        "bytes": now.len(), "inode": now.ino(), "modified": [now.mtime(), now.mtime_nsec()],
        "changed": [now.ctime(), now.ctime_nsec()],
    });
    replace(&hashes, kept.to_string().as_bytes());
}

/// In one step: hosts that have the file open keep what they have.
fn replace(path: &Path, bytes: &[u8]) {
    let aside = path.with_extension("new");
    fs::write(&aside, bytes).expect("a file");
    fs::rename(aside, path).expect("a file");
}

fn cluster(folder: &str, edit: impl FnOnce(String) -> String) -> Cluster {
    let spec = ClusterSpec { contexts: 2, model: None, method: "[attention.auto]", listen: "127.0.0.1:0".to_string() };
    let cluster = Cluster::written(BINARY, &spec, |text| {
        edit(text.replacen("[attention.auto]", &format!("[model]\npath = \"{folder}\"\n\n[attention.auto]"), 1))
    });
    model(&cluster.folder().join(folder));
    cluster
}

/// Status and code of the answer to a job.
fn submit(cluster: &Cluster) -> (u16, String) {
    let post = ureq::post(format!("{}/api/v1/jobs", cluster.server()));
    let job = json!({"context": "It rains in May.", "query": "When?", "max_tokens": 2});
    let answer = post.config().http_status_as_error(false).build().send_json(&job).expect("an answer");
    let status = answer.status().as_u16();
    let body: Value = answer.into_body().read_json().expect("JSON");
    (status, body["error"]["code"].as_str().unwrap_or_default().to_owned())
}

fn ready(cluster: &Cluster) -> (u16, String) {
    let get = ureq::get(format!("{}/readyz?verbose", cluster.server())).config().http_status_as_error(false).build();
    let answer = get.call().expect("an answer");
    (answer.status().as_u16(), answer.into_body().read_to_string().expect("text"))
}

/// Exit code, what was found, and what was said.
fn self_test(cluster: &Cluster) -> (Option<i32>, Value, String) {
    let run = cluster.run(&["self-test", "-o", "json"]);
    let printed = String::from_utf8_lossy(&run.stderr).into_owned();
    (run.status.code(), serde_json::from_slice(&run.stdout).unwrap_or_default(), printed)
}

fn restart(cluster: &Cluster, host: &str) {
    let pid = cluster.pid(host);
    kill(pid);
    cluster.wait_for("another process of the host", |status| {
        let hosts = status["hosts"].as_array().expect("hosts");
        let other = |found: &Value| found["name"] == host && found["pid"].as_u64().is_some_and(|now| now != pid);
        status["ready"] == true && hosts.iter().any(other)
    });
}

fn verdicts(report: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let checks = report["checks"].as_array().map(Vec::as_slice).unwrap_or_default();
    checks.iter().map(|check| (text(&check["name"]), text(&check["verdict"]))).collect()
}

#[test]
fn a_host_whose_weights_are_damaged_is_named_and_the_cluster_takes_no_work_until_it_is_mended() {
    let cluster = cluster("model", |text| text);
    let up = cluster.run(&["up", "--detach"]);
    assert!(up.status.success(), "{}", String::from_utf8_lossy(&up.stderr));
    let (code, report, printed) = self_test(&cluster);
    assert_eq!(code, Some(0), "{printed}\n{report:#}");
    let names: Vec<String> = verdicts(&report).into_iter().map(|(name, _)| name).collect();
    let expected = [
        "dense on context-0",
        "dense on context-1",
        "all of it on query-0",
        "ring over 2 hosts",
        "dense on context-0, longer",
        "the default, auto",
    ];
    assert_eq!(names, expected, "{report:#}");
    assert!(verdicts(&report).iter().all(|(_, verdict)| verdict == "right"), "{report:#}");
    assert_eq!(submit(&cluster).0, 202);

    let whole = fs::read(cluster.folder().join("model").join(WEIGHTS)).expect("weights");
    damage(&cluster, "model");
    restart(&cluster, "context-1");
    let (code, report, printed) = self_test(&cluster);
    assert_eq!((code, &report["state"]), (Some(1), &json!("wrong")), "{printed}\n{report:#}");
    assert!(
        printed.contains("dense on context-1: it answers") && printed.contains("context-0 alone answers"),
        "{printed}"
    );
    assert_eq!(submit(&cluster), (503, "self_test_failed".to_owned()));
    let (code, page) = ready(&cluster);
    assert!(code == 503 && page.contains("self-test: dense on context-1"), "{code} {page}");
    assert_eq!(cluster.status()["self_test"]["state"], "wrong");
    let status = cluster.run(&["status"]);
    assert!(String::from_utf8_lossy(&status.stderr).contains("no work is taken until one passes"));
    let metrics = cluster.metrics();
    assert!(metrics.contains("asterism_self_test_closed 1\n"), "{metrics}");
    assert!(metrics.contains("asterism_self_tests_total{result=\"wrong\"} 1\n"), "{metrics}");

    replace(&cluster.folder().join("model").join(WEIGHTS), &whole);
    restart(&cluster, "context-1");
    let (code, report, printed) = self_test(&cluster);
    assert_eq!(code, Some(0), "{printed}\n{report:#}");
    assert_eq!((submit(&cluster).0, ready(&cluster).0), (202, 200));
}

/// A process that ends with the test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-9", &self.0.id().to_string()]).status();
        let _ = self.0.wait();
    }
}

fn self_tested(text: String) -> String {
    text.replace("[[node]]", "[supervisor]\nself_test = true\n\n[[node]]")
}

#[test]
fn a_cluster_that_has_to_pass_its_self_test_takes_no_work_before_and_none_when_it_is_wrong() {
    let cluster = cluster("model", self_tested);
    model(&cluster.folder().join("damaged"));
    damage(&cluster, "damaged");
    assert!(cluster.run(&["cert", "init"]).status.success());
    let _supervisor = Ended(cluster.command(&["supervisor"]).spawn().expect("it runs"));
    cluster.wait_for("the supervisor", |status| status["self_test"]["state"] == "pending");
    assert_eq!(submit(&cluster), (503, "not_ready".to_owned()));
    assert!(ready(&cluster).1.contains("self-test: not passed yet"));
    let listen = cluster.record()["listen"].as_str().expect("an address").to_owned();
    let host = |name: &str, model: &str| {
        let mut host = cluster.command(&["run-host", "--name", name, "--supervisor", &listen]);
        Ended(host.env("ASTERISM__MODEL__PATH", cluster.folder().join(model)).spawn().expect("it runs"))
    };
    let _hosts = [host("context-0", "model"), host("context-1", "damaged"), host("query-0", "model")];
    let status = cluster.wait_for("the self-test to end", |status| status["self_test"]["state"] == "wrong");
    let cause = status["self_test"]["cause"].as_str().expect("a cause");
    assert!(cause.starts_with("dense on context-1: "), "{cause}");
    assert_eq!(submit(&cluster), (503, "self_test_failed".to_owned()));
}

#[test]
fn up_waits_for_the_self_test_that_has_to_pass() {
    let cluster = cluster("model", self_tested);
    let up = cluster.run(&["up", "--detach"]);
    let printed = String::from_utf8_lossy(&up.stderr).into_owned();
    assert!(up.status.success() && printed.contains("the self-test passed: 6 canaries"), "{printed}");
    assert_eq!((submit(&cluster).0, ready(&cluster).0), (202, 200));
}
