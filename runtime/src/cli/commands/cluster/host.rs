//! `host list|show|cordon|uncordon|drain|restart|remove|replace`: which hosts take work. Where it moves to is the supervisor's decision.

mod restart;

use std::{
    thread,
    time::{Duration, Instant},
};

use asterism_actors::api::{HostHealth, HostStatus, Scheduling};
use clap::{Args, Subcommand};

use crate::{
    cli::{
        output::{self, Table, lower},
        progress,
    },
    client::Client,
    cluster::size::{bytes, count, seconds},
    error::{CliError, Exit},
    globals::{Format, Globals},
    observe::logging,
};

const STATUS_POLL: Duration = Duration::from_millis(200);
/// What a drain gets beyond its own deadline.
const DRAIN_MARGIN: Duration = Duration::from_secs(10);

/// `asterism host`
#[derive(Debug, Subcommand)]
pub enum HostVerb {
    /// Show all hosts
    List,
    /// Show one host
    Show(HostName),
    /// Give a host nothing new; it keeps what it has
    Cordon(HostName),
    /// Let a host take work again
    Uncordon(HostName),
    /// Move what a host has to others, and give it nothing new; waits until it is empty
    Drain(DrainArgs),
    /// Have a host give away what it has, end, and be started again; waits until it is ready
    Restart(restart::RestartArgs),
    /// Say that a host will not come back: nobody waits for it, and status, metrics and alerts forget it
    Remove(HostName),
    /// Let a spare take a dead host's place
    Replace(ReplaceArgs),
}

/// A host by its name.
#[derive(Args, Debug)]
pub struct HostName {
    /// Host of the cluster file
    pub name: String,
}

/// `asterism host drain`
#[derive(Args, Debug)]
pub struct DrainArgs {
    /// Host of the cluster file
    pub name: String,
    /// Seconds until what has not moved is taken away all the same, and jobs wait for it [default: no limit]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub deadline: Option<Duration>,
}

/// `asterism host replace`
#[derive(Args, Debug)]
pub struct ReplaceArgs {
    /// The host that is dead
    pub dead: String,
    /// The spare host that takes its place
    pub spare: String,
}

/// Runs a verb of the group.
pub fn run(globals: &Globals, verb: HostVerb) -> Result<Exit, CliError> {
    logging::client(globals);
    let client = Client::find(globals)?;
    match verb {
        HostVerb::List => list(globals, &client)?,
        HostVerb::Show(HostName { name }) => {
            let host = progress::answered(globals, &client, |client| client.host(&name))?;
            show(globals, &host)?;
            globals.note(next(&host));
        }
        HostVerb::Cordon(HostName { name }) => schedule(globals, &client, &name, Scheduling::Cordoned)?,
        HostVerb::Uncordon(HostName { name }) => schedule(globals, &client, &name, Scheduling::Open)?,
        HostVerb::Remove(HostName { name }) => schedule(globals, &client, &name, Scheduling::Removed)?,
        HostVerb::Drain(args) => drain(globals, &client, &args)?,
        HostVerb::Restart(args) => restarted(globals, &restart::restart(globals, &client, &args)?)?,
        HostVerb::Replace(ReplaceArgs { dead, spare }) => {
            show(globals, &client.replace_host(&dead, &spare)?)?;
            globals.note(format_args!("{spare} takes the place of {dead}; next: asterism host list"));
        }
    }
    Ok(Exit::Success)
}

fn list(globals: &Globals, client: &Client) -> Result<(), CliError> {
    let hosts = progress::answered(globals, client, Client::hosts)?;
    output::print_rows(&hosts, globals.format, table)?;
    for (host, cause) in hosts.iter().filter_map(|host| Some((host, host.explained()?))) {
        globals.note(format_args!("{}: {cause}", host.name));
    }
    let unwell = hosts.iter().find(|host| host.health != HostHealth::Ready);
    globals
        .note(format_args!("next: asterism host show {}", unwell.or(hosts.first()).map_or("NAME", |host| &host.name)));
    Ok(())
}

fn schedule(globals: &Globals, client: &Client, name: &str, scheduling: Scheduling) -> Result<(), CliError> {
    let host = client.schedule_host(name, scheduling, None)?;
    show(globals, &host)?;
    globals.note(next(&host));
    Ok(())
}

fn drain(globals: &Globals, client: &Client, args: &DrainArgs) -> Result<(), CliError> {
    let started = Instant::now();
    let mut host = client.schedule_host(&args.name, Scheduling::Draining, args.deadline)?;
    let first = host.shards;
    while host.shards > 0 {
        if args.deadline.is_some_and(|deadline| started.elapsed() > deadline + DRAIN_MARGIN) {
            let waited = started.elapsed().as_secs_f64();
            return Err(CliError::new(
                Exit::TimedOut,
                format!(
                    "host '{}' still has {} of {} after {waited:.0} s",
                    host.name,
                    host.shards,
                    count(first, "shard")
                ),
            )
            .hint(format!("asterism host show {}", host.name)));
        }
        thread::sleep(STATUS_POLL);
        let before = host.shards;
        host = client.host(&args.name)?;
        if host.shards < before {
            globals.note(format_args!("{}: {} of {} elsewhere", host.name, first - host.shards, count(first, "shard")));
        }
        if host.scheduling == Scheduling::Open {
            return Err(CliError::new(Exit::NotFound, format!("host '{}' was opened for work meanwhile", host.name))
                .hint(format!("asterism host drain {}", host.name)));
        }
    }
    show(globals, &host)?;
    globals.note(format_args!(
        "{} is empty after {:.1} s, {} moved",
        host.name,
        started.elapsed().as_secs_f64(),
        count(first, "shard")
    ));
    globals.note(next(&host));
    Ok(())
}

