//! A host that gets a small part of a core is named, and the one that waits for it is not.

use std::{
    process::Command,
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc::{RecvTimeoutError, channel},
    },
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;
use tests::{Cluster, ClusterSpec};

use super::{BINARY, embedded};

/// A host that is stopped for most of the time is silent for longer than others.
const RING: &str =
    "[supervisor]\ndead_after_ms = 30000\navoid_stragglers = true\n\n[attention.ring]\nlayout = \"contiguous\"";
const NAMED_WITHIN: Duration = Duration::from_secs(120);
/// A tenth of the time it runs.
const RUNS: Duration = Duration::from_millis(10);
const STANDS: Duration = Duration::from_millis(90);

fn slow(status: &Value) -> Vec<(String, String)> {
    let named = |host: &Value| Some((host["name"].as_str()?.to_owned(), host["slow"].as_str()?.to_owned()));
    status["hosts"].as_array().into_iter().flatten().filter_map(named).collect()
}

fn answered(cluster: &Cluster, number: usize) -> f64 {
    let context: String = (0..150).map(|town| format!("The road to town {town} of {number} is long. ")).collect();
    let file = cluster.folder().join("document.txt");
    std::fs::write(&file, context).expect("written");
    let path = file.to_str().expect("UTF-8");
    let asked = Instant::now();
    let ask = ["job", "submit", "--context", path, "--query", "What is long?", "--max-tokens", "2"];
    let output = cluster.run(&ask);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    asked.elapsed().as_secs_f64()
}

#[test]
fn the_host_that_gets_a_tenth_of_a_core_is_named_and_the_one_that_waits_for_it_is_not() {
    let cluster = Cluster::start(BINARY, &ClusterSpec { method: RING, ..embedded(2) });
    let before: Vec<f64> = (0..3).map(|number| answered(&cluster, number)).collect();
    assert!(slow(&cluster.status()).is_empty(), "all are well");
    let (pid, held) = (cluster.pid("context-0").to_string(), AtomicBool::new(true));
    let send = |signal: &str| drop(Command::new("kill").args([signal, &pid]).status());
    let (named, after, seconds) = thread::scope(|scope| {
        scope.spawn(|| {
            let (_open, waits) = channel::<()>();
            let pause = |time| assert_eq!(waits.recv_timeout(time), Err(RecvTimeoutError::Timeout));
            // Not for ever, should an answer fail meanwhile.
            let began = Instant::now();
            while held.load(Ordering::SeqCst) && began.elapsed() < 2 * NAMED_WITHIN {
                send("-STOP");
                pause(STANDS);
                send("-CONT");
                pause(RUNS);
            }
        });
        let (began, mut number, mut named) = (Instant::now(), 10, Vec::new());
        while named.is_empty() && began.elapsed() < NAMED_WITHIN {
            answered(&cluster, number);
            number += 1;
            named = slow(&cluster.status());
        }
        let seconds = began.elapsed().as_secs_f64();
        let after: Vec<f64> = (0..3).map(|more| answered(&cluster, number + more)).collect();
        held.store(false, Ordering::SeqCst);
        (named, after, seconds)
    });
    let hosts: Vec<&str> = named.iter().map(|(host, _)| host.as_str()).collect();
    assert_eq!(hosts, ["context-0"], "{named:?}");
    let metrics = cluster.metrics();
    assert!(metrics.contains("asterism_host_slowdown_ratio{host=\"context-1\"} 1\n"), "{metrics}");
    eprintln!("named after {seconds:.1} s: {named:?}; jobs before {before:.1?} s, without it {after:.1?} s");
}
