//! `supervisor`, `node` and `host`: one process a role, as service managers and `up` start them. They log and print nothing.

use std::{
    cell::RefCell,
    fmt,
    io::{Read, Write},
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    pin::{Pin, pin},
    time::Duration,
};

use asterism_actors::{host::HostEnd, metric};
use asterism_transport::{PlacePort, Places, certificates::MemberRole};
use clap::Args;
use tokio::sync::watch;

use super::offering::Offering;
use crate::{
    api::admin::Waiting,
    certificates::{credentials, joining, renewal},
    cluster::{Cluster, Host, size::count},
    data_dir::{self, LockRole, logs, start_file::StartFile},
    error::{CliError, Exit},
    globals::{DEFAULT_FILE, Globals, ReadFile},
    observe::{
        logging, metrics,
        service_manager::ServiceManager,
        telemetry::{self, Telemetry},
    },
    processes::{
        local_hosts,
        node::{Launch, NodeAgent, SupervisorTie, now_ns},
        service::SupervisorService,
        wiring::{self, runtime},
    },
};

/// How long hosts may take to end by themselves.
pub const HOST_STOP_TIMEOUT: Duration = Duration::from_secs(3);

/// `asterism supervisor`
#[derive(Args, Debug)]
pub struct SupervisorArgs {
    /// Where hosts reach it [default: cluster.listen]
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<SocketAddr>,
    /// Where its admin API listens [default: api.admin_listen]
    #[arg(long, value_name = "ADDRESS")]
    pub admin_listen: Option<SocketAddr>,
    /// Where OpenAI's API listens, if the cluster file has it [default: api.listen]
    #[arg(long, value_name = "ADDRESS")]
    pub api_listen: Option<SocketAddr>,
    /// End when standard input ends
    #[arg(long, hide = true)]
    pub end_with_stdin: bool,
}

/// `asterism node`
#[derive(Args, Debug)]
pub struct NodeArgs {
    /// Where the supervisor listens: an address or a name, and a port; several, with commas between them: at one of them
    #[arg(long, value_name = "ADDRESS")]
    pub join: Places,
    /// Node of the cluster file [default: the one whose address this machine has]
    #[arg(long, value_name = "NODE")]
    pub name: Option<String>,
    /// Where this node gets its certificates [default: security.join_listen; beside the supervisor, where that is every address]
    #[arg(long, value_name = "ADDRESS")]
    pub token_from: Option<PlacePort>,
    /// Hosts of a node that is in no cluster file, such as 'context x2, device=cpu'; several: each
    #[arg(long, value_name = "ROLE [xN][, KEY=VALUE]", requires = "name")]
    pub hosts: Vec<String>,
    /// Where other machines reach a node that is in no cluster file [default: the address that it calls the supervisor from]
    #[arg(long, value_name = "IP", requires = "hosts")]
    pub address: Option<IpAddr>,
}

/// `asterism host`
#[derive(Args, Debug)]
pub struct HostArgs {
    /// Host of the cluster file; several that share a process: each
    #[arg(long = "name", value_name = "NAME", required = true)]
    pub names: Vec<String>,
    /// Where the supervisor listens; several, with commas between them: at one of them [default: cluster.listen]
    #[arg(long, value_name = "ADDRESS")]
    pub supervisor: Option<Places>,
    /// Its node's number of this start, larger than that of every earlier one [default: the time]
    #[arg(long, value_name = "N")]
    pub start: Option<u64>,
    /// End when standard input ends, and tell standard output of having joined
    #[arg(long)]
    pub end_with_stdin: bool,
}

