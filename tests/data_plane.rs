//! Clusters that are to move tensors over UCX and cannot: where they may take QUIC they do and say why, else they end at their
//! start with the cause. Built with the feature `ucx` only.

use std::{
    fs,
    net::SocketAddr,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tests::{Cluster, ClusterSpec, DEADLINE};

const BINARY: &str = env!("CARGO_BIN_EXE_asterism-under-test");
/// Far less than the time that `up` gives hosts to become ready.
const SOON: Duration = Duration::from_secs(30);

/// Something that stands in UCX's way here, and words of its cause and its remedy.
struct Obstacle {
    /// What a shell does before the command.
    shell: &'static str,
    /// Of `[transport]`.
    interfaces: &'static str,
    words: [&'static str; 2],
}

const OBSTACLES: [Obstacle; 4] = [
    Obstacle {
        shell: "",
        interfaces: "interfaces = [\"nonexistent0\"]\n",
        words: ["no network interface \"nonexistent0\"", "use some of"],
    },
    Obstacle {
        shell: "export UCX_TLS=nonsense;",
        interfaces: "",
        words: ["\"nonsense\" of UCX_TLS=\"nonsense\" is no transport", "use some of all, self, tcp"],
    },
    Obstacle {
        shell: "export UCX_TLS=rc; ulimit -l 64;",
        interfaces: "",
        words: ["this process may lock 65536", "ulimit -l unlimited"],
    },
    Obstacle {
        shell: "export UCX_TLS=cuda_copy;",
        interfaces: "",
        words: ["no transport of \"cuda_copy\" works", "name transports and interfaces that this host has"],
    },
];

/// One context host and a query host, each on a node of its own.
fn cluster(data: &str, interfaces: &str) -> Cluster {
    let spec = ClusterSpec { contexts: 1, model: None, method: "[attention.dense]", listen: "127.0.0.1:0".into() };
    Cluster::written(BINARY, &spec, |text| {
        text.replace("[api]", &format!("[transport]\ndata = \"{data}\"\n{interfaces}\n[api]"))
            .replace("[[node]]", "[[node]]\nname = \"other\"\naddress = \"127.0.0.1\"\n\n[[node]]")
            .replace("role = \"context\"", "node = \"local\"\nrole = \"context\"")
            .replace("role = \"query\"", "node = \"other\"\nrole = \"query\"")
    })
}

/// A command on the cluster that a shell runs behind `shell`.
fn behind(cluster: &Cluster, shell: &str, arguments: &[&str]) -> Command {
    let command = cluster.command(arguments);
    let mut whole = Command::new("sh");
    whole.args(["-c", &format!("{shell} exec \"$0\" \"$@\"")]).arg(command.get_program()).args(command.get_args());
    whole.current_dir(cluster.folder()).stdin(Stdio::null()).env_remove("ASTERISM_SERVER").env("NO_COLOR", "1");
    whole
}

fn answers(cluster: &Cluster) {
    let case = json!({"context_ids": [5, 6, 7, 8], "query_ids": [9], "max_new_tokens": 2});
    let status = cluster.answer_tokens(&case, json!({"dense": {}}));
    assert_eq!(status["state"], "SUCCEEDED", "{status:#}");
}

/// Why the links of the query host, which opens them, do not go over UCX, once they are known.
fn why(cluster: &Cluster) -> String {
    let links = |status: &Value| {
        let hosts = status["hosts"].as_array().expect("hosts");
        let query = hosts.iter().find(|host| host["name"] == "query-0").expect("a query host");
        query["data_links"].as_array().filter(|links| !links.is_empty()).cloned()
    };
    let status = cluster.wait_for("links", |status| links(status).is_some());
    let links = links(&status).expect("there are some");
    assert!(links.len() == 1 && links[0]["transport"] == "quic", "{links:?}");
    let counted = "asterism_transport_fallbacks_total{host=\"query-0\"} 1";
    assert!(cluster.metrics().lines().any(|line| line == counted), "{}", cluster.metrics());
    links[0]["why"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn what_ucx_cannot_have_ends_a_cluster_at_its_start() {
    for Obstacle { shell, interfaces, words } in OBSTACLES {
        let cluster = cluster("ucx", interfaces);
        for command in
            [&["validate"][..], &["doctor"], &["up", "--detach"], &["node", "--join", "127.0.0.1:1", "--name", "local"]]
        {
            let started = Instant::now();
            let output = behind(&cluster, shell, command).output().expect("a shell");
            let printed =
                [output.stdout, output.stderr].map(|printed| String::from_utf8_lossy(&printed).into_owned()).concat();
            assert_eq!(output.status.code(), Some(3), "{command:?}: {printed}");
            assert!(words.iter().all(|words| printed.contains(words)), "{command:?}: {printed}");
            assert!(started.elapsed() < SOON, "{command:?} took {:?}", started.elapsed());
        }
        assert!(cluster.try_status().is_none(), "nothing is left running");
    }
}

/// Room for one host in shared memory, which is all that a command finds.
const LITTLE_ROOM: &str =
    "exec unshare -rm sh -c 'mount -t tmpfs -o size=24m none /dev/shm && exec \"$0\" \"$@\"' \"$0\" \"$@\";";

#[test]
fn shared_memory_for_some_hosts_only_ends_a_cluster_at_its_start() {
    let spec = ClusterSpec { contexts: 3, model: None, method: "[attention.dense]", listen: "127.0.0.1:0".into() };
    let cluster = Cluster::written(BINARY, &spec, |text| text.replace("[api]", "[transport]\ndata = \"ucx\"\n\n[api]"));
    if !behind(&cluster, LITTLE_ROOM, &["version"]).output().is_ok_and(|output| output.status.success()) {
        return tests::skipped("no mount of one's own may be made here");
    }
    let run = |command: &[&str]| {
        let output = behind(&cluster, LITTLE_ROOM, command).output().expect("a shell");
        (
            output.status.code(),
            [output.stdout, output.stderr].map(|printed| String::from_utf8_lossy(&printed).into_owned()).concat(),
        )
    };
    let (code, printed) = run(&["validate"]);
    assert_eq!(code, Some(0), "one has room: {printed}");
    for command in [&["up", "--detach"][..], &["node", "--join", "127.0.0.1:1"]] {
        let started = Instant::now();
        let (code, printed) = run(command);
        assert_eq!(code, Some(3), "{command:?}: {printed}");
        let words = ["for host 2 of 4 on this machine", "see that", "/dev/shm"];
        assert!(words.iter().all(|words| printed.contains(words)), "{command:?}: {printed}");
        assert!(started.elapsed() < SOON, "{command:?} took {:?}", started.elapsed());
    }
    assert!(cluster.try_status().is_none(), "nothing is left running");
}

#[test]
fn what_ucx_cannot_have_is_told_where_quic_takes_its_place() {
    for Obstacle { shell, interfaces, words } in OBSTACLES {
        let cluster = cluster("auto", interfaces);
        let doctor = behind(&cluster, shell, &["doctor"]).output().expect("a shell");
        let doctor = String::from_utf8_lossy(&doctor.stdout).into_owned();
        assert!(doctor.contains("warning    UCX: ") && words.iter().all(|words| doctor.contains(words)), "{doctor}");
        let up = behind(&cluster, shell, &["up", "--detach"]).output().expect("a shell");
        assert!(up.status.success(), "{}", String::from_utf8_lossy(&up.stderr));
        answers(&cluster);
        let why = why(&cluster);
        assert!(words.iter().all(|words| why.contains(words)), "{why}");
        let table = cluster.run(&["status"]);
        assert!(String::from_utf8_lossy(&table.stdout).contains(words[0]), "{table:?}");
    }
}

/// Bytes from anybody would be taken for a peer's there.
#[test]
fn a_host_that_was_told_of_no_interface_has_no_ports_but_those_of_quic() {
    for data in ["auto", "ucx"] {
        // On one node, where nothing has to leave the machine.
        let spec = ClusterSpec { contexts: 1, model: None, method: "[attention.dense]", listen: "127.0.0.1:0".into() };
        let cluster = Cluster::written(BINARY, &spec, |text| {
            text.replace("[api]", &format!("[transport]\ndata = \"{data}\"\n\n[api]"))
        });
        assert!(cluster.run(&["up", "--detach"]).status.success());
        answers(&cluster);
        let status = cluster.wait_for("links", |status| status["hosts"].to_string().contains("\"transport\":\"ucx\""));
        for host in status["hosts"].as_array().expect("hosts") {
            let process = host["pid"].as_u64().expect("a process");
            assert_eq!(listening(process), Vec::<String>::new(), "{data}: {host}");
            let address = host["address"].as_str().expect("it has reported");
            assert!(address.parse::<SocketAddr>().is_ok(), "{data}: {address}");
        }
    }
}

/// Where a process listens for TCP connections, as the system writes it.
fn listening(process: u64) -> Vec<String> {
    let files = fs::read_dir(format!("/proc/{process}/fd")).expect("it runs").flatten();
    let own: Vec<String> =
        files.filter_map(|file| Some(fs::read_link(file.path()).ok()?.to_string_lossy().into_owned())).collect();
    assert!(own.iter().any(|file| file.starts_with("socket:")), "{own:?}");
    let tables =
        ["tcp", "tcp6"].map(|table| fs::read_to_string(format!("/proc/{process}/net/{table}")).expect("a table"));
    let lines = tables.iter().flat_map(|table| table.lines().skip(1));
    let fields = lines.map(|line| line.split_whitespace().collect::<Vec<_>>());
    let listening = fields.filter(|fields| fields[3] == "0A" && own.contains(&format!("socket:[{}]", fields[9])));
    listening.map(|fields| fields[1].to_owned()).collect()
}

/// Ends the process however the test ends.
struct Ending(Child);

impl Drop for Ending {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_host_that_alone_has_ucx_says_that_its_peer_does_not() {
    let cluster = cluster("auto", "");
    let start = |shell: &str, arguments: &[&str]| {
        let mut command = behind(&cluster, shell, arguments);
        Ending(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("a shell"))
    };
    let _supervisor = start("", &["supervisor"]);
    let (record, started) = (cluster.folder().join("data/supervisor.json"), Instant::now());
    while !record.exists() {
        assert!(started.elapsed() < DEADLINE, "the supervisor serves");
        std::thread::yield_now();
    }
    let listen = cluster.record()["listen"].as_str().expect("an address").to_owned();
    let _context = start("export UCX_TLS=nonsense;", &["node", "--join", &listen, "--name", "local"]);
    let _query = start("", &["node", "--join", &listen, "--name", "other"]);
    cluster.wait_for("all hosts", |status| status["ready"] == true);
    answers(&cluster);
    assert_eq!(why(&cluster), "ucx: the peer does not offer it");
    cluster.run(&["down"]);
}
