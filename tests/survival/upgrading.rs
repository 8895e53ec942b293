//! Processes of another build beside those of this one, as there are while a cluster is upgraded: `ASTERISM_OTHER_BINARY` names it.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::Value;
use tests::{Cluster, ClusterSpec, skipped};

use super::{
    BINARY, Ending, SURVIVING, embedded, eventually, ready, signal,
    stopping::{host, submitted, tokens},
};

/// The binary of the other build; none: there is none here.
fn other() -> Option<PathBuf> {
    let named = env::var_os("ASTERISM_OTHER_BINARY").map(PathBuf::from);
    if named.is_none() {
        skipped("ASTERISM_OTHER_BINARY names no binary of another build, such as the last release's");
    }
    named
}

fn version(binary: &Path) -> String {
    let printed = Command::new(binary).arg("version").output().expect("the other binary runs");
    String::from_utf8(printed.stdout).expect("UTF-8")
}

/// A supervisor or an agent, of a build.
fn started(binary: &Path, cluster: &Cluster, arguments: &[&str]) -> Ending {
    let log = std::fs::File::options().create(true).append(true).open(cluster.folder().join("mixed.log"));
    let mut command = Command::new(binary);
    command.args(arguments).arg("-f").arg(cluster.file()).env_remove("ASTERISM_SERVER");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log.expect("a log"));
    Ending(command.spawn().expect("it runs"))
}

/// A cluster of two machines, 127.0.0.1 and 127.0.0.2, of one data_dir each in one file: nodes differ by their lock alone.
fn two_machines() -> Cluster {
    Cluster::written(BINARY, &ClusterSpec { method: SURVIVING, ..embedded(2) }, |text| {
        let other = "[[node]]\nname = \"other\"\naddress = \"127.0.0.2\"\n\n[[host]]";
        let text = text.replacen("[[host]]", other, 1).replace("role = \"", "node = \"local\"\nrole = \"");
        text.replace("name = \"context-1\"\nnode = \"local\"", "name = \"context-1\"\nnode = \"other\"")
    })
}

fn listen(cluster: &Cluster) -> String {
    cluster.record()["listen"].as_str().expect("an address").to_owned()
}

fn serves(cluster: &Cluster, supervisor: &Ending) {
    eventually("the supervisor", || {
        let pid = cluster.folder().join("data/supervisor.json").exists().then(|| cluster.supervisor());
        pid == Some(u64::from(supervisor.0.id())) && cluster.try_status().is_some()
    });
}

/// Old hosts under a new supervisor and new hosts under an old one answer with the same tokens, sessions and jobs go on, and what the
/// supervisor says that only one of them knows is not said to the other.
#[test]
fn two_builds_that_follow_each_other_are_one_cluster() {
    let Some(old) = other() else { return };
    let new = PathBuf::from(BINARY);
    println!("{}{}", version(&old), version(&new));
    let mut expected = Value::Null;
    for (supervisor_of, node_of) in [(&old, &old), (&old, &new), (&new, &old), (&new, &new)] {
        let cluster = two_machines();
        let supervisor = started(supervisor_of, &cluster, &["supervisor"]);
        serves(&cluster, &supervisor);
        let join = listen(&cluster);
        let _local = started(supervisor_of, &cluster, &["node", "--join", &join, "--name", "local"]);
        let _other = started(node_of, &cluster, &["node", "--join", &join, "--name", "other"]);
        cluster.wait_for("hosts of both builds", ready);
        submitted(&cluster, "question");
        let answered = tokens(&cluster, "question");
        if expected.is_null() {
            expected = answered;
        } else {
            assert_eq!(answered, expected, "supervisor {}, node {}", supervisor_of.display(), node_of.display());
        }
    }
}

/// The order of docs/operations.md: the supervisor first, which reads the journal of the old one and finds its hosts; then a machine after
/// the other.
#[test]
fn a_cluster_is_upgraded_machine_by_machine_while_it_answers() {
    let Some(old) = other() else { return };
    let new = PathBuf::from(BINARY);
    let cluster = two_machines();
    let supervisor = started(&old, &cluster, &["supervisor"]);
    serves(&cluster, &supervisor);
    let join = listen(&cluster);
    let local = started(&old, &cluster, &["node", "--join", &join, "--name", "local"]);
    let other = started(&old, &cluster, &["node", "--join", &join, "--name", "other"]);
    cluster.wait_for("the old hosts", ready);
    submitted(&cluster, "old");
    let expected = tokens(&cluster, "old");
    let before = cluster.status();

    submitted(&cluster, "through-the-supervisor");
    signal("-TERM", u64::from(supervisor.0.id()));
    drop(supervisor);
    let supervisor = started(&new, &cluster, &["supervisor", "--listen", &join]);
    serves(&cluster, &supervisor);
    let after = cluster.wait_for("the old hosts under the new supervisor", ready);
    for name in ["context-0", "context-1", "query-0"] {
        assert_eq!(host(&before, name)["pid"], host(&after, name)["pid"], "{name} was left alone");
    }
    assert_eq!(tokens(&cluster, "through-the-supervisor"), expected);
    assert_eq!(tokens(&cluster, "old"), expected, "the journal is read");

    let mut agents = Vec::new();
    for (agent, name) in [(other, "other"), (local, "local")] {
        let id = format!("through-{name}");
        submitted(&cluster, &id);
        signal("-TERM", u64::from(agent.0.id()));
        let mut agent = agent;
        agent.0.wait().expect("it ends");
        agents.push(started(&new, &cluster, &["node", "--join", &join, "--name", name]));
        cluster.wait_for("its hosts to be back", ready);
        assert_eq!(tokens(&cluster, &id), expected, "{id}");
    }
    submitted(&cluster, "new");
    assert_eq!(tokens(&cluster, "new"), expected);
}
