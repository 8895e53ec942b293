//! `up`, `down` and `status`: a whole cluster as one thing.

pub mod backup;
mod detach;
pub mod events;
pub mod host;
pub mod launch;
mod offering;
pub mod process;
pub mod top;
mod up;

use std::{
    collections::{BTreeMap, HashSet},
    fmt::Display,
    time::{Duration, Instant},
};

use asterism_actors::api::{
    ClusterStatus, GpuStatus, HostHealth, HostStatus, ModelStatus, Role, SelfTestReport, SelfTestState, StoredStatus,
};
use clap::Args;
use rustix::process::Signal;

use crate::{
    cli::{
        output::{self, Table, lower},
        progress,
    },
    client::Client,
    cluster::{
        Cluster,
        size::{bytes, seconds},
    },
    data_dir,
    error::{CliError, Exit},
    globals::{Format, Globals},
    observe::logging,
    processes::{node::signal, readiness},
};
pub use up::up;

/// `asterism up`
#[derive(Args, Debug)]
pub struct UpArgs {
    /// Leave the cluster running in the background
    #[arg(long)]
    pub detach: bool,
    /// Give up when a host is not ready after so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "120")]
    pub timeout: Duration,
    /// This is the background process of --detach
    #[arg(long, hide = true, conflicts_with = "detach")]
    pub in_background: bool,
}

/// `asterism down`
#[derive(Args, Debug)]
pub struct DownArgs {
    /// Seconds to wait for an orderly end before ending processes
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "10")]
    pub timeout: Duration,
}

/// When each host became ready.
#[derive(Default)]
pub struct Readiness {
    seconds: Vec<(String, f64)>,
    announced: HashSet<String>,
    /// When it was last said what is waited for.
    told: Option<Duration>,
}

impl Readiness {
    /// Takes a status in; says which hosts became ready.
    pub fn see(&mut self, globals: &Globals, status: &ClusterStatus, age: Duration) {
        for host in status.hosts.iter().filter(|host| host.health == HostHealth::Ready) {
            if self.announced.insert(host.name.clone()) {
                self.seconds.push((host.name.clone(), age.as_secs_f64()));
                if globals.verbose > 0 {
                    globals.note(format_args!("{} ready after {:.1} s", host.name, age.as_secs_f64()));
                }
            }
        }
        if let Some(awaited) = readiness::awaited(status) {
            self.tell(globals, age, awaited);
        }
    }

    /// Says what is waited for, where a person has waited for long without a word.
    pub fn tell(&mut self, globals: &Globals, age: Duration, awaited: impl Display) {
        if self.told.map_or(age >= progress::WORDLESS, |told| age >= told + progress::LINE_EVERY) {
            globals.note(format_args!("after {:.0} s: waiting for {awaited}", age.as_secs_f64()));
            self.told = Some(age);
        }
    }

    /// The readiness table, and where to go from here.
    pub fn show(
        &self,
        globals: &Globals,
        status: &ClusterStatus,
        record: &data_dir::ServerRecord,
    ) -> Result<(), CliError> {
        match globals.format {
            Format::Table => output::print(&self.table(status).to_string())?,
            format => output::print_json(status, format)?,
        }
        globals.note(format_args!(
            "cluster '{}' is ready: model {}, method {}, admin API {} (process {})",
            status.name,
            status.model,
            status.method,
            record.url(),
            record.pid
        ));
        self_tested(status).into_iter().for_each(|note| globals.note(note));
        if let Some(api) = record.api {
            let scheme = if record.api_tls { "https" } else { "http" };
            globals.note(format_args!("OpenAI's API is at {scheme}://{api}/v1"));
        }
        globals.note("next: asterism job submit --context FILE --query TEXT");
        Ok(())
    }

    fn table(&self, status: &ClusterStatus) -> Table {
        let mut table = Table::new(["HOST", "ROLE", "PID", "ADDRESS", "STATE", "SECONDS"]);
        for host in &status.hosts {
            let seconds = self.seconds.iter().find(|(name, _)| *name == host.name);
            table.row([
                host.name.clone(),
                lower(&host.role),
                host.pid.map_or("-".into(), |pid| pid.to_string()),
                host.address.clone().unwrap_or("-".into()),
                lower(&host.health),
                seconds.map_or("-".into(), |(_, seconds)| format!("{seconds:.1}")),
            ]);
        }
        table
    }
}

