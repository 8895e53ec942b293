//! `launch`: a cluster on what a batch system gave a job. Starts its processes there and keeps them; they are those of every cluster.

mod allocation;
mod steps;
mod topology;

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fs,
    net::{IpAddr, UdpSocket},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use asterism_actors::api::{ClusterStatus, HostHealth, Scheduling};
use asterism_transport::Place;
use clap::{Args, Subcommand};
use tokio::{
    process::Child,
    signal::unix::{Signal, SignalKind, signal},
};

use self::{
    allocation::{Allocation, AllocationError},
    steps::{Seen, Step, Work},
    topology::{Site, topology},
};
use super::process::{EndSignal, Hangup, Signals};
use crate::{
    client::Client,
    cluster::{
        Cluster,
        file::{ClusterFile, SecurityMode},
        size::{count, seconds},
    },
    data_dir::private,
    error::{CliError, Exit},
    globals::Globals,
    observe::logging,
    processes::wiring::runtime,
};

/// How often steps and the supervisor are looked at.
const LAUNCH_TICK: Duration = Duration::from_millis(250);

/// A token is made just before its node is started.
const TOKEN_TTL: Duration = Duration::from_secs(600);

/// How long processes may take to end once the supervisor was told to end the cluster.
const END_WITHIN: Duration = Duration::from_secs(15);

/// Launches a cluster.
#[derive(Debug, Subcommand)]
pub enum LaunchVerb {
    /// On the nodes of the Slurm job that this runs in
    Slurm(Box<SlurmArgs>),
}

/// `asterism launch slurm`
#[derive(Args, Debug)]
pub struct SlurmArgs {
    /// Shared folder of journal, certificates, tokens and logs; it outlives the job [default: asterism-JOBID where it was submitted]
    #[arg(long, value_name = "FOLDER")]
    pub folder: Option<PathBuf>,
    /// Stop taking work so long before the time limit; half of it is for answers under way
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "60")]
    pub drain: Duration,
    /// Have Slurm queue the job again once it has drained
    #[arg(long)]
    pub requeue: bool,
    /// Give up when no host is ready after so long
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "300")]
    pub timeout: Duration,
    /// Context hosts of each node, as Slurm writes it [default: SLURM_TASKS_PER_NODE]
    #[arg(long, value_name = "COUNTS")]
    pub tasks_per_node: Option<String>,
    /// Behind each node's name in its network's names, such as -ib0
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub address_suffix: Option<String>,
    /// Run once the cluster is ready, with ASTERISM_SERVER set; the cluster ends with it
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// Runs the verb.
pub fn run(globals: &Globals, verb: &LaunchVerb) -> Result<Exit, CliError> {
    let LaunchVerb::Slurm(args) = verb;
    logging::client(globals);
    let mut variables: BTreeMap<String, String> = std::env::vars().collect();
    if let Some(counts) = &args.tasks_per_node {
        variables.insert("SLURM_TASKS_PER_NODE".into(), counts.clone());
    }
    let list = allocation::node_list(&variables).map_err(refused)?;
    let hostnames = slurm_says("scontrol", &["show", "hostnames", list])?;
    let shown = slurm_says("scontrol", &["show", "node", "-o", list])?;
    let mut allocation = Allocation::read(&variables, &hostnames, &shown).map_err(refused)?;
    find_leaves(&mut allocation)?;
    check_place(&allocation, variables.get("SLURMD_NODENAME"))?;
    let job = allocation.job.to_string();
    let left = slurm_says("squeue", &["--noheader", "--jobs", &job, "--Format=TimeLeft"])?;
    let left = allocation::time_left(&left).map_err(refused)?;
    if let Some(left) = left.filter(|left| *left <= args.drain) {
        return Err(CliError::usage(format!(
            "job {job} has {} s left, and --drain takes {} s of them: it would drain before it began",
            left.as_secs(),
            args.drain.as_secs_f64()
        ))
        .hint("give the job more time (sbatch --time), or a shorter --drain"));
    }
    let ends = left.map(|left| Instant::now() + left);
    let folder = Folder::make(args, &allocation)?;
    let topology = write_topology(globals, args, &allocation, &folder)?;
    globals.note(format_args!(
        "job {job}{}: {} on {}; topology, journal and logs in {}",
        if allocation.restarts > 0 {
            format!(", queued again {}", count(allocation.restarts as usize, "time"))
        } else {
            String::new()
        },
        count(allocation.nodes.iter().map(|node| node.tasks).sum(), "context host"),
        count(allocation.nodes.len(), "node"),
        folder.0.display(),
    ));
    let globals = Globals { file: Some(topology), server: None, beside: None, ..globals.clone() };
    let launched = Launched::new(&globals, args, &allocation, &folder)?;
    runtime()?.block_on(launched.keep(ends))
}

