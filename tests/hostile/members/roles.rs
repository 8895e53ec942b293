//! Every party tries everything that is to be said and every door there is, over QUIC and HTTP: what the table allows is
//! let through, and nothing else.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    net::SocketAddr,
    process::{Child, Stdio},
    time::{Duration, SystemTime},
};

use asterism_actors::{
    HostConfig,
    authority::{Action, Party, TABLE, allows},
    messages::{
        Attach, ChannelOpening, EncodeShards, Encoded, Generate, HostCommand, HostMessage, HostRole, RelayOrder,
        WireMessage,
    },
    node::{self, NodeOrder},
    readings::LinkReport,
    ticket::Ticket,
};
use asterism_plan::Exchange;
use asterism_transport::{
    certificates::{CertificateAuthority, Credentials, MemberRole, Validity},
    join::{self, JoinToken},
};
use serde_json::{Value, json};
use tests::{Cluster, ClusterSpec, DEADLINE};

use super::identity::{Line, hello, issued, member};

const BINARY: &str = env!("CARGO_BIN_EXE_asterism-under-test");
const TOKEN: &str = "correct-horse";

/// A supervisor and one context host. Those whom the test plays are in the cluster file, too.
struct House {
    cluster: Cluster,
    processes: Vec<Child>,
    supervisor: SocketAddr,
    context: SocketAddr,
}

impl House {
    fn open() -> Self {
        let spec = ClusterSpec { contexts: 1, model: None, method: "", listen: "127.0.0.1:0".into() };
        let cluster = Cluster::written(BINARY, &spec, |text| {
            let security = "[security]\ntoken_file = \"token\"\njoin_listen = \"127.0.0.1:0\"\n\n";
            let away = "[[node]]\nname = \"away\"\naddress = \"127.0.0.1\"\n\n";
            let text = text.replacen("[[node]]", &format!("{security}{away}[[node]]"), 1);
            let mut text = text.replace("role = \"", "node = \"local\"\nrole = \"");
            for (name, role) in [("context-9", "context"), ("query-9", "query"), ("spare-9", "spare")] {
                write!(text, "\n[[host]]\nname = \"{name}\"\nnode = \"away\"\nrole = \"{role}\"\n").expect("text");
            }
            text
        });
        fs::write(cluster.folder().join("token"), TOKEN).expect("a file");
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(cluster.folder().join("token"), fs::Permissions::from_mode(0o600)).expect("our file");
        let made = cluster.run(&["cert", "init"]);
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let start = |arguments: &[&str]| cluster.command(arguments).stderr(Stdio::null()).spawn().expect("it runs");
        let serving = start(&["supervisor"]);
        let record = until(|| {
            let record = fs::read(cluster.folder().join("data/supervisor.json")).ok()?;
            serde_json::from_slice::<Value>(&record).ok()
        });
        let supervisor = record["listen"].as_str().expect("an address").to_owned();
        let host = start(&["run-host", "--name", "context-0", "--supervisor", &supervisor]);
        let context = until(|| {
            let mut page = ureq::get(format!("{}/api/v1/topology", cluster.server()))
                .header("Authorization", format!("Bearer {TOKEN}"))
                .call()
                .ok()?;
            let status: Value = page.body_mut().read_json().ok()?;
            let ready = status["hosts"].as_array()?.iter().find(|host| host["health"] == "ready")?.clone();
            ready["address"].as_str()?.parse().ok()
        });
        let supervisor = supervisor.parse().expect("an address");
        Self { cluster, processes: vec![serving, host], supervisor, context }
    }

    /// What a party shows over QUIC: whoever is no member, a certificate of its own making.
    fn credentials(&self, party: Party) -> Credentials {
        match party {
            Party::Member(role) => issued(&self.cluster, role, name_of(role)),
            Party::Client | Party::Stranger => {
                let validity = Validity::starting(SystemTime::now(), Duration::from_secs(3600));
                let own = CertificateAuthority::create("scenario", validity).expect("a name");
                let ours = fs::read_to_string(self.cluster.folder().join("data/certificates/ca.pem")).expect("a CA");
                let issued = Credentials::issue(&own, (MemberRole::Supervisor, "supervisor"), validity);
                Credentials { ca: ours, ..issued.expect("a name") }
            }
        }
    }
}

impl Drop for House {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn name_of(role: MemberRole) -> &'static str {
    match role {
        MemberRole::Supervisor => "supervisor",
        MemberRole::Node => "away",
        MemberRole::Context => "context-9",
        MemberRole::Query => "query-9",
        MemberRole::Spare => "spare-9",
    }
}

