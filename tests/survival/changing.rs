//! A cluster whose file, hosts and machines change while it answers.

use std::{
    fs,
    net::UdpSocket,
    path::PathBuf,
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
};

use serde_json::{Value, json};
use tests::{Cluster, ClusterSpec};

use super::{
    BINARY, Ending, embedded, eventually, ready, signal, start,
    stopping::{host, shown, submitted, tokens},
};

/// Blocks of one length, so that a plan is the same for any number of hosts.
const SURVIVING: &str =
    "[supervisor]\nrecovery = \"redistribute\"\nmax_restarts = 1000\n\n[attention.star]\nblock_tokens = 512";

fn words(output: &std::process::Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat()
}

fn is_there(status: &Value, name: &str) -> bool {
    status["hosts"].as_array().is_some_and(|hosts| hosts.iter().any(|host| host["name"] == name))
}

fn is_ready(status: &Value, name: &str) -> bool {
    is_there(status, name) && host(status, name)["health"] == "ready"
}

fn log_of(cluster: &Cluster, process: &str) -> String {
    fs::read_to_string(cluster.folder().join(format!("data/logs/{process}.log"))).unwrap_or_default()
}

/// Writes another cluster file beside the cluster's own, and applies it.
fn apply(cluster: &Cluster, text: &str, more: &[&str]) -> std::process::Output {
    fs::write(cluster.folder().join("next.toml"), text).expect("a file");
    cluster.run(&[&["config", "apply", "next.toml"], more].concat())
}

#[test]
fn what_a_cluster_takes_while_it_runs_and_what_it_refuses_by_its_key() {
    let cluster = Cluster::start(BINARY, &ClusterSpec { method: SURVIVING, ..embedded(2) });
    submitted(&cluster, "before");
    let expected = tokens(&cluster, "before");
    let first = fs::read_to_string(cluster.file()).expect("its file");
    assert!(words(&apply(&cluster, &first, &[])).contains("the cluster is as the file says"));

    let refused = first.replace("[[node]]", "[model]\ndtype = \"bf16\"\n\n[[node]]").replace("= 1000", "= 7");
    let dry = words(&apply(&cluster, &refused, &["--dry-run"]));
    assert!(dry.contains("model.dtype") && dry.contains("2 of 2 changes need a restart"), "{dry}");
    let output = apply(&cluster, &refused, &[]);
    assert_eq!(output.status.code(), Some(2), "{}", words(&output));
    assert!(words(&output).contains("model.dtype: \"f32\" -> \"bf16\", needs `asterism down`"), "{}", words(&output));

    let second = first
        .replace("admin_listen", "max_queue = 1\nadmin_listen")
        .replace("[[node]]", "[observability]\nlog = \"debug\"\n\n[[node]]")
        .replace("name = \"context-1\"\n", "name = \"context-1\"\nlabels = { rack = \"a\" }\n")
        + "\n[[host]]\nname = \"context-2\"\nrole = \"context\"\n";
    let dry = words(&apply(&cluster, &second, &["--dry-run"]));
    assert!(dry.contains("4 changes, none of which needs a restart"), "{dry}");
    assert!(!is_there(&cluster.status(), "context-2"), "nothing was changed");
    let output = apply(&cluster, &second, &[]);
    assert!(words(&output).contains("changed: 4"), "{}", words(&output));
    cluster.wait_for("the new host", |status| ready(status) && is_ready(status, "context-2"));
    eventually("hosts that log otherwise", || {
        ["context-0", "context-1", "query-0"]
            .iter()
            .all(|name| log_of(&cluster, name).contains("this is logged from now on"))
    });
    let labelled = json!({"context": "The sky is blue.", "query": "What is the sky?", "max_tokens": 4,
        "placement": {"labels": {"rack": "a"}}});
    let sent = ureq::post(format!("{}/api/v1/jobs", cluster.server())).send_json(&labelled).expect("a host has it");
    let sent: Value = sent.into_body().read_json().expect("JSON");
    tokens(&cluster, sent["id"].as_str().expect("an id"));

    let pid = cluster.supervisor();
    signal("-KILL", pid);
    eventually("another supervisor", || shown(&cluster, "/livez").is_some() || cluster.supervisor() != pid);
    cluster.wait_for("the host that was added", |status| ready(status) && is_ready(status, "context-2"));
    submitted(&cluster, "after");
    assert_eq!(tokens(&cluster, "after"), expected);

    // Back to the first file: the host goes in order.
    let going = cluster.pid("context-2");
    let output = apply(&cluster, &first, &[]);
    assert!(words(&output).contains("host.context-2"), "{}", words(&output));
    cluster.wait_for("the host to go", |status| ready(status) && !is_there(status, "context-2"));
    eventually("its process to end", || !super::lives(going));
}