/// Stops the cluster; nothing of it is left.
pub fn down(globals: &Globals, args: &DownArgs) -> Result<Exit, CliError> {
    logging::client(globals);
    if globals.server.is_some() {
        let client = Client::find(globals)?;
        client.shutdown()?;
        globals.note(format_args!("{} was asked to end", client.base()));
        return Ok(Exit::Success);
    }
    let cluster = globals.cluster()?;
    data_dir::look(&cluster.data_dir)?;
    let (served, keeper) = (data_dir::running(&cluster.data_dir), data_dir::keeper(&cluster.data_dir));
    let pids: Vec<u32> = keeper.into_iter().chain(served.iter().map(|record| record.pid)).collect();
    let Some(first) = pids.first().copied() else {
        elsewhere(globals, &cluster)?;
        globals.note(format_args!("cluster '{}' is not running", cluster.name));
        return Ok(Exit::Success);
    };
    let asked = Client::find(globals).and_then(|client| client.shutdown());
    if let Err(error) = &asked {
        tracing::warn!("{error}; ending process {first} by signal");
    }
    let gone = || data_dir::running(&cluster.data_dir).is_none() && data_dir::keeper(&cluster.data_dir).is_none();
    let killed = || pids.iter().filter(|pid| signal(**pid, Signal::KILL)).count() > 0;
    let ended = (asked.is_ok() && within(args.timeout, gone))
        || (signal(first, Signal::TERM) && within(Duration::from_secs(10), gone))
        || (killed() && within(Duration::from_secs(5), gone));
    if !ended {
        return Err(CliError::new(
            Exit::TimedOut,
            format!("process {first} of cluster '{}' does not end", cluster.name),
        )
        .hint(format!("look at it with `ps -p {first}`")));
    }
    globals.note(format_args!("cluster '{}' is down", cluster.name));
    Ok(Exit::Success)
}

/// Refuses to say that a cluster that nobody runs from its data_dir is not running where one answers at its address.
fn elsewhere(globals: &Globals, cluster: &Cluster) -> Result<(), CliError> {
    if cluster.admin_listen.port() == 0 {
        return Ok(());
    }
    let Ok(client) = Client::find(globals) else { return Ok(()) };
    match client.topology() {
        Ok(status) => {
            let (name, base, folder) = (status.name, client.base(), cluster.data_dir.display());
            let what = format!("a cluster '{name}' runs at {base}, and nobody runs it from data_dir {folder}");
            Err(CliError::unreachable(what).hint(format!(
                "that folder was emptied or moved, or it is another cluster of this name: `asterism down --server {base}` stops it"
            )))
        }
        Err(error) if error.exit == Exit::Unreachable && !client.has_answered() => Ok(()),
        Err(error) if error.exit == Exit::Unreachable => {
            Err(CliError { hint: Some(format!("`asterism down --server {}` stops it", client.base())), ..error })
        }
        Err(error) => Err(error),
    }
}

