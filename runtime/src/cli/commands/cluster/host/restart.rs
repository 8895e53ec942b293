//! `host restart`: one host, or every host in turn. What it holds moves first; how, is the supervisor's decision.

use std::{
    collections::BTreeMap,
    thread,
    time::{Duration, Instant},
};

use asterism_actors::api::{HostHealth, HostStatus, Role, Scheduling};
use clap::Args;

use crate::{
    cli::output,
    client::Client,
    cluster::size::{count, seconds},
    error::{CliError, Exit},
    globals::Globals,
};

const STATUS_POLL: Duration = Duration::from_millis(200);

/// What a host may take beyond its deadline to end.
const RESTART_MARGIN: Duration = Duration::from_secs(10);

/// `asterism host restart`
#[derive(Args, Debug)]
pub struct RestartArgs {
    /// Host of the cluster file
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    pub name: Option<String>,
    /// Every host, one after the other: the next when the one before is ready again
    #[arg(long)]
    pub all: bool,
    /// Seconds that a host may take to give away what it has; what it then has is encoded again elsewhere
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "60")]
    pub deadline: Duration,
    /// Give up when a host is not ready again so many seconds after it ended
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "120")]
    pub timeout: Duration,
}

/// Restarts one host, or all; returns them as they are then.
pub fn restart(globals: &Globals, client: &Client, args: &RestartArgs) -> Result<Vec<HostStatus>, CliError> {
    let Some(name) = &args.name else { return restart_all(globals, client, args) };
    let before = client.host(name)?;
    Ok(vec![restart_one(globals, client, (&before, args))?])
}

fn restart_all(globals: &Globals, client: &Client, args: &RestartArgs) -> Result<Vec<HostStatus>, CliError> {
    let started = Instant::now();
    let mut hosts = client.hosts()?;
    // Who generates goes last: by then those that it asks are as they stay.
    hosts.sort_by_key(|host| (host.role == Role::Query, host.role == Role::Context));
    let before: BTreeMap<String, Option<u32>> = hosts.iter().map(|host| (host.name.clone(), host.pid)).collect();
    let mut ended = Vec::new();
    for host in hosts {
        let now = client.host(&host.name)?;
        // Hosts of one process are restarted together.
        let is_another = now.pid != before[&host.name] && now.health == HostHealth::Ready;
        ended.push(if is_another { now } else { restart_one(globals, client, (&now, args))? });
    }
    let (hosts, were) = (count(ended.len(), "host"), if ended.len() == 1 { "was" } else { "were" });
    globals.note(format_args!("{hosts} {were} restarted in {:.1} s", started.elapsed().as_secs_f64()));
    Ok(ended)
}

/// Restarts a host that was `before`, and waits until another process of it is ready.
fn restart_one(
    globals: &Globals,
    client: &Client,
    (before, args): (&HostStatus, &RestartArgs),
) -> Result<HostStatus, CliError> {
    let (started, name) = (Instant::now(), &before.name);
    let mut host = client.restart_host(name, args.deadline)?;
    let (shards, mut left) = (before.shards, None);
    loop {
        if host.pid != before.pid || host.health == HostHealth::Dead {
            left.get_or_insert_with(|| started.elapsed());
        }
        let is_another = host.pid != before.pid || before.health == HostHealth::Dead;
        if is_another && host.health == HostHealth::Ready && host.scheduling != Scheduling::Draining {
            let (gave, took) = (left.unwrap_or_default().as_secs_f64(), started.elapsed().as_secs_f64());
            globals.note(format_args!(
                "{name}: gave {} away in {gave:.1} s, ready again after {took:.1} s (process {})",
                count(shards, "shard"),
                host.pid.unwrap_or_default()
            ));
            return Ok(host);
        }
        let limit = left.map_or(args.deadline + RESTART_MARGIN, |left| left + args.timeout);
        if started.elapsed() > limit {
            let waited = started.elapsed().as_secs_f64();
            let (state, cause) = (output::lower(&host.health), host.explained().unwrap_or_default());
            let message = format!("host '{name}' is not ready again after {waited:.0} s, but {state}. {cause}");
            return Err(CliError::new(Exit::TimedOut, message.trim_end())
                .hint(format!("asterism host show {name}; hosts behind it were left as they are")));
        }
        thread::sleep(STATUS_POLL);
        host = patient(client, name)?;
    }
}

/// The host, or the supervisor's silence for a moment, which ends no restart.
fn patient(client: &Client, name: &str) -> Result<HostStatus, CliError> {
    let mut tries = 20;
    loop {
        match client.host(name) {
            Err(error) if error.exit == Exit::Unreachable && tries > 0 => tries -= 1,
            answer => return answer,
        }
        thread::sleep(STATUS_POLL);
    }
}
