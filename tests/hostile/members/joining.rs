//! Machines that join wrongly first and rightly then.

use std::{
    fs,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, SystemTime},
};

use asterism_transport::{
    certificates::{CertificateAuthority, Credentials, MemberRole, Validity},
    join::{self, JoinAddress, JoinToken},
};
use tests::{Cluster, ClusterSpec};

const BINARY: &str = env!("CARGO_BIN_EXE_asterism-under-test");

/// A cluster with `context-1` on a machine `far`, whose data lie in a folder of their own.
pub struct Machines {
    pub cluster: Cluster,
    far: PathBuf,
}

/// A node's agent, which ends with the test.
pub struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}

impl Machines {
    pub fn new() -> Self {
        let method = "[attention.star]\nblock_tokens = 64\n\n[security]\njoin_listen = \"127.0.0.1:0\"";
        let spec = ClusterSpec { contexts: 2, model: None, method, listen: "127.0.0.1:0".into() };
        let cluster = Cluster::written(BINARY, &spec, |text| {
            let far = "[[node]]\nname = \"far\"\naddress = \"127.0.0.2\"\n\n[[host]]";
            let text = text.replacen("[[host]]", far, 1).replace("role = \"", "node = \"local\"\nrole = \"");
            text.replace("name = \"context-1\"\nnode = \"local\"", "name = \"context-1\"\nnode = \"far\"")
        });
        let far = cluster.folder().join("far");
        fs::create_dir(&far).expect("a folder");
        let text = fs::read_to_string(cluster.file()).expect("a file");
        let data = cluster.folder().join("data").display().to_string();
        fs::write(far.join("cluster.toml"), text.replace(&data, &far.join("data").display().to_string()))
            .expect("a file");
        Self { cluster, far }
    }

    /// The supervisor alone, with the hosts of its own machine.
    pub fn supervisor(&self) -> (Agent, Agent) {
        let log = |name: &str| fs::File::create(self.cluster.folder().join(name)).expect("a file");
        let supervisor = self.cluster.command(&["supervisor"]).stderr(log("supervisor.log")).spawn();
        let supervisor = Agent(supervisor.expect("it runs"));
        self.cluster.wait_for("the supervisor", |_| true);
        let join = self.listen();
        let node = self.cluster.command(&["node", "--join", &join, "--name", "local"]).stderr(log("node.log")).spawn();
        (supervisor, Agent(node.expect("it runs")))
    }

    pub fn listen(&self) -> String {
        self.cluster.record()["listen"].as_str().expect("an address").to_owned()
    }

    /// A one-time token for the far machine in a file, and the address that takes it.
    pub fn token(&self) -> (String, String) {
        self.token_for("far")
    }

    fn token_for(&self, node: &str) -> (String, String) {
        let made = self.cluster.run(&["cert", "token", "--node", node, "-o", "json"]);
        let made: serde_json::Value = serde_json::from_slice(&made.stdout).expect("JSON");
        let file = self.far.join("join-token");
        fs::write(&file, made["token"].as_str().expect("a token")).expect("a file");
        (file.display().to_string(), made["join"].as_str().expect("an address").to_owned())
    }

