//! Real processes killed and stopped: the supervisor comes back, hosts come back, jobs end with the same tokens.

use std::{
    fs,
    process::{Child, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

use asterism_transport::certificates::{CertificateAuthority, Credentials, HOST_FILE, MemberRole, Validity};
use serde_json::{Value, json};
use tests::{Cluster, ClusterSpec, golden};

#[path = "survival/backup.rs"]
mod backup;
#[path = "survival/cgroup.rs"]
mod cgroup;
#[path = "survival/changing.rs"]
mod changing;
#[path = "survival/chats.rs"]
mod chats;
#[path = "survival/gpus.rs"]
mod gpus;
#[path = "survival/models.rs"]
mod models;
#[path = "survival/sessions.rs"]
mod sessions;
#[path = "survival/stopping.rs"]
mod stopping;
#[path = "survival/straggler.rs"]
mod straggler;
#[path = "survival/together.rs"]
mod together;
#[path = "survival/upgrading.rs"]
mod upgrading;

const BINARY: &str = env!("CARGO_BIN_EXE_asterism-under-test");
/// More restarts than any scenario makes, and shards of a lost host spread over the rest.
const SURVIVING: &str = "[supervisor]\nrecovery = \"redistribute\"\nmax_restarts = 1000\n\n[attention.star]";

fn embedded(contexts: usize) -> ClusterSpec {
    ClusterSpec { contexts, model: None, method: "[attention.star]", listen: "127.0.0.1:0".to_string() }
}

fn tiny(contexts: usize) -> ClusterSpec {
    ClusterSpec { model: Some(golden().join("models/tiny-llama")), ..embedded(contexts) }
}

/// A process that ends with its scenario.
struct Ending(Child);

impl Drop for Ending {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(cluster: &Cluster, arguments: &[&str]) -> Ending {
    let log = fs::File::create(cluster.folder().join(format!("{}.txt", arguments.join("-").replace('/', "-"))));
    let mut command = cluster.command(arguments);
    command.stdout(Stdio::null()).stderr(log.expect("a log"));
    Ending(command.spawn().expect("the binary under test"))
}

fn signal(name: &str, pid: u64) {
    let sent = std::process::Command::new("kill").args([name, &pid.to_string()]).status().expect("kill");
    assert!(sent.success(), "{name} {pid}");
}

/// The states of its threads as proc(5) abbreviates them: `T` stopped, `Z` ended and not waited for; none when it is gone.
fn states(pid: u64) -> Vec<char> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let state = |status: String| status.split_once("\nState:\t")?.1.chars().next();
    tasks.filter_map(|task| state(fs::read_to_string(task.path().join("status")).ok()?)).collect()
}

/// Whether any of its threads does: they hold its files and their locks, though the first has ended.
fn lives(pid: u64) -> bool {
    states(pid).iter().any(|state| *state != 'Z')
}

/// Waits until a process that was sent the signal has stopped, which it has when all of its threads have.
fn stops(pid: u64) {
    eventually("the signal to take effect", || {
        let states = states(pid);
        !states.is_empty() && states.iter().all(|state| *state == 'T')
    });
}

/// Between two looks at what is waited for.
const BETWEEN_LOOKS: Duration = Duration::from_millis(10);

/// Waits for `what` to come true.
fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < tests::DEADLINE, "waited {:?} for {what}", tests::DEADLINE);
        // Those who are waited for have the cores meanwhile.
        thread::park_timeout(BETWEEN_LOOKS);
    }
}

fn ready(status: &Value) -> bool {
    status["ready"] == true
}

