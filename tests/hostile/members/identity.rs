//! Members that claim to be somebody else: with a good certificate of the cluster, and what was stolen with it.

use std::{
    fs,
    future::Future,
    net::SocketAddr,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use asterism_actors::{
    messages::{
        Attach, ChannelOpening, Encoded, Hello, HostCommand, HostMessage, HostRole, PartialsAnswer, PartialsMeta,
        PartialsPart, RelayOrder, WireMessage,
    },
    store::{Change, RedbStore, StateStore, Table},
    ticket::Ticket,
};
use asterism_transport::{
    Channel, Endpoint, Frame, Link, NoObserver, Transport,
    certificates::{CertificateAuthority, Credentials, MemberRole, Validity},
    quic::{QuicConfig, QuicTransport, Security},
};
use serde_json::json;
use tests::{Cluster, ClusterSpec, DEADLINE};

const HUGE: u64 = 9_000_000_000_000_000_000;
const BINARY: &str = env!("CARGO_BIN_EXE_asterism-under-test");

/// Two context hosts on two nodes, and a query host.
fn cluster() -> Cluster {
    let spec = ClusterSpec { contexts: 2, model: None, method: "[attention.star]", listen: "127.0.0.1:0".into() };
    let cluster = Cluster::written(BINARY, &spec, |text| {
        let far = "[[node]]\nname = \"far\"\naddress = \"127.0.0.1\"\n\n[[host]]";
        let text = text.replacen("[[host]]", far, 1).replace("role = \"", "node = \"local\"\nrole = \"");
        let own = "name = \"context-1\"\nnode = \"local\"";
        assert!(text.contains(own));
        text.replace(own, "name = \"context-1\"\nnode = \"far\"")
    });
    up(&cluster);
    cluster
}

fn up(cluster: &Cluster) {
    let up = cluster.run(&["up", "--detach"]);
    assert!(up.status.success(), "up failed:\n{}", String::from_utf8_lossy(&up.stderr));
}

/// The question is answered, by whom the cluster has for it.
fn answers(cluster: &Cluster) {
    let words = "The pass key is 71432. ".to_owned() + &"The grass is green. ".repeat(60);
    fs::write(cluster.folder().join("context.txt"), words).expect("a file");
    let job = ["job", "submit", "--context", "context.txt", "--query", "What is the pass key?", "--max-tokens", "4"];
    let job = cluster.run(&job);
    assert!(job.status.success(), "{}", String::from_utf8_lossy(&job.stderr));
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().worker_threads(2).build();
    runtime.expect("threads").block_on(async {
        tokio::time::timeout(2 * DEADLINE, test).await.expect("the test ends in time");
    });
}

/// What lies in the data_dir for a process: what its thief has.
pub fn stolen(cluster: &Cluster, name: &str) -> Credentials {
    Credentials::load(&folder(cluster, name)).expect("it joined with them")
}

fn folder(cluster: &Cluster, name: &str) -> std::path::PathBuf {
    cluster.folder().join("data/certificates/hosts").join(name)
}

/// A certificate of the cluster's own CA.
pub fn issued(cluster: &Cluster, role: MemberRole, name: &str) -> Credentials {
    let authority = CertificateAuthority::load(&cluster.folder().join("data/certificates")).expect("`up` made it");
    let validity = Validity::starting(SystemTime::now(), Duration::from_secs(3600));
    Credentials::issue(&authority, (role, name), validity).expect("a name")
}

/// Listens and connects with these.
pub fn member(credentials: Credentials) -> Arc<dyn Transport> {
    let config = QuicConfig::new("127.0.0.1:0".parse().expect("an address"), Security::Mutual(credentials));
    Arc::new(QuicTransport::bind(config, Arc::new(NoObserver)).expect("a free port"))
}

/// A channel to somebody over a link of its own.
pub struct Line {
    pub link: Arc<dyn Link>,
    pub channel: Channel,
}

impl Line {
    pub async fn to(transport: &Arc<dyn Transport>, address: SocketAddr) -> Self {
        let link = transport.connect(address).await.expect("its certificate is of the cluster");
        let channel = link.open().await.expect("a link");
        Self { link, channel }
    }

    /// Says something; a link that is closed meanwhile shows when the answer is read.
    pub async fn say(&mut self, frame: Frame) {
        let _ = self.channel.sender.send(frame).await;
    }

    /// The next command, or why there is none.
    pub async fn reported(&mut self) -> Result<HostCommand, String> {
        let frame = tokio::time::timeout(DEADLINE, self.channel.receiver.receive()).await.expect("an answer in time");
        let frame = frame.map_err(|error| error.to_string())?.ok_or("it closed the channel")?;
        HostCommand::read(&frame.meta, "the supervisor").map_err(|error| error.to_string())
    }

    /// The words with which the other side ends the link.
    pub async fn end(&self) -> String {
        tokio::time::timeout(DEADLINE, self.link.closed()).await.expect("it closes the link").to_string()
    }
}

pub fn hello(name: &str, role: HostRole) -> Hello {
    Hello {
        name: name.into(),
        role,
        start: HUGE,
        pid: 1,
        endpoints: vec![Endpoint::new("quic", "127.0.0.1:1")],
        ..Hello::default()
    }
}

fn supervisor(cluster: &Cluster) -> SocketAddr {
    cluster.record()["listen"].as_str().expect("an address").parse().expect("an address")
}

fn address_of(cluster: &Cluster, host: &str) -> SocketAddr {
    let status = cluster.status();
    let hosts = status["hosts"].as_array().expect("hosts");
    let host = hosts.iter().find(|entry| entry["name"] == host).expect("a host of that name");
    host["address"].as_str().expect("it joined").parse().expect("an address")
}

/// What docs/security.md says to do about the stolen key of an authority.
#[test]
fn a_stolen_certificate_is_worth_nothing_under_another_authority() {
    let cluster = cluster();
    let thief = stolen(&cluster, "context-1");
    assert!(cluster.run(&["down"]).status.success());
    let data = cluster.folder().join("data");
    fs::rename(data.join("certificates"), data.join("old-certificates")).expect("ours");
    up(&cluster);
    answers(&cluster);
    run(async {
        // The certificate of the new authority is no secret.
        let transport = member(Credentials { ca: stolen(&cluster, "context-1").ca, ..thief });
        for address in [supervisor(&cluster), address_of(&cluster, "context-0")] {
            let printed = async {
                let link = transport.connect(address).await.map_err(|error| error.to_string())?;
                let channel = link.open().await.map_err(|error| error.to_string())?;
                let mut line = Line { link, channel };
                line.say(HostMessage::Hello(hello("context-1", HostRole::Context)).frame()).await;
                line.reported().await
            };
            let printed = printed.await;
            assert!(printed.is_err(), "{address} told it {printed:?}");
        }
    });
    cluster.wait_for("all hosts", |status| status["ready"] == true);
}

#[test]
fn a_revoked_certificate_opens_nothing_and_its_process_goes_on_with_a_new_one() {
    let cluster = cluster();
    let thief = stolen(&cluster, "context-1");
    run(async {
        let transport = member(thief);
        let standing = transport.connect(supervisor(&cluster)).await.expect("its certificate is good");
        let revoked = cluster.run(&["cert", "revoke", "context-1"]);
        assert!(revoked.status.success(), "{}", String::from_utf8_lossy(&revoked.stderr));
        tokio::time::timeout(DEADLINE, standing.closed()).await.expect("what stands is closed");
        for address in [supervisor(&cluster), address_of(&cluster, "context-0")] {
            loop {
                let refused = transport.connect(address).await.map(drop);
                let Err(error) = refused else { continue };
                assert!(error.to_string().contains("is revoked"), "{error}");
                break;
            }
        }
    });
    cluster.wait_for("all hosts", |status| status["ready"] == true);
    answers(&cluster);
    let unknown = cluster.run(&["cert", "revoke", "nobody"]);
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("no certificate of 'nobody'"));
}