/// Has each node know its switch or block, where Slurm has a topology.
fn find_leaves(allocation: &mut Allocation) -> Result<(), CliError> {
    // Without one, some versions print nothing and others fail.
    let Ok(shown) = slurm_says("scontrol", &["show", "topology"]) else { return Ok(()) };
    for (leaf, nodes) in allocation::leaves(&shown) {
        if allocation.nodes.iter().all(|node| node.leaf.is_some()) {
            break;
        }
        let there = slurm_says("scontrol", &["show", "hostnames", nodes])?;
        let there: BTreeSet<&str> = there.split_whitespace().collect();
        for node in allocation.nodes.iter_mut().filter(|node| there.contains(node.name.as_str())) {
            node.leaf.get_or_insert_with(|| leaf.clone());
        }
    }
    Ok(())
}

/// The shared folder.
struct Folder(PathBuf);

impl Folder {
    fn make(args: &SlurmArgs, allocation: &Allocation) -> Result<Self, CliError> {
        let own = || allocation.submitted_in.join(format!("asterism-{}", allocation.job));
        let folder = args.folder.clone().unwrap_or_else(own);
        let folder = std::path::absolute(&folder).unwrap_or(folder);
        let made = Self(folder);
        private::folder(&made.0)?;
        for inner in [made.logs(), made.tokens(), made.0.join("nodes")] {
            private::make(&inner).map_err(|error| private::refused(&inner, "make", &error))?;
        }
        Ok(made)
    }

    fn topology(&self) -> PathBuf {
        self.0.join("topology.toml")
    }

    /// Names of hosts that a drain cordoned, a line each: the journal keeps that they are.
    fn drained(&self) -> PathBuf {
        self.0.join("drained")
    }

    fn logs(&self) -> PathBuf {
        self.0.join("logs")
    }

    fn tokens(&self) -> PathBuf {
        self.0.join("tokens")
    }

    /// The data_dir of a node, which no other node uses.
    fn of_node(&self, node: &str) -> PathBuf {
        self.0.join("nodes").join(node)
    }
}

/// The supervisor and its ports are on the first node, and so must be who looks for free ones.
fn check_place(allocation: &Allocation, here: Option<&String>) -> Result<(), CliError> {
    let first = &allocation.nodes[0].name;
    match here {
        Some(here) if here == first => Ok(()),
        _ => Err(CliError::usage(format!(
            "this runs on {}, and the supervisor's place is the job's first node, {first}",
            here.map_or("no node of the job".into(), |here| format!("node {here}"))
        ))
        .hint(format!(
            "start it there: srun --overlap --nodes=1 --ntasks=1 --nodelist={first} --pty asterism launch slurm, as deploy/slurm/interactive does"
        ))),
    }
}

fn write_topology(
    globals: &Globals,
    args: &SlurmArgs,
    allocation: &Allocation,
    folder: &Folder,
) -> Result<PathBuf, CliError> {
    let base = globals.typed_cluster_if_any()?.unwrap_or_default();
    if base.security.mode == SecurityMode::Insecure {
        return Err(CliError::usage("the cluster file says mode = \"insecure\", and other jobs reach these nodes")
            .hint("set [security] mode = \"mtls\": each node gets certificates by a token"));
    }
    let suffix = args.address_suffix.as_deref();
    let addresses = addresses(allocation, suffix)?;
    let site = Site {
        ports: [free_port(addresses[0])?, free_port(addresses[0])?, free_port(IpAddr::from([127, 0, 0, 1]))?],
        addresses,
        data_dir: folder.0.join("supervisor"),
    };
    let file: ClusterFile = topology(&base, allocation, &site);
    Cluster::resolve(&file, &folder.0).map_err(|error| {
        CliError::usage(format!("the cluster file does not fit the job: {error}"))
            .hint("correct the file named with -f; its nodes and hosts come from Slurm")
    })?;
    let text = toml::to_string_pretty(&file).expect("the typed file is TOML");
    let path = folder.topology();
    private::replace(&path, text.as_bytes()).map_err(|error| private::refused(&path, "write", &error))?;
    Ok(path)
}