#[test]
fn a_job_outlives_its_supervisor_and_so_does_its_client() {
    for blow in ["-KILL", "-STOP"] {
        let cluster = Cluster::start(BINARY, &embedded(2));
        let document = cluster.folder().join("document.txt");
        fs::write(&document, "The grass is green. The sky is blue. The sun is yellow.\n".repeat(300)).expect("written");
        let path = document.to_str().expect("UTF-8");
        let ask = ["job", "submit", "--context", path, "--query", "What is the sun?", "--max-tokens", "16"];
        let undisturbed = cluster.run(&ask);
        assert_eq!(undisturbed.status.code(), Some(0), "{}", String::from_utf8_lossy(&undisturbed.stderr));
        let (admin, pid) = (cluster.server(), cluster.supervisor());
        let mut command = cluster.command(&ask);
        let client = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary under test");
        cluster.wait_for("the job to run", |status| status["jobs_running"] == 1);
        signal(blow, pid);
        let output = client.wait_with_output().expect("its end");
        let printed = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{blow}: {printed}");
        assert_eq!(output.stdout, undisturbed.stdout, "{blow}");
        assert_eq!(printed.matches("does not answer").count(), 1, "{blow}: {printed}");
        assert_eq!(cluster.server(), admin, "{blow}: the ports stay");
        assert!(cluster.supervisor() != pid && !lives(pid), "{blow}");
    }
}

#[test]
fn a_killed_host_comes_back() {
    let cluster = Cluster::start(BINARY, &tiny(2));
    let pid = cluster.pid("context-1");
    cluster.kill("context-1");
    let status = cluster.wait_for("another process of the host", |status| {
        ready(status) && status["hosts"][1]["pid"].as_u64().is_some_and(|now| now != pid)
    });
    assert_eq!(status["hosts"][1]["name"], "context-1", "{status:#}");
}

/// An edit of the cluster file is for the next start: who is killed meanwhile comes back as it was.
#[test]
fn who_is_killed_comes_back_whatever_became_of_the_cluster_file() {
    let cluster = Cluster::start(BINARY, &tiny(2));
    let (supervisor, host) = (cluster.supervisor(), cluster.pid("context-1"));
    let kept = fs::read(cluster.file()).expect("the cluster file");
    fs::write(cluster.file(), "").expect("emptied");
    [supervisor, host].into_iter().for_each(|pid| signal("-KILL", pid));
    let copy = cluster.folder().join("kept.toml");
    fs::write(&copy, kept).expect("written");
    let named = ["status", "-o", "json", "-f", copy.to_str().expect("UTF-8")];
    let asked = || std::process::Command::new(BINARY).args(named).env_remove("ASTERISM_SERVER").output();
    eventually("both to come back", || {
        let status: Value = serde_json::from_slice(&asked().expect("the binary").stdout).unwrap_or_default();
        ready(&status) && status["hosts"][1]["pid"].as_u64().is_some_and(|pid| pid != host)
    });
    fs::rename(&copy, cluster.file()).expect("put back");
    assert_ne!(cluster.supervisor(), supervisor);
}

#[test]
fn down_does_not_say_that_a_cluster_is_not_running_that_is() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").port();
    let listens = format!("admin_listen = \"127.0.0.1:{port}\"");
    let cluster = Cluster::written(BINARY, &tiny(1), |text| text.replace("admin_listen = \"127.0.0.1:0\"", &listens));
    let up = cluster.run(&["up", "--detach"]);
    assert!(up.status.success(), "{}", String::from_utf8_lossy(&up.stderr));
    let (data, away) = (cluster.folder().join("data"), cluster.folder().join("away"));
    let down = || {
        let output = cluster.run(&["down"]);
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    fs::rename(&data, &away).expect("moved away");
    let (code, printed) = down();
    assert!(
        code == Some(3) && printed.contains(&format!("asterism down --server http://127.0.0.1:{port}")),
        "{printed}"
    );
    let text = fs::read_to_string(cluster.file()).expect("the file");
    fs::write(cluster.file(), text.replace("\"scenario\"", "\"another\"")).expect("written");
    let (code, printed) = down();
    assert!(code == Some(3) && printed.contains("this is cluster 'scenario'"), "{printed}");
    fs::write(cluster.file(), text).expect("written");
    fs::rename(&away, &data).expect("moved back");
    assert_eq!(down().0, Some(0));
    let (code, printed) = down();
    assert!(code == Some(0) && printed.contains("is not running"), "{printed}");
}