    fn joining(&self, token: Option<&(String, String)>) -> Command {
        let mut command = Command::new(BINARY);
        command.args(["node", "--join", &self.listen(), "--name", "far", "-f"]).arg(self.far.join("cluster.toml"));
        if let Some((file, from)) = token {
            command.args(["--token-file", file, "--token-from", from]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).env_remove("ASTERISM_SERVER");
        command
    }

    /// Exit code and words of a node that does not get as far as to serve.
    fn refused(&self, token: Option<&(String, String)>) -> (Option<i32>, String) {
        let ended = self.joining(token).stderr(Stdio::piped()).output().expect("it runs");
        (ended.status.code(), String::from_utf8_lossy(&ended.stderr).into_owned())
    }

    fn certificates(&self) -> PathBuf {
        self.far.join("data/certificates")
    }

    fn why(&self) -> String {
        let status = self.cluster.status();
        let host = &status["hosts"][1];
        assert_eq!(host["name"], "context-1");
        [&host["absent"], &host["cause"]].map(|part| part.as_str().unwrap_or_default()).join(": ")
    }

    pub fn joins(&self, token: &(String, String)) {
        let log = fs::File::create(self.far.join("node.log")).expect("a file");
        let _agent = Agent(self.joining(Some(token)).stderr(log).spawn().expect("it runs"));
        self.cluster.wait_for("the far machine", |status| status["hosts"][1]["health"] == "ready");
    }
}

/// What an earlier program made of a node without a token: a CA of the cluster's name, and certificates of it.
fn own_authority(folder: &Path, keep_key: bool) {
    let validity = Validity::starting(SystemTime::now(), Duration::from_secs(3600));
    let authority = CertificateAuthority::create("scenario", validity).expect("a name");
    authority.save(folder).expect("a folder");
    for member in [(MemberRole::Node, "far"), (MemberRole::Context, "context-1")] {
        let issued = Credentials::issue(&authority, member, validity).expect("a name");
        issued.save(&folder.join("hosts").join(member.1)).expect("a folder");
    }
    if !keep_key {
        fs::remove_file(folder.join("ca-key.pem")).expect("it is there");
    }
}

#[test]
fn a_node_without_certificates_makes_none_and_joins_once_it_has_a_token() {
    let machines = Machines::new();
    let _running = machines.supervisor();
    assert!(machines.why().contains("never seen; node far has not joined"), "{}", machines.why());
    let (code, words) = machines.refused(None);
    assert_eq!(code, Some(6), "{words}");
    assert!(words.contains("has no certificates") && words.contains("asterism cert token"), "{words}");
    assert!(!machines.certificates().join("ca.pem").exists(), "a CA of its own");
    let token = machines.token();
    machines.joins(&token);
    // The same command again, as a service manager gives it: the token is spent, and nobody needs it.
    machines.joins(&token);
}

#[test]
fn a_token_wins_over_certificates_of_another_authority() {
    let machines = Machines::new();
    let _running = machines.supervisor();
    own_authority(&machines.certificates(), false);
    {
        let log = fs::File::create(machines.far.join("node.log")).expect("a file");
        let _stranger = Agent(machines.joining(None).stderr(log).spawn().expect("it runs"));
        machines.cluster.wait_for("why it is not there", |status| {
            status["hosts"][1]["cause"].as_str().is_some_and(|cause| cause.contains("was refused"))
        });
        let printed = machines.cluster.run(&["status"]);
        let printed = String::from_utf8_lossy(&printed.stdout).into_owned();
        assert!(printed.contains("never seen") && printed.contains("127.0.0.2 was refused"), "{printed}");
    }
    machines.joins(&machines.token());
}

#[test]
fn an_authority_that_was_made_here_is_named_and_not_replaced() {
    let machines = Machines::new();
    let _running = machines.supervisor();
    own_authority(&machines.certificates(), true);
    let token = machines.token();
    let (code, words) = machines.refused(Some(&token));
    assert_eq!(code, Some(6), "{words}");
    let folder = machines.certificates();
    assert!(words.contains(&format!("rm -r {}", folder.display())), "{words}");
    fs::remove_dir_all(folder).expect("as told");
    machines.joins(&token);
}

#[test]
fn a_token_is_spent_by_its_node_from_its_address_for_hosts_that_are_not_there() {
    let machines = Machines::new();
    let _running = machines.supervisor();
    machines.cluster.wait_for("the near hosts", |status| status["hosts"][0]["health"] == "ready");
    let unbound = machines.cluster.run(&["cert", "token"]);
    assert_eq!(unbound.status.code(), Some(2), "a token is for one of two nodes");
    let taken = machines.cluster.run(&["cert", "token", "--node", "context-0"]);
    assert!(
        !taken.status.success() && String::from_utf8_lossy(&taken.stderr).contains("context-0"),
        "it is a host's name"
    );
    let (code, words) = machines.refused(Some(&machines.token_for("local")));
    assert_eq!(code, Some(6), "{words}");
    assert!(words.contains("the token is for node local"), "{words}");

    // By whoever found it, from elsewhere and for what runs.
    let (file, from) = machines.token_for("local");
    let token: JoinToken = fs::read_to_string(file).expect("a token").parse().expect("a token");
    let listener: SocketAddr = from.parse().expect("an address");
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let asks = |node: IpAddr, host: &str| {
        let at = JoinAddress { listener, node: Some(node) };
        let refused = runtime.block_on(join::join(at, &token, "local", &[host.to_owned()]));
        refused.map(drop).expect_err("it is refused").to_string()
    };
    let words = asks([127, 0, 0, 7].into(), "local");
    assert!(words.contains("127.0.0.7") && words.contains("127.0.0.1"), "{words}");
    let words = asks([127, 0, 0, 1].into(), "context-0");
    assert!(words.contains("context-0 is connected"), "{words}");
    machines.joins(&machines.token());
    let shown = machines.cluster.run(&["cert", "show", "-o", "json"]);
    let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).expect("JSON");
    for agent in ["far", "local"] {
        let listed = shown.as_array().expect("rows").iter().any(|row| row["name"] == agent && row["role"] == "node");
        assert!(listed, "{shown:#}");
    }
    let page = machines.cluster.metrics();
    assert!(page.contains("asterism_certificate_expiry_timestamp_seconds{host=\"far\"}"), "{page}");
}