/// Machines of one cluster: 127.0.0.N each, with a folder and a cluster file of its own.
struct Machines {
    cluster: Cluster,
}

impl Machines {
    /// `query-0` and `context-0` on the supervisor's machine, `context-1` on another one, `first`.
    fn new() -> Self {
        Self::at("127.0.0.1:0".into())
    }

    /// The same, with a supervisor that listens there.
    fn at(listen: String) -> Self {
        let method = "[supervisor]\nmax_restarts = 1000\n\n[attention.star]\nblock_tokens = 512\n\n[security]\njoin_listen = \"127.0.0.1:0\"";
        let cluster = Cluster::written(BINARY, &ClusterSpec { method, listen, ..embedded(2) }, |text| {
            let first = "[[node]]\nname = \"first\"\naddress = \"127.0.0.2\"\n\n[[host]]";
            let text = text.replacen("[[host]]", first, 1).replace("role = \"", "node = \"local\"\nrole = \"");
            text.replace("name = \"context-1\"\nnode = \"local\"", "name = \"context-1\"\nnode = \"first\"")
        });
        Self { cluster }
    }

    fn listen(&self) -> String {
        self.cluster.record()["listen"].as_str().expect("an address").to_owned()
    }

    /// The agent of another machine, which joins with a token and the same cluster file.
    fn node(&self, name: &str, more: &[&str]) -> Ending {
        let made = self.cluster.run(&["cert", "token", "--node", name, "-o", "json"]);
        let made: Value = serde_json::from_slice(&made.stdout).unwrap_or_else(|_| panic!("{}", words(&made)));
        let folder: PathBuf = self.cluster.folder().join(name);
        fs::create_dir(&folder).expect("a folder");
        let token = folder.join("join-token");
        fs::write(&token, made["token"].as_str().expect("a token")).expect("a file");
        let text = fs::read_to_string(self.cluster.file()).expect("a file");
        let data = self.cluster.folder().join("data").display().to_string();
        let own = text.replace(&data, &folder.join("data").display().to_string());
        fs::write(folder.join("cluster.toml"), own).expect("a file");
        let mut command = Command::new(BINARY);
        command.args(["node", "--join", &self.listen(), "--name", name, "-f"]).arg(folder.join("cluster.toml"));
        command.arg("--token-file").arg(token).args(["--token-from", made["join"].as_str().expect("an address")]);
        let log = fs::File::create(folder.join("node.log")).expect("a log");
        command.args(more).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).env_remove("ASTERISM_SERVER");
        Ending(command.spawn().expect("the binary under test"))
    }

    /// The supervisor, once it serves.
    fn supervisor(&self) -> Ending {
        let supervisor = start(&self.cluster, &["supervisor"]);
        eventually("the supervisor", || {
            let pid = self.cluster.folder().join("data/supervisor.json").exists().then(|| self.cluster.supervisor());
            pid == Some(u64::from(supervisor.0.id())) && self.cluster.try_status().is_some()
        });
        supervisor
    }
}