fn restarted(globals: &Globals, hosts: &[HostStatus]) -> Result<(), CliError> {
    match hosts {
        [host] => {
            show(globals, host)?;
            globals.note(next(host));
        }
        hosts => {
            output::print_rows(hosts, globals.format, table)?;
            globals.note("next: asterism status");
        }
    }
    Ok(())
}

fn next(host: &HostStatus) -> String {
    match (host.health, host.scheduling) {
        (_, Scheduling::Removed) => format!(
            "next: take {0} out of the cluster file, too; asterism host uncordon {0} takes it in again if it comes back after all",
            host.name
        ),
        (HostHealth::Dead, _) => format!("next: asterism host replace {} SPARE, if it does not come back", host.name),
        (_, Scheduling::Open) => format!("next: asterism host drain {} moves its shards to others", host.name),
        _ => format!("next: asterism host uncordon {} lets it take work again", host.name),
    }
}

fn show(globals: &Globals, host: &HostStatus) -> Result<(), CliError> {
    if globals.format != Format::Table {
        return output::print_json(host, globals.format);
    }
    let mut lines = vec![
        ("host", host.name.clone()),
        ("role", lower(&host.role)),
        ("node", or_dash(&host.node)),
        ("device", host.device.clone()),
        ("state", lower(&host.health)),
        ("work", lower(&host.scheduling)),
        ("shards", host.shards.to_string()),
        ("threads", host.threads.map_or("-".into(), |threads| threads.to_string())),
        ("kv", bytes(host.kv_bytes)),
        ("restarts", host.restarts.to_string()),
        ("process", host.pid.map_or("-".into(), |pid| pid.to_string())),
        ("protocol", host.protocol.map_or("-".into(), |version| version.to_string())),
        ("build", or_dash(host.build.as_deref().unwrap_or_default())),
        ("address", host.address.clone().unwrap_or("-".into())),
        ("data", data_links(host)),
        ("heard", host.heartbeat_age_s.map_or("-".into(), |age| format!("{age:.1} s ago"))),
    ];
    if !host.model.is_empty() {
        lines.insert(2, ("model", host.model.clone()));
    }
    lines.extend(host.explained().map(|cause| ("cause", cause)));
    output::print_pairs(&lines)
}

/// What its links to other hosts go over, and why.
pub fn data_links(host: &HostStatus) -> String {
    let links: Vec<String> = host.data_links.iter().map(|links| links.to_string()).collect();
    if links.is_empty() { "-".into() } else { links.join("; ") }
}

fn table(hosts: &[HostStatus]) -> Table {
    let mut table = Table::new([
        "HOST", "ROLE", "MODEL", "NODE", "STATE", "WORK", "SHARDS", "KV", "RESTARTS", "PROTO", "BUILD", "HEARD",
    ]);
    for host in hosts {
        table.row([
            host.name.clone(),
            lower(&host.role),
            or_dash(&host.model),
            or_dash(&host.node),
            lower(&host.health),
            lower(&host.scheduling),
            host.shards.to_string(),
            bytes(host.kv_bytes),
            host.restarts.to_string(),
            host.protocol.map_or("-".into(), |version| version.to_string()),
            or_dash(host.build.as_deref().unwrap_or_default()),
            host.heartbeat_age_s.map_or("-".into(), |age| format!("{age:.1} s ago")),
        ]);
    }
    let has_names = hosts.iter().any(|host| !host.model.is_empty());
    if has_names { table } else { table.without(2) }
}

fn or_dash(text: &str) -> String {
    if text.is_empty() { "-".into() } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, health: HostHealth) -> HostStatus {
        serde_json::from_value(serde_json::json!({
            "name": name, "role": "context", "node": "local", "scheduling": "draining", "shards": 3, "device": "cpu",
            "health": health, "pid": 7, "address": "127.0.0.1:53410", "heartbeat_age_s": 0.12, "kv_bytes": 12_345_678,
            "cause": null, "restarts": 2, "protocol": 3, "build": "0a1b2c3d",
        }))
        .unwrap()
    }

    #[test]
    fn the_list_fits_100_columns() {
        let text = table(&[host("context-0", HostHealth::Ready), host("context-1", HostHealth::Dead)]).to_string();
        insta::assert_snapshot!(text, @r"
        HOST       ROLE     NODE   STATE  WORK      SHARDS        KV  RESTARTS  PROTO     BUILD      HEARD
        context-0  context  local  ready  draining       3  11.8 MiB         2      3  0a1b2c3d  0.1 s ago
        context-1  context  local  dead   draining       3  11.8 MiB         2      3  0a1b2c3d  0.1 s ago
        ");
        assert!(text.lines().all(|line| line.chars().count() <= 100));
    }
}