/// Whether `done` came true in time.
fn within(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let started = Instant::now();
    loop {
        if done() {
            return true;
        }
        if started.elapsed() > limit {
            return false;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Shows hosts and jobs.
pub fn status(globals: &Globals) -> Result<Exit, CliError> {
    logging::client(globals);
    let client = Client::find(globals)?;
    let status = progress::answered(globals, &client, Client::topology)?;
    match globals.format {
        Format::Table => output::print(&status_table(&status.hosts).to_string())?,
        format => output::print_json(&status, format)?,
    }
    unequal(&status.hosts).into_iter().for_each(|note| globals.note(note));
    protocols(&status.hosts).into_iter().for_each(|note| globals.note(note));
    self_tested(&status).into_iter().for_each(|note| globals.note(note));
    status.stored.as_ref().map(stored).into_iter().for_each(|note| globals.note(note));
    for ModelStatus { name, digest, answers } in &status.models {
        let digest = digest.as_deref().unwrap_or("being hashed");
        globals.note(format_args!("model {name} ({digest}) {}", if *answers { "answers" } else { "does not answer" }));
    }
    status.gpus.iter().for_each(|found| globals.note(gpu(found)));
    globals.note(format_args!(
        "cluster '{}' at {} is {}: model {}{}, method {}, {} running, {} waiting",
        status.name,
        client.base(),
        if status.ready { "ready" } else { "not ready" },
        status.model,
        status.model_digest.as_ref().map(|digest| format!(" ({digest})")).unwrap_or_default(),
        status.method,
        status.jobs_running,
        status.jobs_pending,
    ));
    globals.note(match status.ready {
        true => "next: asterism job submit --context FILE --query TEXT",
        false => "next: asterism host list shows who is missing, and why",
    });
    Ok(Exit::Success)
}

/// A GPU of a node's machine, in a line.
fn gpu(GpuStatus { node, gpu }: &GpuStatus) -> String {
    let memory = gpu.used_bytes.zip(gpu.free_bytes);
    let parts = [
        gpu.busy_percent.map(|percent| format!("{percent}% busy")),
        memory.map(|(used, free)| format!("{} of {} used", bytes(used), bytes(used.saturating_add(free)))),
        gpu.celsius.map(|celsius| format!("{celsius} C")),
        gpu.sm_mhz.map(|mhz| format!("{mhz} MHz")),
        gpu.errors(),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    format!("GPU {} of node {node} ({}): {}", gpu.index, gpu.name, parts.join(", "))
}

/// What clients keep.
fn stored(stored: &StoredStatus) -> String {
    let [all, most, own, own_most] =
        [stored.bytes, stored.max_bytes, stored.largest_key_bytes, stored.max_bytes_per_key].map(bytes);
    format!("clients keep {all} of at most {most} in files and batches, the key with the most {own} of {own_most}")
}

/// How its latest self-test stands, where there was one.
fn self_tested(status: &ClusterStatus) -> Option<String> {
    let SelfTestReport { state, cause, done, total, seconds, .. } = status.self_test.as_ref()?;
    let cause = cause.as_deref().unwrap_or_default();
    Some(match state {
        SelfTestState::None => return None,
        SelfTestState::Pending => "the self-test waits for hosts: no work is taken before it has passed".into(),
        SelfTestState::Running => format!("a self-test runs: {done} of {total} canaries answered"),
        SelfTestState::Passed => format!("the self-test passed: {total} canaries in {seconds:.1} s"),
        SelfTestState::Wrong => {
            format!(
                "the self-test found wrong answers, and no work is taken until one passes (`asterism self-test`): {cause}"
            )
        }
        SelfTestState::Undone => format!("the self-test could not be done: {cause}"),
    })
}

/// What to know of hosts that do not all compute the same bits.
fn unequal(hosts: &[HostStatus]) -> Option<String> {
    let mut by_numerics: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for host in hosts.iter().filter(|host| host.role != Role::Query) {
        if let Some(numerics) = &host.numerics {
            by_numerics.entry(numerics).or_default().push(&host.name);
        }
    }
    let of = |(numerics, names): (&str, Vec<&str>)| format!("{numerics}: {}", names.join(", "));
    (by_numerics.len() > 1).then(|| {
        let groups: Vec<String> = by_numerics.into_iter().map(of).collect();
        format!("numerics differ, and the shards of a job stay among equals: {}", groups.join("; "))
    })
}

/// That hosts speak different versions of the protocol, as they do while a cluster is upgraded.
fn protocols(hosts: &[HostStatus]) -> Option<String> {
    let mut spoken: BTreeMap<u16, Vec<&str>> = BTreeMap::new();
    for (version, host) in hosts.iter().filter_map(|host| Some((host.protocol?, host))) {
        spoken.entry(version).or_default().push(&host.name);
    }
    let of = |(version, names): (u16, Vec<&str>)| format!("version {version}: {}", names.join(", "));
    let groups: Vec<String> = spoken.into_iter().map(of).collect();
    (groups.len() > 1).then(|| format!("hosts speak different versions of the protocol: {}", groups.join("; ")))
}

fn status_table(hosts: &[HostStatus]) -> Table {
    let mut table = Table::new(["HOST", "ROLE", "STATE", "PID", "ADDRESS", "THREADS", "KV", "DATA", "HEARD", "CAUSE"]);
    for host in hosts {
        table.row([
            host.name.clone(),
            lower(&host.role),
            lower(&host.health),
            host.pid.map_or("-".into(), |pid| pid.to_string()),
            host.address.clone().unwrap_or("-".into()),
            host.threads.map_or("-".into(), |threads| threads.to_string()),
            bytes(host.kv_bytes),
            super::cluster::host::data_links(host),
            host.heartbeat_age_s.map_or("-".into(), |age| format!("{age:.1} s ago")),
            host.explained().unwrap_or_default(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, role: &str, numerics: Option<&str>) -> HostStatus {
        let of = serde_json::json!({
            "name": name, "role": role, "device": "cpu", "health": "ready", "kv_bytes": 0, "numerics": numerics,
        });
        serde_json::from_value(of).expect("a host")
    }

    #[test]
    fn hosts_that_differ_are_told_whoever_is_not_there_yet() {
        let mut hosts = vec![host("c0", "context", Some("a")), host("q0", "query", Some("b"))];
        assert_eq!(unequal(&hosts), None, "shards go to context hosts and spares");
        hosts.extend([host("c1", "context", None), host("s0", "spare", Some("b"))]);
        let note = unequal(&hosts).expect("a note");
        assert!(note.ends_with("a: c0; b: s0"), "{note}");
    }
}