#[test]
fn a_killed_parent_takes_everything_with_it() {
    let cluster = Cluster::start(BINARY, &tiny(2));
    let pids = ["context-0", "context-1", "query-0"].map(|host| cluster.pid(host));
    let stopped = pids[1];
    signal("-STOP", stopped);
    stops(stopped);
    let (supervisor, parent) = (cluster.supervisor(), cluster.parent());
    signal("-KILL", parent);
    eventually("every process to end", || !pids.iter().chain([&supervisor, &parent]).any(|pid| lives(*pid)));
    let down = cluster.run(&["down"]);
    let printed = String::from_utf8_lossy(&down.stderr);
    assert!(printed.contains("is not running"), "{printed}");
}

#[test]
fn a_supervisor_and_agents_of_two_nodes_make_a_cluster() {
    let two = ["a", "b"].map(|node| format!("[[node]]\nname = \"{node}\"\naddress = \"127.0.0.1\"\n\n")).concat();
    let cluster = Cluster::written(BINARY, &tiny(2), |text| {
        let (head, hosts) = text.split_once("[[node]]").expect("nodes");
        let (_, hosts) = hosts.split_once("[[host]]").expect("hosts");
        let hosts = format!("[[host]]{hosts}").replace("role = \"context\"", "node = \"a\"\nrole = \"context\"");
        format!("{head}{two}{}", hosts.replace("role = \"query\"", "node = \"b\"\nrole = \"query\""))
    });
    let _supervisor = start(&cluster, &["supervisor"]);
    eventually("the supervisor to serve", || cluster.folder().join("data/supervisor.json").exists());
    let listen = cluster.record()["listen"].as_str().expect("an address").to_owned();
    let agents = ["a", "b"].map(|node| start(&cluster, &["node", "--join", &listen, "--name", node]));
    cluster.wait_for("all hosts", ready);
    let taken = cluster.run(&["node", "--join", &listen, "--name", "a"]);
    assert_eq!(taken.status.code(), Some(5), "{}", String::from_utf8_lossy(&taken.stderr));
    let ambiguous = cluster.run(&["node", "--join", &listen]);
    assert_eq!(ambiguous.status.code(), Some(2), "{}", String::from_utf8_lossy(&ambiguous.stderr));
    let asked = cluster.run(&["down"]);
    assert_eq!(asked.status.code(), Some(0), "{}", String::from_utf8_lossy(&asked.stderr));
    for mut agent in agents {
        // Its hosts were told to end.
        eventually("the agents to end", || agent.0.try_wait().expect("a child").is_some_and(|status| status.success()));
    }
}

/// `tiny(1)` with its query host on a node `b`, and nodes joining by token.
fn of_two_nodes() -> Cluster {
    Cluster::written(BINARY, &tiny(1), |text| {
        let text = text.replace("[api]", "[security]\njoin_listen = \"127.0.0.1:0\"\n\n[api]");
        let text = text.replace("[[node]]", "[[node]]\nname = \"b\"\naddress = \"127.0.0.1\"\n\n[[node]]");
        text.replace("role = \"context\"", "node = \"local\"\nrole = \"context\"")
            .replace("role = \"query\"", "node = \"b\"\nrole = \"query\"")
    })
}