#[test]
fn no_member_takes_another_ones_name_and_no_number_kills_the_cluster() {
    let cluster = cluster();
    let genuine = cluster.pid("query-0");
    let thief = cluster.folder().join("thief");
    // As the program lets him: with context-1's certificate where query-0's should be.
    let place = thief.join("certificates/hosts/query-0");
    stolen(&cluster, "context-1").save(&place).expect("a folder");
    let text = fs::read_to_string(cluster.file()).expect("a file");
    let data = format!("data_dir = \"{}\"", cluster.folder().join("data").display());
    assert!(text.contains(&data));
    let file = thief.join("cluster.toml");
    fs::write(&file, text.replace(&data, &format!("data_dir = \"{}\"", thief.display()))).expect("a file");
    let (at, number) = (supervisor(&cluster).to_string(), HUGE.to_string());
    let posing = ["run-host", "--name", "query-0", "--start", &number, "--supervisor", &at, "-f"];
    let posing = std::process::Command::new(BINARY).args(posing).arg(&file).output().expect("it runs");
    let words = String::from_utf8_lossy(&posing.stderr).into_owned();
    assert_eq!(posing.status.code(), Some(6), "{words}");
    assert!(words.contains("asterism://scenario/context/context-1"), "{words}");
    assert!(words.contains("asterism://scenario/query/query-0"), "{words}");

    // As he wrote it himself.
    run(async {
        let transport = member(stolen(&cluster, "context-1"));
        let mut line = Line::to(&transport, supervisor(&cluster)).await;
        let lie = Hello { incarnation: HUGE, ..hello("query-0", HostRole::Query) };
        line.say(HostMessage::Hello(lie).frame()).await;
        let words = line.end().await;
        assert!(words.contains("asterism://scenario/context/context-1"), "{words}");
        assert!(words.contains("expected asterism://scenario/query/query-0"), "{words}");
        // Nor does its own certificate give a host a number of its choice.
        let transport = member(stolen(&cluster, "query-0"));
        let mut line = Line::to(&transport, supervisor(&cluster)).await;
        let lie = Hello { incarnation: HUGE, cluster: 1, ..hello("query-0", HostRole::Query) };
        line.say(HostMessage::Hello(lie).frame()).await;
        let Ok(HostCommand::Refuse { reason }) = line.reported().await else { panic!("it is refused") };
        assert!(reason.contains("another cluster"), "{reason}");
        let mut line = Line::to(&transport, supervisor(&cluster)).await;
        let lie = Hello { incarnation: HUGE, ..hello("context-0", HostRole::Context) };
        line.say(HostMessage::Hello(lie).frame()).await;
        assert!(line.end().await.contains("query/query-0"));
    });
    assert_eq!(cluster.pid("query-0"), genuine, "it works on");
    answers(&cluster);
    let page = cluster.metrics();
    assert!(page.contains("asterism_transport_rejects_total{host=\"supervisor\",reason=\"identity\"} 2"), "{page}");

    // What the attack once wrote, and what no supervisor gives.
    assert!(cluster.run(&["down"]).status.success());
    let journal = cluster.folder().join("data/journal.redb");
    let mut store = RedbStore::open(journal, "scenario").expect("a journal");
    let kept = store.load().expect("it is whole").into_iter().find(|entry| entry.key == "query-0").expect("it joined");
    let mut value: serde_json::Value = serde_json::from_slice(&kept.value).expect("JSON");
    value["incarnation"] = json!(HUGE);
    value["fenced"] = json!(HUGE);
    value["start"] = json!(u64::MAX);
    let value = serde_json::to_vec(&value).expect("JSON");
    store.apply(&[Change::Put { table: Table::Hosts, key: "query-0".into(), value }]).expect("it is written");
    drop(store);
    up(&cluster);
    answers(&cluster);
}