/// Where nodes reach each other.
fn addresses(allocation: &Allocation, suffix: Option<&str>) -> Result<Vec<IpAddr>, CliError> {
    let mut addresses = Vec::new();
    for node in &allocation.nodes {
        let name = match suffix {
            Some(suffix) => format!("{}{suffix}", node.name),
            None => node.address.clone(),
        };
        let refused = |error: &dyn std::fmt::Display| {
            CliError::unreachable(format!("node {}: the name {name} has no address: {error}", node.name))
                .hint("--address-suffix names another network of the nodes")
        };
        let place: Place = name.parse().map_err(|error| refused(&error))?;
        addresses.push(place.resolve().map_err(|error| refused(&error))?);
    }
    let local = addresses.iter().filter(|address| address.is_loopback()).count();
    match addresses.iter().zip(&allocation.nodes).find(|(address, _)| address.is_loopback()) {
        Some((address, node)) if local < addresses.len() => {
            Err(CliError::usage(format!("node {} is {address} here, which other nodes do not reach", node.name))
                .hint("take its name off the line of 127.0.0.1 in /etc/hosts, or name a network with --address-suffix"))
        }
        _ => Ok(addresses),
    }
}

/// A port that nobody listens at, over UDP or TCP.
fn free_port(address: IpAddr) -> Result<u16, CliError> {
    let refused = |error: std::io::Error| {
        CliError::unreachable(format!("no port of {address} is free here: {error}"))
            .hint("the first node must have that address: see `scontrol show node`, or --address-suffix")
    };
    for _ in 0..16 {
        let port = UdpSocket::bind((address, 0)).and_then(|socket| socket.local_addr()).map_err(refused)?.port();
        if std::net::TcpListener::bind((address, port)).is_ok() {
            return Ok(port);
        }
    }
    Err(refused(std::io::ErrorKind::AddrInUse.into()))
}