/// Serves the cluster until asked to end.
pub fn supervisor(globals: &Globals, args: &SupervisorArgs) -> Result<Exit, CliError> {
    let ReadFile { mut cluster, text, directory } = globals.read_cluster()?;
    logging::process(&cluster.log, globals)?;
    cluster.listen = args.listen.unwrap_or(cluster.listen);
    cluster.admin_listen = args.admin_listen.unwrap_or(cluster.admin_listen);
    cluster.security.check_admin(cluster.admin_listen).map_err(CliError::usage)?;
    if let (Some(api), Some(listen)) = (&mut cluster.api, args.api_listen) {
        api.check(listen, cluster.security.allow_open_admin).map_err(CliError::usage)?;
        api.listen = listen;
    }
    if args.end_with_stdin {
        end_with_stdin();
    }
    let telemetry = telemetry::start(&cluster, metric::SUPERVISOR_LABEL)?;
    let ended = runtime()?.block_on(async {
        metrics::install();
        let mut signals = Signals::listen(Hangup::Ignored)?;
        let tell = |line: String| {
            if args.end_with_stdin {
                report(&line);
            }
        };
        // One that `up` keeps is nobody's service.
        let manager = || ServiceManager::of_environment().filter(|_| !args.end_with_stdin);
        let standby = RefCell::new(None);
        let waits = |waiting: &Waiting| {
            tell(format!("waiting {}", one_line(&waiting.to_string())));
            if matches!(waiting, Waiting::StandsBy(_)) && standby.borrow().is_none() {
                // Whoever started it waits for no more: the other one may lead for years.
                standby.replace(manager().map(|manager| manager.ready(&waiting.to_string(), || true)));
            }
        };
        let service = tokio::select! {
            service = SupervisorService::start(&cluster, (&text, &directory), waits) => match service {
                Err(error) if error.exit == Exit::Success => {
                    tracing::info!("ends: {error}");
                    return Ok(Exit::Success);
                }
                service => service?,
            },
            signal = signals.next() => {
                tracing::info!("ends: {signal}");
                return Ok(signal.exit());
            }
        };
        let (listen, admin) = (service.record.listen, service.record.admin);
        tell(format!("serving {}", serde_json::to_string(&service.record).expect("plain values are JSON")));
        tracing::info!(cluster = %cluster.name, %listen, %admin, "serving");
        drop(standby.take());
        let supervisor = service.supervisor.clone();
        let lives = move || supervisor.silence().is_none() || supervisor.waits_for_disk();
        let manager = manager().map(|manager| manager.ready(&format!("serves at {admin}"), lives));
        tokio::select! {
            () = service.stop_wanted() => {
                tracing::info!("ends, and every host and node with it: a client asked for the end of the cluster");
                service.shut_down().await;
                Ok(Exit::Success)
            }
            signal = signals.next() => {
                tracing::info!("ends: {signal}. Hosts and nodes go on, and look for the supervisor that comes after it");
                manager.iter().for_each(|manager| manager.stopping(&signal.to_string()));
                service.stop().await;
                Ok(signal.exit())
            }
        }
    });
    telemetry.into_iter().for_each(Telemetry::flush);
    ended
}

/// Where certificates are given out, if the cluster file names a port of every address of the supervisor's machine.
fn beside_supervisor(cluster: &Cluster, supervisor: &Places) -> Option<PlacePort> {
    let listen = cluster.security.join_listen.filter(|listen| listen.ip().is_unspecified())?;
    Some(PlacePort { place: supervisor.first().place.clone(), port: listen.port() })
}

/// Runs the hosts of a node until told to end, or until all of them are done.
pub fn node(globals: &Globals, args: &NodeArgs) -> Result<Exit, CliError> {
    let ReadFile { cluster, text, directory } = globals.read_cluster()?;
    logging::process(&cluster.log, globals)?;
    let offering = match &args.name {
        Some(name) if !args.hosts.is_empty() => {
            Some(Offering::new((&text, &directory), (name, args.address), (&args.hosts, args.join.first()))?)
        }
        _ => None,
    };
    let (cluster, text, offer) = match offering {
        Some(Offering { cluster, text, hosts }) => (cluster, text, Some(hosts)),
        None => (cluster, text, None),
    };
    let (name, hosts) = hosts_of(&cluster, args.name.as_deref())?;
    wiring::known(&cluster.data).and_then(|()| wiring::usable(&cluster, &hosts))?;
    let _seat = data_dir::lock(&cluster.data_dir, &cluster.name, LockRole::Node(name))?;
    wiring::all_fit(&cluster, &hosts)?;
    let names: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
    let members: Vec<_> = hosts.iter().map(|host| host.member()).collect();
    let copy = data_dir::start_file(&cluster.data_dir, LockRole::Node(name));
    let launch = Launch::new(StartFile::new(copy, &directory, text), args.join.clone())?;
    let token_from = args.token_from.clone().or_else(|| beside_supervisor(&cluster, &args.join));
    runtime()?.block_on(async {
        if let Some(token_file) = &globals.token_file {
            joining::join(&cluster, (name, &members, offer.as_deref()), token_file, token_from.as_ref()).await?;
        }
        let own = members.iter().copied().chain([(MemberRole::Node, name)]);
        credentials::require(&cluster, name, &own.collect::<Vec<_>>())?;
        renewal::keep(&cluster, (name, &names), token_from.clone());
        logs::keep_short(&cluster.data_dir);
        credentials::provide(&cluster, members)?;
        let mut signals = Signals::listen(Hangup::Ignored)?;
        let (agent, exits) = NodeAgent::start(&cluster, &hosts, &launch);
        let tie = SupervisorTie::new(&cluster, &hosts, &args.join, (&agent, exits))?.certified_at(token_from);
        tracing::info!(node = name, hosts = hosts.len(), supervisor = %args.join, "started");
        let manager = ServiceManager::of_environment()
            .map(|manager| manager.ready(&format!("runs {} of node {name}", count(hosts.len(), "host")), || true));
        let end = tokio::select! {
            () = agent.done() => AgentEnd::GivenUp,
            signal = signals.next() => AgentEnd::Signal(signal),
            ended = tie.hold() => AgentEnd::Supervisor(ended),
        };
        tracing::info!(node = name, "ends, and its hosts with it: {end}");
        manager.iter().for_each(|manager| manager.stopping(&end.to_string()));
        let given_up = agent.given_up();
        // Hosts that are asked by a signal give what they have to those of other nodes first.
        let grace = if let AgentEnd::Signal(_) = end { cluster.stop_grace } else { Duration::ZERO };
        agent.stop(grace + HOST_STOP_TIMEOUT).await;
        match (end, given_up.first()) {
            (AgentEnd::GivenUp, Some(exit)) => {
                Err(CliError::unreachable(format!("host '{}' is not started again: {}", exit.host, exit.cause))
                    .hint(format!("see {}", data_dir::log_of(&cluster, &exit.host).display())))
            }
            (AgentEnd::Signal(signal), _) => Ok(signal.exit()),
            (AgentEnd::Supervisor(ended), _) => ended.map(|()| Exit::Success),
            (AgentEnd::GivenUp, None) => Ok(Exit::Success),
        }
    })
}

