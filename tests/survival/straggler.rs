//! A host that gets a small part of a core is named, and the one that waits for it is not, whatever they pass each other.

use std::{
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{RecvTimeoutError, channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use serde_json::Value;
use tests::{Cluster, ClusterSpec};

use super::{
    BINARY,
    cgroup::{self, ControlGroup},
    embedded,
};

/// A host that stands for most of the time is silent for longer than others.
macro_rules! avoiding {
    ($method:literal) => {
        concat!("[supervisor]\ndead_after_ms = 30000\navoid_stragglers = true\n\n[attention.", $method)
    };
}
const NAMED_WITHIN: Duration = Duration::from_secs(120);
/// Where there is no control group: 6% of the time it runs.
const RUNS: Duration = Duration::from_millis(6);
const STANDS: Duration = Duration::from_millis(94);

/// What holds a process to 6% of a core, or of the time, until it is dropped.
enum Held {
    Group { _group: ControlGroup },
    Signals { over: Arc<AtomicBool>, sending: Option<JoinHandle<()>> },
}

impl Held {
    fn new(pid: u64) -> Self {
        if let Ok(group) = cgroup::six_percent(pid) {
            return Self::Group { _group: group };
        }
        let over = Arc::new(AtomicBool::new(false));
        let ends = over.clone();
        let sending = thread::spawn(move || {
            let send = |signal: &str| drop(Command::new("kill").args([signal, &pid.to_string()]).status());
            let (_open, waits) = channel::<()>();
            let pause = |time| assert_eq!(waits.recv_timeout(time), Err(RecvTimeoutError::Timeout));
            // Not for ever, should an answer fail meanwhile.
            let began = Instant::now();
            while !ends.load(Ordering::SeqCst) && began.elapsed() < 2 * NAMED_WITHIN {
                send("-STOP");
                pause(STANDS);
                send("-CONT");
                pause(RUNS);
            }
        });
        Self::Signals { over, sending: Some(sending) }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Self::Signals { over, sending } = self {
            over.store(true, Ordering::SeqCst);
            sending.take().into_iter().for_each(|thread| drop(thread.join()));
        }
    }
}

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
fn of_a_ring_the_host_that_gets_six_percent_of_a_core_is_named_and_the_one_that_waits_is_not() {
    the_slow_one_is_named_and_nobody_else("ring", avoiding!("ring]\nlayout = \"contiguous\""));
}

#[test]
fn of_star_the_host_that_gets_six_percent_of_a_core_is_named_and_the_one_that_waits_is_not() {
    the_slow_one_is_named_and_nobody_else("star", avoiding!("star]"));
}

#[test]
fn of_pulsar_the_host_that_gets_six_percent_of_a_core_is_named_and_the_one_that_waits_is_not() {
    the_slow_one_is_named_and_nobody_else("pulsar", avoiding!("pulsar]"));
}

fn the_slow_one_is_named_and_nobody_else(method: &str, settings: &'static str) {
    let cluster = Cluster::start(BINARY, &ClusterSpec { method: settings, ..embedded(2) });
    let before: Vec<f64> = (0..3).map(|number| answered(&cluster, number)).collect();
    assert!(slow(&cluster.status()).is_empty(), "all are well");
    let held = Held::new(cluster.pid("context-0"));
    let (began, mut with, mut named) = (Instant::now(), Vec::new(), Vec::new());
    while named.is_empty() && began.elapsed() < NAMED_WITHIN {
        with.push(answered(&cluster, 10 + with.len()));
        named = slow(&cluster.status());
    }
    let seconds = began.elapsed().as_secs_f64();
    let after: Vec<f64> = (0..3).map(|more| answered(&cluster, 100 + more)).collect();
    drop(held);
    let hosts: Vec<&str> = named.iter().map(|(host, _)| host.as_str()).collect();
    assert_eq!(hosts, ["context-0"], "{named:?}");
    let metrics = cluster.metrics();
    assert!(metrics.contains("asterism_host_slowdown_ratio{host=\"context-1\"} 1\n"), "{metrics}");
    eprintln!(
        "{method}: named after {seconds:.1} s: {named:?}; jobs before {before:.1?} s, with it {with:.1?} s, \
         without it {after:.1?} s"
    );
}