/// What one of Slurm's commands prints.
fn slurm_says(program: &str, arguments: &[&str]) -> Result<String, CliError> {
    let asked = format!("{program} {}", arguments.join(" "));
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().map_err(|error| {
        CliError::unreachable(format!("`{asked}` cannot be run: {error}"))
            .hint("this needs Slurm's commands; without Slurm, `asterism up` starts a cluster")
    })?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(CliError::unreachable(format!(
            "`{asked}` failed ({}): {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        ))),
    }
}

fn refused(error: AllocationError) -> CliError {
    CliError::usage(error).hint("deploy/slurm has a batch script and an interactive form")
}

/// A cluster in a job.
struct Launched<'a> {
    globals: &'a Globals,
    args: &'a SlurmArgs,
    job: u64,
    tokens: PathBuf,
    drained: PathBuf,
    supervisor: Step,
    nodes: Vec<Step>,
    /// What runs beside the cluster.
    command: Option<Child>,
    /// Whether it was said that the cluster is ready.
    announced: bool,
}

/// Why it ends.
enum End {
    /// A signal asked for it.
    Signal(EndSignal),
    /// `asterism down` ended the cluster.
    Down,
    /// The command ended with a code.
    Command(Option<i32>),
    /// The time limit is near, or Slurm said so by SIGUSR1.
    Limit,
}

impl<'a> Launched<'a> {
    fn new(
        globals: &'a Globals,
        args: &'a SlurmArgs,
        allocation: &Allocation,
        folder: &Folder,
    ) -> Result<Self, CliError> {
        let cluster = globals.cluster()?;
        let file = || [OsString::from("-f"), folder.topology().into()];
        let work = |name: String, node: &str, arguments: Vec<OsString>| Work {
            log: folder.logs().join(format!("{name}.log")),
            name,
            node: node.to_owned(),
            arguments: arguments.into_iter().chain(file()).collect(),
            variables: Vec::new(),
        };
        let first = &allocation.nodes[0].name;
        let of_node = |node: &allocation::AllocatedNode| {
            let words = ["node", "--join", &cluster.listen.to_string(), "--name", &node.name, "--token-file"];
            let arguments = words.into_iter().map(OsString::from).chain([folder.tokens().join(&node.name).into()]);
            let variables = vec![("ASTERISM__CLUSTER__DATA_DIR", folder.of_node(&node.name).into())];
            Step::new(Work { variables, ..work(format!("node-{}", node.name), &node.name, arguments.collect()) })
        };
        Ok(Self {
            globals,
            args,
            job: allocation.job,
            tokens: folder.tokens(),
            drained: folder.drained(),
            supervisor: Step::new(work("supervisor".into(), first, vec!["supervisor".into()])),
            nodes: allocation.nodes.iter().map(of_node).collect(),
            command: None,
            announced: false,
        })
    }

    /// Keeps the cluster until something ends it, then ends it in order.
    async fn keep(mut self, ends: Option<Instant>) -> Result<Exit, CliError> {
        let mut signals = Signals::listen(Hangup::Ends)?;
        let mut limit = signal(SignalKind::user_defined1())
            .map_err(|error| CliError::unreachable(format!("signals cannot be handled: {error}")))?;
        let drains = ends.and_then(|ends| ends.checked_sub(self.args.drain));
        let end = self.until_end(&mut signals, &mut limit, drains).await;
        if let Ok(End::Limit) = end {
            self.drain(&mut signals).await;
        }
        if let Some(mut command) = self.command.take() {
            // One that has ended needs no signal.
            let _ = command.start_kill();
        }
        self.shut_down().await;
        match end? {
            End::Signal(signal) => Ok(signal.exit()),
            End::Down | End::Command(Some(0)) => Ok(Exit::Success),
            End::Command(code) => Err(CliError::new(
                Exit::JobFailed,
                format!(
                    "{:?} ended with {}",
                    self.args.command[0],
                    code.map_or("a signal".into(), |code| format!("exit {code}"))
                ),
            )),
            End::Limit => self.requeue(),
        }
    }

    async fn until_end(
        &mut self,
        signals: &mut Signals,
        limit: &mut Signal,
        drains: Option<Instant>,
    ) -> Result<End, CliError> {
        let started = Instant::now();
        let mut tick = tokio::time::interval(LAUNCH_TICK);
        loop {
            tokio::select! {
                signal = signals.next() => return Ok(End::Signal(signal)),
                _ = limit.recv() => return Ok(End::Limit),
                _ = tick.tick() => {}
            }
            if drains.is_some_and(|drains| Instant::now() >= drains) {
                return Ok(End::Limit);
            }
            if let Some(end) = self.look_after_steps()? {
                return Ok(end);
            }
            if let Some(command) = &mut self.command
                && let Ok(Some(status)) = command.try_wait()
            {
                self.command = None;
                return Ok(End::Command(status.code()));
            }
            if !self.announced {
                self.announce(started)?;
            }
        }
    }

    /// Starts what is due; a node once the supervisor has given a token for it.
    fn look_after_steps(&mut self) -> Result<Option<End>, CliError> {
        match self.supervisor.look() {
            Seen::Due => self.supervisor.start()?,
            Seen::Done => return Ok(Some(End::Down)),
            Seen::Refused => return Err(ended_for_good(&self.supervisor)),
            Seen::Fine => {}
        }
        let mut serves = true;
        for step in &mut self.nodes {
            match step.look() {
                // A supervisor that gives no token to one gives none to the next: all of them wait for the next look.
                Seen::Due => {
                    serves = serves && token(self.globals, &self.tokens, step.node()).is_ok();
                    if serves {
                        step.start()?;
                    }
                }
                // Its supervisor ended it, and is about to end.
                Seen::Done => step.put_off(),
                Seen::Refused => return Err(ended_for_good(step)),
                Seen::Fine => {}
            }
        }
        Ok(None)
    }

    /// Says once that the cluster is ready, and starts the command: when all hosts are, or those that are when the time is over.
    fn announce(&mut self, started: Instant) -> Result<(), CliError> {
        let late = started.elapsed() > self.args.timeout;
        let status = match Client::find(self.globals).and_then(|client| self.open_again(&client)) {
            Ok(status) if complete(&status) || (late && status.ready) => status,
            _ if late => {
                return Err(CliError::unreachable(format!(
                    "no host is ready after {} s",
                    self.args.timeout.as_secs_f64()
                ))
                .hint(format!("see {}", self.supervisor.log().with_file_name("").display())));
            }
            _ => return Ok(()),
        };
        self.announced = true;
        let client = Client::find(self.globals)?;
        let ready = status.hosts.iter().filter(|host| host.health == HostHealth::Ready).count();
        self.globals.note(format_args!(
            "cluster '{}' is ready: {ready} of {}, admin API {}",
            status.name,
            count(status.hosts.len(), "host"),
            client.base()
        ));
        let file = self.globals.file.as_deref().unwrap_or(Path::new("")).display();
        self.globals.note(format_args!("next, on this node: asterism status -f {file}"));
        if let [program, arguments @ ..] = &self.args.command[..] {
            let command = tokio::process::Command::new(program)
                .args(arguments)
                .env("ASTERISM_SERVER", client.base())
                .kill_on_drop(true)
                .spawn()
                .map_err(|error| CliError::usage(format!("{program:?} cannot be started: {error}")))?;
            self.command = Some(command);
        }
        Ok(())
    }

    /// Gives work to hosts that the drain of an earlier life cordoned, and looks at all.
    fn open_again(&self, client: &Client) -> Result<ClusterStatus, CliError> {
        let status = client.topology()?;
        let Ok(drained) = fs::read_to_string(&self.drained) else { return Ok(status) };
        for host in drained.lines().filter(|name| status.hosts.iter().any(|host| host.name == *name)) {
            client.schedule_host(host, Scheduling::Open, None)?;
        }
        fs::remove_file(&self.drained).map_err(|error| private::refused(&self.drained, "remove", &error))?;
        client.topology()
    }

    /// Gives hosts nothing new, and waits for answers under way.
    async fn drain(&mut self, signals: &mut Signals) {
        self.globals.note("the time limit is near: hosts take nothing new");
        let until = Instant::now() + self.args.drain / 2;
        let Ok(client) = Client::find(self.globals) else { return };
        if let Ok(status) = client.topology() {
            let open: Vec<&str> = status
                .hosts
                .iter()
                .filter(|host| host.scheduling == Scheduling::Open)
                .map(|host| host.name.as_str())
                .collect();
            if let Err(error) = private::replace(&self.drained, open.join("\n").as_bytes()) {
                self.globals.note(format_args!("hosts go on taking work: {}: {error}", self.drained.display()));
                return;
            }
            for host in open {
                // One that is not there has nothing.
                let _ = client.schedule_host(host, Scheduling::Cordoned, None);
            }
        }
        let mut tick = tokio::time::interval(LAUNCH_TICK);
        while Instant::now() < until && client.topology().is_ok_and(|status| status.jobs_running > 0) {
            tokio::select! {
                _ = signals.next() => return,
                _ = tick.tick() => {}
            }
        }
    }

    /// Ends the cluster; what is not done stands in the journal.
    async fn shut_down(&mut self) {
        let asked = Client::find(self.globals).and_then(|client| client.shutdown());
        if let Err(error) = asked {
            tracing::debug!(%error, "the supervisor cannot be asked to end; Slurm ends what is left");
            return;
        }
        let until = Instant::now() + END_WITHIN;
        let mut tick = tokio::time::interval(LAUNCH_TICK);
        loop {
            tick.tick().await;
            self.supervisor.look();
            self.nodes.iter_mut().for_each(|step| {
                step.look();
            });
            let left = self.nodes.iter().chain([&self.supervisor]).filter(|step| step.runs()).count();
            if left == 0 || Instant::now() > until {
                return;
            }
        }
    }

    fn requeue(&self) -> Result<Exit, CliError> {
        if !self.args.requeue {
            self.globals.note(
                "the cluster is down before its time limit; jobs and sessions wait in its folder for the next launch",
            );
            return Ok(Exit::Success);
        }
        slurm_says("scontrol", &["requeue", &self.job.to_string()])?;
        self.globals.note(format_args!("job {} is queued again; jobs and sessions wait in its folder", self.job));
        Ok(Exit::Success)
    }
}

fn complete(status: &ClusterStatus) -> bool {
    status.ready && status.hosts.iter().all(|host| host.health == HostHealth::Ready)
}

/// Puts a new token for `node` where its agent looks for it.
fn token(globals: &Globals, folder: &Path, node: &str) -> Result<(), CliError> {
    let token = Client::find(globals)?.create_join_token(node, TOKEN_TTL)?.token;
    let path = folder.join(node);
    private::replace(&path, format!("{token}\n").as_bytes()).map_err(|error| private::refused(&path, "write", &error))
}

fn ended_for_good(step: &Step) -> CliError {
    let cause = crate::data_dir::last_error(step.log(), 0).unwrap_or_else(|| "it refused its configuration".into());
    CliError::usage(format!("{} is not started again: {cause}", step.name()))
        .hint(format!("see {}", step.log().display()))
}