/// Why a node's agent ends.
enum AgentEnd {
    /// None of its hosts is started any more.
    GivenUp,
    /// It was asked to.
    Signal(EndSignal),
    /// Its supervisor ended the cluster, or does not want it.
    Supervisor(Result<(), CliError>),
}

impl fmt::Display for AgentEnd {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::GivenUp => formatter.write_str("none of them is started any more"),
            Self::Signal(signal) => write!(formatter, "{signal}"),
            Self::Supervisor(Ok(())) => formatter.write_str("the supervisor ended the cluster"),
            Self::Supervisor(Err(error)) => write!(formatter, "{error}"),
        }
    }
}

/// The node of that name, or the only one whose address this machine has, with its hosts.
fn hosts_of<'a>(cluster: &'a Cluster, name: Option<&str>) -> Result<(&'a str, Vec<&'a Host>), CliError> {
    let candidates = match name {
        Some(_) => cluster.hosts.iter().collect(),
        None => local_hosts(cluster),
    };
    let known = |hosts: &[&'a Host]| {
        let mut nodes: Vec<&str> = hosts.iter().map(|host| host.node.as_str()).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    };
    let nodes = known(&candidates);
    let node = match (name, &nodes[..]) {
        (Some(name), nodes) => nodes.iter().find(|node| **node == name).copied(),
        (None, [only]) => Some(*only),
        (None, _) => None,
    };
    let Some(node) = node else {
        let message = match name {
            Some(name) => format!("the cluster file has no hosts on a node '{name}'"),
            None => format!("{} nodes of the cluster file have an address of this machine", nodes.len()),
        };
        let all: Vec<&Host> = cluster.hosts.iter().collect();
        return Err(CliError::usage(message).hint(format!("name one with --name: {}", known(&all).join(", "))));
    };
    Ok((node, candidates.into_iter().filter(|host| host.node == node).collect()))
}

/// Runs the hosts of one process until their supervisor ends them or is gone.
pub fn host(globals: &Globals, args: &HostArgs) -> Result<Exit, CliError> {
    let cluster = globals.cluster()?;
    logging::process(&cluster.log, globals)?;
    let hosts = hosts_named(&cluster, &args.names)?;
    if args.end_with_stdin {
        end_with_stdin();
    }
    let telemetry = telemetry::start(&cluster, &hosts[0].process)?;
    let supervisor = args.supervisor.clone().unwrap_or_else(|| cluster.listen.into());
    let start = args.start.unwrap_or_else(now_ns);
    let has_parent = args.end_with_stdin;
    let joined = move || {
        if has_parent {
            report("joined");
        }
    };
    let ended = runtime()?.block_on(async {
        let hangup = if has_parent { Hangup::Ignored } else { Hangup::Ends };
        let mut signals = Signals::listen(hangup)?;
        let (leave, leaving) = watch::channel(false);
        let hosts = pin!(wiring::run_hosts(&cluster, &hosts, (&supervisor, start), (joined, leave.clone(), leaving)));
        hosts_until_told(hosts, &mut signals, &leave).await
    });
    telemetry.into_iter().for_each(Telemetry::flush);
    ended
}

