//! Questions to sessions of the default method, which get some tokens anew, while hosts die.

use std::{fs, process::Stdio};

use serde_json::Value;
use tests::{Cluster, ClusterSpec};

use super::{BINARY, embedded, signal};

const DEFAULT: &str = "[supervisor]\nrecovery = \"redistribute\"\nmax_restarts = 1000\n\n[attention.auto]";

/// Killed at once, the query host has not encoded what the question gets anew; a moment later it generates.
#[test]
fn a_session_of_the_default_method_answers_the_same_whoever_dies() {
    let cluster = Cluster::start(BINARY, &ClusterSpec { method: DEFAULT, ..embedded(3) });
    let filler = |town: usize| format!("The road to town {town} is long and the river beside it is slow. ");
    fs::write(cluster.folder().join("document.txt"), (0..300).map(filler).collect::<String>()).expect("written");
    let made = cluster.run(&["session", "create", "--context", "document.txt", "--name", "book", "-o", "json"]);
    let said = String::from_utf8_lossy(&made.stderr);
    assert_eq!(made.status.code(), Some(0), "{said}");
    let session: Value = serde_json::from_slice(&made.stdout).expect("JSON");
    assert_eq!(session["method"], "pulsar", "{session:#}");
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
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{host} {generating}: {said}");
        assert_eq!(answer(&output.stdout), tokens, "{host} {generating}: {said}");
    }
}