#[test]
fn a_node_without_certificates_joins_with_a_token_and_with_no_spent_one() {
    let head = of_two_nodes();
    let _supervisor = start(&head, &["supervisor"]);
    eventually("the supervisor to serve", || head.folder().join("data/supervisor.json").exists());
    let listen = head.record()["listen"].as_str().expect("an address").to_owned();
    let _local = start(&head, &["node", "--join", &listen, "--name", "local"]);
    let made = head.run(&["cert", "token", "--node", "b", "--ttl", "10m"]);
    let printed = String::from_utf8_lossy(&made.stderr);
    assert_eq!(made.status.code(), Some(0), "{printed}");
    let token = String::from_utf8(made.stdout).expect("UTF-8");
    assert_eq!(token.lines().count(), 1, "{token}");
    let from =
        printed.split("--token-from ").nth(1).and_then(|rest| rest.split_whitespace().next()).expect("an address");
    assert!(printed.contains(&format!("asterism node --join {listen} ")), "{printed}");

    let join = |token: &str| {
        let node = of_two_nodes();
        fs::write(node.folder().join("join-token"), token).expect("written");
        node
    };
    let arguments = ["node", "--join", &listen, "--token-file", "join-token", "--token-from", from, "--name", "b"];
    let other = join(&token);
    let agent = start(&other, &arguments);
    head.wait_for("all hosts", ready);
    assert!(!other.folder().join("data/certificates/ca-key.pem").exists());
    assert!(!fs::read_to_string(head.folder().join("data/join-tokens.json")).expect("kept").contains(token.trim()));

    let altered = token.replace("asterism-join-1.", "asterism-join-1.0");
    for (token, cause) in [(token.as_str(), "spent by node \"b\""), (altered.as_str(), "not a join token")] {
        let refused = join(token).run(&arguments);
        let printed = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(6), "{printed}");
        assert!(printed.contains(cause), "{printed}");
    }

    // With its certificates it needs no token, and it renews those that end soon.
    drop(agent);
    fs::remove_file(other.folder().join("join-token")).expect("it was there");
    head.wait_for("the node to be missed", |status| !ready(status));
    let authority = CertificateAuthority::load(&head.folder().join("data/certificates")).expect("its own");
    let soon = Validity::starting(SystemTime::now(), Duration::from_secs(1200));
    let places = ["b", "query-0"].map(|name| other.folder().join("data/certificates/hosts").join(name));
    for place in &places {
        let name = place.file_name().and_then(|name| name.to_str()).expect("a name");
        let ending = Credentials::issue(
            &authority,
            (if name == "b" { MemberRole::Node } else { MemberRole::Query }, name),
            soon,
        )
        .expect("issued");
        ending.save(place).expect("saved");
    }
    let read = || places.each_ref().map(|place| fs::read(place.join(HOST_FILE)).expect("a certificate"));
    let ending = read();
    let _agent = start(&other, &arguments);
    eventually("new certificates", || read().iter().zip(&ending).all(|(now, before)| now != before));
    head.wait_for("all hosts again", ready);
}

/// What `chaos` says of each round, all of which left the tokens alone.
fn rounds_of_chaos(rounds: usize, words: &[&str]) -> Vec<Value> {
    let cluster = Cluster::start(BINARY, &ClusterSpec { method: SURVIVING, ..embedded(3) });
    let chaos = cluster.run(&[&["chaos", "--rounds", &rounds.to_string(), "-o", "json"], words].concat());
    let printed = String::from_utf8_lossy(&chaos.stderr);
    assert_eq!(chaos.status.code(), Some(0), "{printed}");
    let mut report: Value = serde_json::from_slice(&chaos.stdout).expect("JSON");
    let told: Vec<Value> = serde_json::from_value(report["rounds"].take()).expect("rounds");
    assert_eq!(told.len(), rounds, "{printed}");
    assert!(told.iter().all(|round| round["outcome"] == "same"), "{told:#?}");
    told
}

/// Each role killed and stopped once, in the middle of decoding; `asterism chaos --rounds 30` does so in every phase.
#[test]
fn every_fault_leaves_the_tokens_alone() {
    for round in rounds_of_chaos(6, &["--phase", "middle-token", "--tokens", "4k"]) {
        let detected = round["detected_s"].as_f64().expect("noticed");
        // A hung supervisor is noticed after 2 s and has to start.
        let bound = if round["role"] == "supervisor" { 5.0 } else { 2.5 };
        assert!(detected < bound, "{round:#}");
    }
}

