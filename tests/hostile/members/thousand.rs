//! A machine room's worth of hosts at one supervisor: real links with certificates, to hosts that do nothing but beat. What that costs
//! the supervisor's process, by what the system counts of it.

use std::{
    fs,
    path::Path,
    process::{Child, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use asterism_actors::{
    messages::{HostCommand, HostMessage, HostRole, WireMessage},
    readings::{LinkReading, LinkReport},
};
use asterism_models::{Checkpoint, ModelDigest};
use asterism_transport::{Transport, certificates::MemberRole};
use tests::{Cluster, ClusterSpec};

use super::identity::{hello, issued, member};

const BINARY: &str = env!("CARGO_BIN_EXE_asterism-under-test");
/// What ASTERISM_HOSTS overrides.
const HOSTS_BEATING: usize = 1024;
const MEASURED: Duration = Duration::from_secs(20);
/// Clock ticks in a second, as /proc counts.
const TICKS: f64 = 100.0;
/// Share of a core that all heartbeats may take.
const MOST_OF_A_CORE: f64 = 0.2;

/// A process that is ended with the test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Seconds of CPU that a process has had.
fn cpu_seconds(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let fields: Vec<&str> = stat.rsplit(')').next().expect("a name in brackets").split_whitespace().collect();
    (fields[11].parse::<f64>().expect("ticks") + fields[12].parse::<f64>().expect("ticks")) / TICKS
}

/// Joins, says that it is ready, and beats until the supervisor is gone.
async fn beat(
    transport: Arc<dyn Transport>,
    at: std::net::SocketAddr,
    (name, role): (String, HostRole),
    model: ModelDigest,
) {
    // A supervisor that has too many handshakes at once lets some of them wait in vain.
    let link = loop {
        if let Ok(link) = transport.connect(at).await {
            break link;
        }
    };
    let mut channel = link.open().await.expect("a link");
    let mut say = async |message: HostMessage| channel.sender.send(message.frame()).await;
    say(HostMessage::Hello(hello(&name, role))).await.expect("it is heard");
    let frame = channel.receiver.receive().await.expect("an answer").expect("an answer");
    let HostCommand::Welcome { heartbeat_ms, .. } =
        HostCommand::read(&frame.meta, "the supervisor").expect("a command")
    else {
        panic!("{name} is not welcome");
    };
    say(HostMessage::Ready { numerics: "cpu light".into(), model: Box::new(model.into()) }).await.expect("it is heard");
    let link = LinkReading {
        peer: "supervisor".into(),
        transport: "quic".into(),
        why: String::new(),
        open: true,
        rtt_s: Some(1e-4),
    };
    let report = LinkReport { links: vec![link], ..LinkReport::default() };
    let mut pace = tokio::time::interval(Duration::from_millis(heartbeat_ms));
    let beats_per_report = 1000_u64.div_ceil(heartbeat_ms).max(4);
    for beat in 0.. {
        pace.tick().await;
        let mut beaten = say(HostMessage::Heartbeat { kv_bytes: 0, idle_bytes: 0 }).await;
        if beat % beats_per_report == 0 {
            beaten = beaten.and(say(HostMessage::Links(report.clone())).await);
        }
        if beaten.is_err() {
            return;
        }
    }
}

/// `cargo test --release --workspace --test hostile a_thousand -- --ignored --nocapture`, on a quiet machine.
#[test]
#[ignore = "a minute, and a figure that means nothing on a busy machine"]
fn a_thousand_hosts_beat() {
    let hosts: usize = std::env::var("ASTERISM_HOSTS").map_or(HOSTS_BEATING, |count| count.parse().expect("a number"));
    let spec = ClusterSpec { contexts: hosts, model: None, method: "[attention.star]", listen: "127.0.0.1:0".into() };
    let binary = std::env::var("ASTERISM_OTHER_BINARY").unwrap_or_else(|_| BINARY.to_owned());
    let cluster = Cluster::written(binary, &spec, |text| text);
    let log = fs::File::create(cluster.folder().join("supervisor.log")).expect("a file");
    let supervisor = cluster.command(&["supervisor"]).stdout(Stdio::null()).stderr(log).spawn().expect("it runs");
    let supervisor = Ended(supervisor);
    let record = cluster.folder().join("data/supervisor.json");
    let since = Instant::now();
    while !record.exists() {
        assert!(since.elapsed() < Duration::from_secs(60), "no supervisor");
        std::thread::yield_now();
    }
    let at = cluster.record()["listen"].as_str().expect("an address").parse().expect("an address");
    let model = Checkpoint::embedded().and_then(|model| model.digest(Path::new(""))).expect("a model");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().worker_threads(2).build().expect("threads");
    let names = (0..hosts).map(|at| (format!("context-{at}"), HostRole::Context, MemberRole::Context));
    for (name, role, of) in names.chain([("query-0".to_owned(), HostRole::Query, MemberRole::Query)]) {
        let transport = runtime.block_on(async { member(issued(&cluster, of, &name)) });
        runtime.spawn(beat(transport, at, (name, role), model.clone()));
    }
    let all = cluster.wait_for("all hosts are ready", |status| {
        status["hosts"].as_array().is_some_and(|hosts| hosts.iter().all(|host| host["health"] == "ready"))
    });
    println!(
        "{} hosts joined within {:.1} s",
        all["hosts"].as_array().expect("hosts").len(),
        since.elapsed().as_secs_f64()
    );
    let pid = supervisor.0.id();
    let (before, began) = (cpu_seconds(pid), Instant::now());
    runtime.block_on(async { tokio::time::sleep(MEASURED).await });
    let share = (cpu_seconds(pid) - before) / began.elapsed().as_secs_f64();
    let status = cluster.status();
    println!("{hosts} hosts that beat take {:.1}% of a core", 100.0 * share);
    let unready: Vec<&serde_json::Value> =
        status["hosts"].as_array().expect("hosts").iter().filter(|host| host["health"] != "ready").collect();
    assert!(unready.is_empty(), "{unready:?}");
    assert!(
        share < MOST_OF_A_CORE,
        "{:.1}% of a core, expected less than {:.0}%",
        100.0 * share,
        100.0 * MOST_OF_A_CORE
    );
}