#[test]
fn a_third_machine_comes_and_the_first_goes_under_load() {
    let machines = Machines::new();
    let _supervisor = machines.supervisor();
    let cluster = &machines.cluster;
    let _local = start(cluster, &["node", "--join", &machines.listen(), "--name", "local"]);
    let first = machines.node("first", &[]);
    cluster.wait_for("two machines", ready);
    submitted(cluster, "undisturbed");
    let expected = tokens(cluster, "undisturbed");
    let (ends, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
    let asked = |least: usize| {
        let so_far = answered.load(Ordering::Relaxed);
        eventually("jobs to go on", || answered.load(Ordering::Relaxed) >= so_far + least);
    };
    let third = thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                let id = format!("loop-{}", answered.load(Ordering::Relaxed));
                submitted(cluster, &id);
                assert_eq!(tokens(cluster, &id), expected, "{id}");
                answered.fetch_add(1, Ordering::Relaxed);
            }
        });
        let third = machines.node("west", &["--hosts", "context, device=cpu", "--address", "127.0.0.3"]);
        cluster.wait_for("the third machine", |status| is_ready(status, "west-context-0"));
        asked(2);
        let text = fs::read_to_string(cluster.file()).expect("its file");
        let node = "[[node]]\nname = \"first\"\naddress = \"127.0.0.2\"\n\n";
        let of_first = "[[host]]\nname = \"context-1\"\nnode = \"first\"\nrole = \"context\"\n\n";
        assert!(text.contains(node) && text.contains(of_first), "{text}");
        let text = text.replace(node, "").replace(of_first, "");
        let going = cluster.pid("context-1");
        let output = apply(cluster, &text, &[]);
        assert!(output.status.success(), "{}", words(&output));
        cluster.wait_for("the first machine to go", |status| !is_there(status, "context-1"));
        eventually("its host to end", || !super::lives(going));
        fs::write(cluster.file(), text).expect("what is applied is also kept");
        asked(2);
        ends.store(true, Ordering::Relaxed);
        third
    });
    // A node that came by its token goes by its name.
    let text = fs::read_to_string(cluster.file()).expect("its file");
    let output = apply(cluster, &text, &["--without", "west"]);
    assert!(output.status.success(), "{}", words(&output));
    cluster.wait_for("the third machine to go", |status| !is_there(status, "west-context-0"));
    submitted(cluster, "afterwards");
    assert_eq!(tokens(cluster, "afterwards"), expected);
    drop((first, third));
}

#[test]
fn a_machine_that_is_in_no_file_is_there_again_after_the_supervisor_was_killed() {
    let free = UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port");
    let machines = Machines::at(free.to_string());
    let supervisor = machines.supervisor();
    let cluster = &machines.cluster;
    let _local = start(cluster, &["node", "--join", &machines.listen(), "--name", "local"]);
    let _first = machines.node("first", &[]);
    let _west = machines.node("west", &["--hosts", "context, device=cpu", "--address", "127.0.0.3"]);
    cluster.wait_for("all machines", |status| ready(status) && is_ready(status, "west-context-0"));
    assert!(!fs::read_to_string(cluster.file()).expect("its file").contains("west"));
    let pid = cluster.pid("west-context-0");
    drop(supervisor);
    let _supervisor = machines.supervisor();
    let status = cluster.wait_for("all machines again", |status| ready(status) && is_ready(status, "west-context-0"));
    assert_eq!(host(&status, "west-context-0")["pid"], pid, "its host went on");
    submitted(cluster, "after");
    tokens(cluster, "after");
}

#[test]
fn a_node_of_its_own_is_taken_with_a_token_of_its_name_and_with_names_that_are_free() {
    let machines = Machines::new();
    let _supervisor = machines.supervisor();
    let refused = |node: &str| words(&machines.cluster.run(&["cert", "token", "--node", node]));
    assert!(refused("context-0").contains("context-0"), "the name of a host");
    let mut node = machines.node("west", &["--hosts", "context", "--hosts", "context, port=0, role=query"]);
    let ended = node.0.wait().expect("it ends");
    let said = fs::read_to_string(machines.cluster.folder().join("west/node.log")).expect("a log");
    assert_eq!(ended.code(), Some(2), "{said}");
    assert!(said.contains("--hosts"), "{said}");
}
