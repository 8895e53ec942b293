//! Hosts of several devices: the golden tokens beside hosts of one, after each was killed too, and refusals before anything starts.

use serde_json::Value;
use tests::{Cluster, ClusterSpec, golden_cases};

use super::{BINARY, method, tiny};

/// The cluster file with devices of some of its hosts.
fn sharing(text: &str, hosts: &[(&str, &str)]) -> String {
    hosts.iter().fold(text.to_owned(), |text, (name, devices)| {
        let key = format!("name = \"{name}\"\n");
        assert!(text.contains(&key), "{name} in {text}");
        text.replace(&key, &format!("{key}devices = [{devices}]\n"))
    })
}

fn started(spec: &ClusterSpec, hosts: &[(&str, &str)]) -> Cluster {
    let cluster = Cluster::written(BINARY, spec, |text| sharing(&text, hosts));
    let up = cluster.run(&["up", "--detach"]);
    assert!(up.status.success(), "up failed:\n{}", String::from_utf8_lossy(&up.stderr));
    cluster
}

fn answers(cluster: &Cluster, cases: &[Value]) {
    for case in cases {
        let status = cluster.answer_tokens(case, method(case).0);
        assert_eq!(status["tokens"], case["expected"]["greedy_tokens"], "{}: {status:#}", case["id"]);
    }
}

fn cases(names: &[&str], contexts: usize) -> Vec<Value> {
    let all = names.iter().flat_map(|name| golden_cases("tiny-llama", name));
    all.filter(|case| method(case).1 == contexts).collect()
}

const TWO: &str = "\"cpu\", \"cpu\"";
const FOUR: &str = "\"cpu\", \"cpu\", \"cpu\", \"cpu\"";

#[test]
fn hosts_of_one_two_and_four_devices_give_the_golden_tokens_together() {
    let names = ["dense", "star", "pulsar", "apb", "anchor", "streaming", "ring", "ulysses"];
    for contexts in [1, 2, 3] {
        let hosts = [("context-0", TWO), ("query-0", FOUR), ("context-2", FOUR)];
        let cluster = started(&tiny(contexts), &hosts[..contexts.max(2)]);
        let ours = cases(&names, contexts);
        assert!(!ours.is_empty());
        answers(&cluster, &ours);
        let status = cluster.status();
        assert_eq!(status["hosts"][0]["device"], "cpu,cpu", "{status:#}");
    }
}

#[test]
fn a_host_of_several_devices_that_dies_is_lost_and_comes_back() {
    let cluster = started(&tiny(2), &[("context-0", TWO), ("query-0", TWO)]);
    let ours = cases(&["star", "ring"], 2);
    answers(&cluster, &ours[..1]);
    for host in ["context-0", "context-1", "query-0"] {
        let before = cluster.pid(host);
        cluster.kill(host);
        cluster.wait_for("another process of the host", |status| {
            let hosts = status["hosts"].as_array().expect("hosts");
            let new = |entry: &&Value| entry["name"] == host && entry["pid"].as_u64().is_some_and(|pid| pid != before);
            status["ready"] == true && hosts.iter().any(|entry| new(&entry))
        });
        answers(&cluster, &ours);
    }
}

#[test]
fn devices_that_cannot_share_a_model_are_named_before_anything_starts() {
    for (devices, expected) in [
        ("\"cpu\", \"cpu\", \"cpu\"", "8 query heads and 2 KV heads evenly"),
        ("\"cuda:1\", \"cuda:1\"", "cuda:1 is named twice"),
        ("\"cuda:0\", \"cpu\"", "devices of one kind"),
        ("", "a device at least"),
    ] {
        let cluster = Cluster::written(BINARY, &tiny(1), |text| sharing(&text, &[("context-0", devices)]));
        let up = cluster.run(&["up", "--detach"]);
        let stderr = String::from_utf8_lossy(&up.stderr).into_owned();
        assert_eq!(up.status.code(), Some(2), "{devices}: {stderr}");
        assert!(stderr.contains(expected) && stderr.contains("context-0"), "{devices}: {stderr}");
        assert!(!cluster.folder().join("data/supervisor.json").exists());
    }
}