#[test]
fn a_supervisor_with_a_hosts_certificate_gets_no_host() {
    let cluster = cluster();
    run(async {
        let impostor = member(stolen(&cluster, "context-1"));
        let at = impostor.local_address().to_string();
        let mut host = cluster.command(&["run-host", "--name", "context-0", "--supervisor", &at]);
        let host = host.stderr(std::process::Stdio::piped()).spawn().expect("it runs");
        let link = tokio::time::timeout(DEADLINE, impostor.accept()).await.expect("it comes").expect("open");
        let heard = link.accept().await.map(|_| "a channel").expect_err("it says nothing");
        assert!(heard.to_string().contains("a context may not do Welcome: expected a supervisor"), "{heard}");
        let ended = host.wait_with_output().expect("it ends");
        let words = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(3), "{words}");
        assert!(words.contains("expected a supervisor at") && words.contains("context/context-1"), "{words}");
    });
    answers(&cluster);
}

#[test]
fn a_members_certificate_alone_reads_no_context() {
    let cluster = cluster();
    let words = "The pass key is 71432. ".to_owned() + &"The grass is green. ".repeat(60);
    fs::write(cluster.folder().join("context.txt"), words).expect("a file");
    let made = cluster.run(&["session", "create", "--name", "secrets", "--context", "context.txt"]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    run(async {
        for thief in ["context-1", "query-0"] {
            let transport = member(stolen(&cluster, thief));
            let mut refused = 0;
            for context in 2..8 {
                let at = address_of(&cluster, if context % 2 == 0 { "context-0" } else { "context-1" });
                let mut line = Line::to(&transport, at).await;
                let attach = Attach {
                    attachment: 1,
                    context: context / 2,
                    groups: vec![vec![0]],
                    hidden: Vec::new(),
                    relay: RelayOrder::default(),
                    hands_over: true,
                    ticket: Ticket::default(),
                };
                line.say(ChannelOpening::Attach(attach).frame()).await;
                let answer = line.channel.receiver.receive().await.expect("an answer").expect("an answer");
                let meta = PartialsMeta::read(&answer.meta, "the host").expect("an answer");
                let [PartialsPart { attachment: 1, answer: PartialsAnswer::Failed { cause, .. }, .. }] =
                    &meta.parts[..]
                else {
                    panic!("it answered {thief}: {meta:?}")
                };
                refused += usize::from(cause.contains("opens to its ticket only"));
            }
            assert!(refused > 0, "a host has the context");
        }
        let transport = member(stolen(&cluster, "far"));
        let mut line = Line::to(&transport, address_of(&cluster, "context-0")).await;
        let attach = Attach {
            attachment: 1,
            context: 1,
            groups: vec![vec![0]],
            hidden: Vec::new(),
            relay: RelayOrder::default(),
            hands_over: true,
            ticket: Ticket::default(),
        };
        line.say(ChannelOpening::Attach(attach).frame()).await;
        let words = line.end().await;
        assert!(words.contains("a node may not do Attach"), "{words}");
    });
    let asked = cluster.run(&["job", "submit", "--session", "secrets", "--query", "What is it?", "--max-tokens", "4"]);
    assert!(asked.status.success(), "who was ordered to, reads it: {}", String::from_utf8_lossy(&asked.stderr));
}

#[test]
fn a_node_speaks_for_its_own_hosts_and_a_host_for_its_own_work() {
    let cluster = cluster();
    let genuine = cluster.pid("query-0");
    run(async {
        let transport = member(issued(&cluster, MemberRole::Node, "far"));
        let mut line = Line::to(&transport, supervisor(&cluster)).await;
        line.say(HostMessage::Hello(hello("far", HostRole::Node)).frame()).await;
        assert!(matches!(line.reported().await, Ok(HostCommand::Welcome { .. })));
        let (host, cause) = ("query-0".into(), "a lie".into());
        line.say(HostMessage::Exited { host, start: u64::MAX, cause, restarting: false }.frame()).await;
        let words = line.end().await;
        assert!(words.contains("node far speaks for host query-0, expected its own node local"), "{words}");

        // A node does no host's work.
        let mut line = Line::to(&transport, supervisor(&cluster)).await;
        line.say(HostMessage::Hello(hello("far", HostRole::Node)).frame()).await;
        assert!(matches!(line.reported().await, Ok(HostCommand::Welcome { .. })));
        let encoded = Encoded { context: 1, kept_tokens: 1, kv_bytes: 1, ..Encoded::default() };
        line.say(HostMessage::Encoded(encoded).frame()).await;
        let words = line.end().await;
        assert!(words.contains("a node may not do Encoded"), "{words}");
    });
    assert_eq!(cluster.pid("query-0"), genuine);
    answers(&cluster);
}

#[test]
fn certificates_of_ones_own_say_who_they_are_for() {
    let spec = ClusterSpec { contexts: 1, model: None, method: "", listen: "127.0.0.1:0".into() };
    let pki = |folder: &Path| {
        let validity = Validity::starting(SystemTime::now(), Duration::from_secs(3600));
        let authority = CertificateAuthority::create("scenario", validity).expect("a name");
        let members = [
            (MemberRole::Supervisor, "supervisor"),
            (MemberRole::Node, "local"),
            (MemberRole::Context, "context-0"),
            (MemberRole::Query, "query-0"),
        ];
        for member in members {
            let issued = Credentials::issue(&authority, member, validity).expect("a name");
            issued.save(&folder.join("pki").join(member.1)).expect("a folder");
        }
        (authority, validity)
    };
    let named =
        "[security]\nca = \"pki/{name}/ca.pem\"\ncert = \"pki/{name}/host.pem\"\nkey = \"pki/{name}/host-key.pem\"";
    let cluster = Cluster::written(BINARY, &spec, |text| text.replacen("[[node]]", &format!("{named}\n\n[[node]]"), 1));
    let (authority, validity) = pki(cluster.folder());
    up(&cluster);
    answers(&cluster);
    assert!(cluster.run(&["down"]).status.success());

    let wrong = Credentials::issue(&authority, (MemberRole::Query, "supervisor"), validity).expect("a name");
    wrong.save(&cluster.folder().join("pki/supervisor")).expect("a folder");
    let refused = cluster.run(&["supervisor"]);
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(6), "{words}");
    assert!(words.contains("have one issued with URI:asterism://scenario/supervisor/supervisor"), "{words}");
}