/// Looks again and again until there is something.
fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let started = std::time::Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(started.elapsed() < DEADLINE, "it does not come");
        std::thread::yield_now();
    }
}

/// Whether a link ended because the table does not have it.
fn is_refusal(words: &str) -> bool {
    words.contains("may not do")
}

#[test]
fn every_party_may_do_what_the_table_says_and_nothing_else() {
    let house = House::open();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().worker_threads(2).build().expect("threads");
    let mut cells: BTreeMap<(usize, usize), bool> = BTreeMap::new();
    for (row, rule) in TABLE.iter().enumerate() {
        // Strangers first: what ends the supervisor is done last, by whom may.
        for (column, party) in Party::ALL.into_iter().enumerate().rev() {
            if (rule.act, party) == (Action::Http("POST", "/api/v1/shutdown"), Party::Client) {
                continue;
            }
            let trial = async { tokio::time::timeout(DEADLINE, attempt(&house, party, rule.act)).await };
            let let_in = match rule.act {
                Action::Http(method, path) => asks(&house, party, method, path),
                act => runtime.block_on(trial).unwrap_or_else(|_| panic!("{party}, {act:?}: no answer")),
            };
            cells.insert((row, column), let_in);
        }
    }
    let last = TABLE.iter().position(|rule| rule.act == Action::Http("POST", "/api/v1/shutdown")).expect("it is there");
    let client = Party::ALL.iter().position(|party| *party == Party::Client).expect("one of them");
    cells.insert((last, client), asks(&house, Party::Client, "POST", "/api/v1/shutdown"));

    let mut matrix = format!("{:44}{}\n", "", Party::ALL.map(|party| format!("{:>14}", party.to_string())).concat());
    let mut wrong = Vec::new();
    for (row, rule) in TABLE.iter().enumerate() {
        let columns = Party::ALL.iter().enumerate().map(|(column, party)| {
            let got = cells[&(row, column)];
            if got != allows(*party, rule.act) {
                wrong.push(format!("{party}, {:?}: expected {}, got {got}", rule.act, !got));
            }
            format!("{:>14}", if got { "allowed" } else { "-" })
        });
        let columns = columns.collect::<String>();
        writeln!(matrix, "{:44}{columns}", format!("{:?}", rule.act)).expect("text");
    }
    println!("{matrix}{} cells", cells.len());
    assert_eq!(cells.len(), TABLE.len() * Party::ALL.len());
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Over HTTP: whoever has no token is a stranger there, whatever its certificate.
fn asks(house: &House, party: Party, method: &str, path: &str) -> bool {
    let path = path.replace("{id}", "none").replace("{name}", "none");
    let mut request = ureq::http::Request::builder().method(method).uri(format!("{}{path}", house.cluster.server()));
    if party == Party::Client {
        request = request.header("Authorization", format!("Bearer {TOKEN}"));
    }
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let answer = agent.run(request.body("").expect("a request")).expect("an answer");
    answer.status() != 401
}

/// Over QUIC.
async fn attempt(house: &House, party: Party, act: Action) -> bool {
    match (message(act), command(act), act) {
        (Some(message), ..) => says(house, party, message).await,
        (_, Some(command), _) => orders(house, party, command).await,
        (.., Action::Attach | Action::Pass | Action::Fetch) => opens(house, party, act).await,
        (.., Action::Join) => joins(house, party).await,
        (.., Action::Renew) => renews(house, party).await,
        (.., act) => panic!("{act:?} is not tried"),
    }
}

/// To the supervisor.
async fn says(house: &House, party: Party, message: HostMessage) -> bool {
    let transport = member(house.credentials(party));
    let Party::Member(role) = party else { return transport.connect(house.supervisor).await.is_ok() };
    let mut line = Line::to(&transport, house.supervisor).await;
    let mut own = hello(name_of(role), host_role(role));
    if allows(party, Action::Hello) {
        line.say(HostMessage::Hello(own.clone()).frame()).await;
        let welcome = line.reported().await;
        let Ok(HostCommand::Welcome { cluster, incarnation, .. }) = welcome else { panic!("{party}: {welcome:?}") };
        (own.cluster, own.incarnation) = (cluster, incarnation);
    }
    if !matches!(message, HostMessage::Hello(_)) {
        line.say(message.frame()).await;
    }
    line.say(HostMessage::Hello(own).frame()).await;
    loop {
        match line.reported().await {
            // Whoever says that it is ready has none of the cluster's model.
            Ok(HostCommand::Welcome { .. } | HostCommand::Refuse { .. }) => return true,
            Ok(_) => {}
            // The supervisor closes the link of a host that says that it is unfit.
            Err(_) => return !is_refusal(&line.end().await),
        }
    }
}

fn host_role(role: MemberRole) -> HostRole {
    match role {
        MemberRole::Supervisor | MemberRole::Node => HostRole::Node,
        MemberRole::Context => HostRole::Context,
        MemberRole::Query => HostRole::Query,
        MemberRole::Spare => HostRole::Spare,
    }
}

/// To a process that joins whoever listens.
async fn orders(house: &House, party: Party, command: HostCommand) -> bool {
    let posing = member(house.credentials(party));
    let joining = member(house.credentials(Party::Member(MemberRole::Node)));
    if !matches!(party, Party::Member(_)) {
        return joining.connect(posing.local_address()).await.is_ok();
    }
    let config = HostConfig::new("away", HostRole::Node, posing.local_address(), 1);
    let mut agent = node::start(config, joining, Box::new(Vec::new));
    let link = posing.accept().await.expect("it comes");
    // Whoever is refused has no word of the agent's to answer, and says his all the same.
    let (mut channel, heard) = match link.accept().await {
        Ok(channel) => (channel, true),
        Err(error) => {
            assert!(is_refusal(&error.to_string()), "{error}");
            match link.open().await {
                Ok(channel) => (channel, false),
                Err(_) => return false,
            }
        }
    };
    if heard {
        channel.receiver.receive().await.expect("a hello").expect("a hello");
        if !matches!(command, HostCommand::Refuse { .. } | HostCommand::Welcome { .. }) {
            let welcome = HostCommand::Welcome { heartbeat_ms: 20, cluster: 1, incarnation: 0 };
            channel.sender.send(welcome.frame()).await.expect("it listens");
        }
    }
    let sent = channel.sender.send(command.frame()).await;
    if sent.is_err() {
        return false;
    }
    let kill = HostCommand::Kill { host: "after".into(), start: 7 };
    let _ = channel.sender.send(kill.frame()).await;
    tokio::select! {
        order = agent.orders.recv() => matches!(
            order,
            Some(
                NodeOrder::Kill { .. }
                    | NodeOrder::Start { .. }
                    | NodeOrder::Configure(_)
                    | NodeOrder::Shutdown
                    | NodeOrder::Refused { .. }
            )
        ),
        end = link.closed() => !is_refusal(&end.to_string()),
    }
}

/// To a context host.
async fn opens(house: &House, party: Party, act: Action) -> bool {
    let transport = member(house.credentials(party));
    if !matches!(party, Party::Member(_)) {
        return transport.connect(house.context).await.is_ok();
    }
    let attach = ChannelOpening::Attach(Attach {
        attachment: 1,
        context: 1,
        groups: vec![vec![0]],
        hidden: Vec::new(),
        relay: RelayOrder::default(),
        hands_over: true,
        ticket: Ticket::default(),
    });
    let pass = ChannelOpening::Pass { context: 1, attempt: 1, ticket: Ticket::default() };
    let mut line = Line::to(&transport, house.context).await;
    let fetch = ChannelOpening::Fetch { context: 1, block: 0, ticket: Ticket::default() };
    if let Some(opening) = [(Action::Pass, pass), (Action::Fetch, fetch)].into_iter().find(|(of, _)| *of == act) {
        line.say(opening.1.frame()).await;
        // Without an order nothing is answered; whoever may pass or fetch may attach as well, and hears of that.
        let Ok(channel) = line.link.open().await else { return false };
        line.channel = channel;
    }
    line.say(attach.frame()).await;
    match line.channel.receiver.receive().await {
        Ok(_) => true,
        Err(_) => !is_refusal(&line.end().await),
    }
}

fn join_address(house: &House) -> (SocketAddr, JoinToken) {
    let sent = ureq::post(format!("{}/api/v1/join-tokens", house.cluster.server()))
        .header("Authorization", format!("Bearer {TOKEN}"))
        .send_json(json!({"node": "away", "ttl_s": 60.0}));
    let made: Value = sent.expect("a token").body_mut().read_json().expect("JSON");
    let text = |key: &str| made[key].as_str().expect("a string").to_owned();
    (text("join").parse().expect("an address"), text("token").parse().expect("a token"))
}

async fn joins(house: &House, party: Party) -> bool {
    let (address, token) = join_address(house);
    let ours = fs::read_to_string(house.cluster.folder().join("data/certificates/ca.pem")).expect("a CA");
    let shown = if party == Party::Client { token } else { JoinToken::create(&ours).expect("random bytes") };
    join::join(address, &shown, "away", &["away".to_owned()]).await.is_ok()
}

async fn renews(house: &House, party: Party) -> bool {
    let (address, _) = join_address(house);
    join::renew(address, &house.credentials(party), &["away".to_owned()]).await.is_ok()
}

/// An example of each message to the supervisor.
fn message(act: Action) -> Option<HostMessage> {
    let text = || "x".to_owned();
    let message = match act {
        Action::Hello => HostMessage::Hello(Default::default()),
        Action::Ready => HostMessage::Ready { numerics: "cpu".into(), model: Box::default() },
        Action::Unfit => HostMessage::Unfit { cause: text() },
        Action::Heartbeat => HostMessage::Heartbeat { kv_bytes: 0, idle_bytes: 0 },
        Action::Links => HostMessage::Links(LinkReport::default()),
        Action::Measured => HostMessage::Measured { links: Vec::new() },
        Action::Progress => HostMessage::Progress { context: 1, block: 0, layers: 1, of: 4 },
        Action::Encoded => HostMessage::Encoded(Encoded { context: 1, kept_tokens: 1, ..Encoded::default() }),
        Action::NotEncoded => {
            let (code, message) = (text(), text());
            HostMessage::NotEncoded { context: 1, attempt: 1, peer_lost: false, code, message }
        }
        Action::Token => HostMessage::Token { job: 1, index: 0, id: 1, text: text(), logprobs: None },
        Action::Generated => {
            HostMessage::Generated { job: 1, tokens: 1, stopped: true, text: text(), times: Default::default() }
        }
        Action::Stalled => HostMessage::Stalled { job: 1, host: "context-0".into(), wrong: false, cause: text() },
        Action::Failed => HostMessage::Failed { job: 1, code: text(), message: text() },
        Action::Exited => HostMessage::Exited { host: text(), start: 1, cause: text(), restarting: true },
        Action::Leaving => HostMessage::Leaving { grace_ms: 1000 },
        Action::Masked => HostMessage::Masked { job: 1, masks: Default::default() },
        Action::Gpus => HostMessage::Gpus { gpus: "[]".into() },
        Action::Seen => HostMessage::Seen { host: text(), start: 1, condition: Default::default() },
        _ => return None,
    };
    Some(message)
}

/// An example of each command.
fn command(act: Action) -> Option<HostCommand> {
    let (context, job, ticket) = (1, 1, Ticket::default());
    let command = match act {
        Action::Welcome => HostCommand::Welcome { heartbeat_ms: 20, cluster: 1, incarnation: 1 },
        Action::Refuse => HostCommand::Refuse { reason: "x".into() },
        Action::Encode => {
            let (exchange, peers, shards) = (Exchange::None, Vec::new(), Vec::new());
            let (attempt, blocks, room, trace) = (1, 1, None, None);
            let identities = Vec::new();
            HostCommand::Encode(EncodeShards {
                context,
                tenant: 0,
                attempt,
                shards,
                blocks,
                exchange,
                peers,
                ticket,
                room,
                trace,
                identities,
            })
        }
        Action::Generate => HostCommand::Generate(Generate {
            job,
            tenant: 0,
            context,
            query_ids: vec![1],
            generated: Vec::new(),
            query_start: 0,
            shards: Vec::new(),
            refresh_order: None,
            fan_in: 32,
            view: Default::default(),
            holders: Vec::new(),
            choice: Box::default(),
            lookup: None,
            ticket,
            trace: None,
        }),
        Action::Holders => HostCommand::Holders { job, holders: Vec::new() },
        Action::Stop => HostCommand::Stop { job },
        Action::Release => HostCommand::Release { context, keep: true },
        Action::Measure => HostCommand::Measure { peers: Vec::new() },
        Action::Kill => HostCommand::Kill { host: "x".into(), start: 1 },
        Action::Leave => HostCommand::Leave,
        Action::Start => HostCommand::Start { host: "x".into() },
        Action::Configure => HostCommand::Configure { settings: "{}".into() },
        Action::Shutdown => HostCommand::Shutdown,
        _ => return None,
    };
    Some(command)
}