/// Runs hosts until they end. A first SIGTERM has them give away what they have; a second one, or Ctrl-C, ends them at once.
async fn hosts_until_told(
    mut hosts: Pin<&mut impl Future<Output = Result<HostEnd, CliError>>>,
    signals: &mut Signals,
    leave: &watch::Sender<bool>,
) -> Result<Exit, CliError> {
    loop {
        tokio::select! {
            ended = &mut hosts => {
                let (why, exit) = match ended? {
                    HostEnd::Ended => ("the supervisor told it to, for good", Exit::Success),
                    HostEnd::Left => ("it was asked to, and is to be started again", Exit::Terminated),
                };
                tracing::info!("ends: {why}");
                return Ok(exit);
            }
            signal = signals.next() => {
                tracing::info!("{signal}");
                if signal != EndSignal::Terminate || leave.send_replace(true) {
                    tracing::info!("ends at once");
                    return Ok(signal.exit());
                }
            }
        }
    }
}

/// Hosts of these names, which share a process.
fn hosts_named<'a>(cluster: &'a Cluster, names: &[String]) -> Result<Vec<&'a Host>, CliError> {
    let named = |name: &String| {
        cluster.host(name).ok_or_else(|| {
            let known: Vec<_> = cluster.hosts.iter().map(|host| host.name.as_str()).collect();
            CliError::usage(format!("no host '{name}' is in the cluster file"))
                .hint(format!("known: {}", known.join(", ")))
        })
    };
    let hosts = names.iter().map(named).collect::<Result<Vec<_>, _>>()?;
    match hosts.iter().find(|host| host.process != hosts[0].process) {
        Some(other) => Err(CliError::usage(format!(
            "hosts '{}' and '{}' are of the processes '{}' and '{}'",
            hosts[0].name, other.name, hosts[0].process, other.process
        ))
        .hint("start each process by itself")),
        None => Ok(hosts),
    }
}

/// The cluster file as an absolute path, for an `up` in the background.
pub fn cluster_file(globals: &Globals) -> Result<PathBuf, CliError> {
    let file = globals.file.clone().unwrap_or_else(|| PathBuf::from(DEFAULT_FILE));
    std::path::absolute(&file).map_err(|error| CliError::usage(format!("{}: {error}", file.display())))
}

/// What a closed terminal means.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Hangup {
    /// The end.
    Ends,
    /// Nothing: a detached process outlives its terminal.
    Ignored,
}

/// The signals that ask a process to end.
pub struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
    on_hangup: Hangup,
}

impl Signals {
    /// From now on these signals are ours.
    pub fn listen(on_hangup: Hangup) -> Result<Self, CliError> {
        use tokio::signal::unix::{SignalKind, signal};
        let listen =
            |kind| signal(kind).map_err(|error| CliError::unreachable(format!("signals cannot be handled: {error}")));
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: listen(SignalKind::hangup())?,
            on_hangup,
        })
    }

    /// Completes when one came, and says which.
    pub async fn next(&mut self) -> EndSignal {
        loop {
            tokio::select! {
                _ = self.interrupt.recv() => return EndSignal::Interrupt,
                _ = self.terminate.recv() => return EndSignal::Terminate,
                _ = self.hangup.recv() => match self.on_hangup {
                    Hangup::Ends => return EndSignal::Hangup,
                    Hangup::Ignored => tracing::info!("SIGHUP: it does nothing here"),
                },
            }
        }
    }
}

/// A signal that asked for the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndSignal {
    /// Ctrl-C.
    Interrupt,
    /// What operators, service managers and container runtimes send.
    Terminate,
    /// The terminal closed.
    Hangup,
}

impl EndSignal {
    /// What a process that serves ends with: whoever keeps it running starts it again after SIGTERM, unless that was its own.
    pub fn exit(self) -> Exit {
        match self {
            Self::Interrupt | Self::Hangup => Exit::Success,
            Self::Terminate => Exit::Terminated,
        }
    }
}

impl fmt::Display for EndSignal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Interrupt => "SIGINT",
            Self::Terminate => "SIGTERM",
            Self::Hangup => "SIGHUP",
        })
    }
}

/// Tells the parent process how this one's start goes.
fn report(line: &str) {
    // A parent that is gone ends this process anyway.
    let _ = writeln!(std::io::stdout(), "{line}").and_then(|()| std::io::stdout().flush());
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Ends this process when the other end of its standard input does, whatever it is doing.
fn end_with_stdin() {
    std::thread::spawn(|| {
        let mut stdin = std::io::stdin().lock();
        let mut byte = [0];
        while stdin.read(&mut byte).is_ok_and(|read| read > 0) {}
        tracing::warn!("the parent process is gone");
        std::process::exit(Exit::Unreachable as i32);
    });
}
