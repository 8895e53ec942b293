//! `up`, `down` and `status`: a whole cluster as one thing.

mod detach;

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use asterism_actors::api::{ClusterStatus, HostHealth, HostStatus};
use clap::Args;
use rustix::process::{Pid, Signal, kill_process};

use super::process::{Hangup, Signals, cluster_file, runtime};
use crate::{
    cli::{Format, seconds},
    client::Client,
    credentials, data_dir,
    error::{CliError, Exit},
    globals::Globals,
    logging, metrics,
    output::{self, Table},
    service::Service,
    size::bytes,
};

/// `asterism up`
#[derive(Args, Debug)]
pub struct UpArgs {
    /// Leave the cluster running in the background
    #[arg(long)]
    pub detach: bool,
    /// Give up when a host is not ready after so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "120")]
    pub timeout: Duration,
}

/// `asterism down`
#[derive(Args, Debug)]
pub struct DownArgs {
    /// Seconds to wait for an orderly end before ending processes
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "10")]
    pub timeout: Duration,
}

/// Starts the cluster.
pub fn up(globals: &Globals, args: &UpArgs) -> Result<Exit, CliError> {
    if args.detach {
        logging::client(globals);
        return detach::up(globals, args.timeout);
    }
    let cluster = globals.cluster()?;
    let quieter = crate::cluster::Log { filter: "warn".into(), ..cluster.log.clone() };
    logging::process(&quieter, globals)?;
    let file = cluster_file(globals)?;
    runtime()?.block_on(async {
        metrics::install();
        let mut signals = Signals::listen(Hangup::Ends)?;
        let service = Service::start(cluster, file).await?;
        if service.made_authority {
            let folder = credentials::ca_folder(&service.cluster);
            globals.note(format_args!("made the cluster's certificate authority in {}", folder.display()));
        }
        let mut readiness = Readiness::default();
        let ready = tokio::select! {
            ready = service.ready(args.timeout, |status, age| readiness.see(globals, status, age)) => ready.map(Some),
            () = service.stop_wanted() => Ok(None),
            () = signals.next() => Ok(None),
        };
        let ready = match ready {
            Ok(Some(status)) => readiness.show(globals, &status, &service.record),
            Ok(None) => Err(interrupted()),
            Err(error) => Err(error),
        };
        if ready.is_ok() {
            globals.note("Ctrl-C stops the cluster");
            tokio::select! {
                () = service.stop_wanted() => globals.note("a client asked for the end"),
                () = signals.next() => globals.note("stopping"),
            }
        }
        service.stop().await;
        ready.map(|()| Exit::Success)
    })
}

fn interrupted() -> CliError {
    CliError::new(Exit::Interrupted, "interrupted before the cluster was ready; nothing is left running")
}

/// When each host became ready.
#[derive(Default)]
pub struct Readiness {
    seconds: Vec<(String, f64)>,
    announced: HashSet<String>,
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
    }

    /// The readiness table, and where to go from here.
    pub fn show(&self, globals: &Globals, status: &ClusterStatus, record: &data_dir::Record) -> Result<(), CliError> {
        match globals.format {
            Format::Table => output::print(&self.table(status).to_string())?,
            format => output::print_json(status, format)?,
        }
        globals.note(format_args!(
            "cluster '{}' is ready: model {}, method {}, admin API http://{} (process {})",
            status.name, status.model, status.method, record.admin, record.pid
        ));
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

fn lower(value: &impl std::fmt::Debug) -> String {
    format!("{value:?}").to_lowercase()
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
    let Some(record) = data_dir::running(&cluster.data_dir) else {
        globals.note(format_args!("cluster '{}' is not running", cluster.name));
        return Ok(Exit::Success);
    };
    let asked = Client::find(globals).and_then(|client| client.shutdown());
    if let Err(error) = &asked {
        tracing::warn!("{error}; ending process {} by signal", record.pid);
    }
    let gone = || data_dir::running(&cluster.data_dir).is_none();
    let ended = (asked.is_ok() && within(args.timeout, gone))
        || (signal(record.pid, Signal::TERM) && within(Duration::from_secs(5), gone))
        || (signal(record.pid, Signal::KILL) && within(Duration::from_secs(5), gone));
    if !ended {
        return Err(CliError::new(
            Exit::TimedOut,
            format!("process {} of cluster '{}' does not end", record.pid, cluster.name),
        )
        .hint(format!("look at it with `ps -p {}`", record.pid)));
    }
    globals.note(format_args!("cluster '{}' is down", cluster.name));
    Ok(Exit::Success)
}

/// Whether the signal reached the process.
fn signal(pid: u32, signal: Signal) -> bool {
    i32::try_from(pid).ok().and_then(Pid::from_raw).is_some_and(|pid| kill_process(pid, signal).is_ok())
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
    let status = client.topology()?;
    match globals.format {
        Format::Table => output::print(&status_table(&status.hosts).to_string())?,
        format => output::print_json(&status, format)?,
    }
    globals.note(format_args!(
        "cluster '{}' at {} is {}: model {}, method {}, {} running, {} waiting",
        status.name,
        client.base(),
        if status.ready { "ready" } else { "not ready" },
        status.model,
        status.method,
        status.jobs_running,
        status.jobs_pending,
    ));
    if !status.ready {
        globals.note("next: `asterism down`, then `asterism up` starts every host anew");
    }
    Ok(Exit::Success)
}

fn status_table(hosts: &[HostStatus]) -> Table {
    let mut table = Table::new(["HOST", "ROLE", "STATE", "PID", "ADDRESS", "KV", "HEARD", "CAUSE"]);
    for host in hosts {
        table.row([
            host.name.clone(),
            lower(&host.role),
            lower(&host.health),
            host.pid.map_or("-".into(), |pid| pid.to_string()),
            host.address.clone().unwrap_or("-".into()),
            bytes(host.kv_bytes),
            host.heartbeat_age_s.map_or("-".into(), |age| format!("{age:.1} s ago")),
            host.cause.clone().unwrap_or_default(),
        ]);
    }
    table
}