/// The context of each round is encoded for it, however often the same was asked about: the fault comes while it is.
#[test]
fn faults_come_while_contexts_are_encoded() {
    for round in rounds_of_chaos(2, &["--phase", "encoding", "--role", "context", "--tokens", "8k"]) {
        assert!(round["detected_s"].is_f64() && round["recovered_s"].is_f64(), "the job went on elsewhere: {round:#}");
    }
}

const SESSIONS: usize = 20;
const QUESTIONS: usize = 200;
const ASKERS: usize = 4;
const SOAK: Duration = Duration::from_secs(600);
const SAMPLE_EVERY: Duration = Duration::from_secs(30);

/// Ten minutes: `cargo test -p tests --release --test survival soak -- --ignored --nocapture`
#[test]
#[ignore = "takes ten minutes"]
fn soak_of_sessions_with_a_host_killed_half_way() {
    let cluster = Cluster::start(BINARY, &ClusterSpec { method: SURVIVING, ..embedded(3) });
    for session in 0..SESSIONS {
        let document = format!("The special magic number for oak-{session} is {}. ", 1000 + session).repeat(60);
        fs::write(cluster.folder().join("document.txt"), document).expect("written");
        let name = format!("book-{session}");
        let made = cluster.run(&["session", "create", "--context", "document.txt", "--name", &name, "--ttl", "1h"]);
        assert_eq!(made.status.code(), Some(0), "{}", String::from_utf8_lossy(&made.stderr));
    }
    let (asked, answers) = (AtomicUsize::new(0), Mutex::new(vec![None; SESSIONS]));
    let started = Instant::now();
    let mut samples = Vec::new();
    thread::scope(|scope| {
        let (done, ended) = mpsc::channel::<()>();
        for _ in 0..ASKERS {
            let (cluster, asked, answers, done) = (&cluster, &asked, &answers, done.clone());
            scope.spawn(move || {
                let _done = done;
                // All questions, and then for as long as memory is watched.
                while asked.load(Ordering::SeqCst) < QUESTIONS || started.elapsed() < SOAK {
                    let number = asked.fetch_add(1, Ordering::SeqCst);
                    if number == QUESTIONS / 2 {
                        cluster.kill("context-1");
                    }
                    let tokens = ask(cluster, number % SESSIONS);
                    let mut answers = answers.lock().expect("no asker panicked");
                    let first = answers[number % SESSIONS].get_or_insert_with(|| tokens.clone());
                    assert_eq!(*first, tokens, "question {number}");
                }
            });
        }
        drop(done);
        while ended.recv_timeout(SAMPLE_EVERY) == Err(mpsc::RecvTimeoutError::Timeout) {
            let resident = resident_kib(&cluster);
            println!("{:4.0} s: {} KiB resident, {asked:?} questions", started.elapsed().as_secs_f64(), resident);
            samples.push(resident);
        }
    });
    assert!(asked.load(Ordering::SeqCst) >= QUESTIONS);
    let settled = &samples[samples.len() / 2..];
    let (least, most) = (settled.iter().min().expect("samples"), settled.iter().max().expect("samples"));
    assert!(most - least < least / 10, "memory is not flat: {samples:?} KiB");
}

/// The tokens of a session's answer.
fn ask(cluster: &Cluster, session: usize) -> Value {
    let query = format!("What is the special magic number for oak-{session}?");
    let name = format!("book-{session}");
    let output = cluster.run(&["session", "ask", &name, &query, "--max-tokens", "8", "-o", "json"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let status: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_ne!(status["tokens"], json!([]), "{status:#}");
    status["tokens"].clone()
}

/// Resident memory of parent, supervisor and hosts; one that is being started counts nothing.
fn resident_kib(cluster: &Cluster) -> u64 {
    let hosts = cluster.try_status().map(|status| status["hosts"].as_array().cloned().unwrap_or_default());
    let hosts = hosts.unwrap_or_default().iter().filter_map(|host| host["pid"].as_u64()).collect::<Vec<_>>();
    let of = |pid: u64| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    };
    [cluster.parent(), cluster.supervisor()].into_iter().chain(hosts).filter_map(of).sum()
}
