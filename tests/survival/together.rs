//! Hosts that share a process end and come back together.

use serde_json::json;
use tests::{Cluster, ClusterSpec};

use crate::{BINARY, SURVIVING, embedded, lives, ready};

#[test]
fn hosts_of_one_process_come_back_together_and_tokens_stay() {
    let spec = ClusterSpec { method: SURVIVING, ..embedded(2) };
    let cluster = Cluster::written(BINARY, &spec, |text| text.replace("\nrole = ", "\nprocess = \"all\"\nrole = "));
    let up = cluster.run(&["up", "--detach"]);
    assert!(up.status.success(), "up failed:\n{}", String::from_utf8_lossy(&up.stderr));
    let case = json!({
        "context_ids": (0..4000).map(|i| i * 31 % 250 + 1).collect::<Vec<u32>>(),
        "query_ids": [5, 6, 7, 8], "max_new_tokens": 200,
    });
    let method = json!({ "star": {} });
    let undisturbed = cluster.answer_tokens(&case, method.clone());
    let pid = cluster.pid("context-1");
    let again = std::thread::scope(|scope| {
        let answer = scope.spawn(|| cluster.answer_tokens(&case, method.clone()));
        cluster.wait_for("the job to run", |status| status["jobs_running"] == 1);
        cluster.kill("context-1");
        answer.join().expect("an answer")
    });
    assert_eq!(again["tokens"], undisturbed["tokens"], "{again:#}");
    assert!(!lives(pid));
    let status = cluster.wait_for("another process of the hosts", ready);
    let hosts = status["hosts"].as_array().expect("hosts");
    let now: Vec<_> = hosts.iter().map(|host| host["pid"].as_u64().expect("a process")).collect();
    assert!(now.iter().all(|other| *other == now[0] && *other != pid), "{status:#}");
    assert!(hosts.iter().all(|host| host["restarts"] == 1), "{status:#}");
}
