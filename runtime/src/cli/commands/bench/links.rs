//! `bench links`: has the hosts of a running cluster measure their links, shows them, and writes them down for `plan`.

use std::{thread, time::Duration};

use asterism_actors::api::{LinkSpeed, LinksReport, LinksState, Role};
use serde::Serialize;

use crate::{
    cli::{
        output::{self, Table},
        progress,
    },
    client::Client,
    cluster::{
        Cluster,
        size::{count, duration},
    },
    data_dir::links,
    error::{CliError, Exit},
    globals::{Format, Globals},
    processes::{calibration, checkpoint},
};

/// How often it is looked at.
const RESULT_POLL: Duration = Duration::from_millis(100);

/// What `-o json` prints.
#[derive(Serialize)]
struct LinkMeasurements {
    links: Vec<LinkSpeed>,
    /// What `plan` takes of them: the slowest link, and the longest way of a question.
    wire: Option<Wire>,
    /// Where that was written; absent where `bench calibrate` did not measure the rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    written: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Wire {
    round_trip_s: f64,
    bytes_per_s: f64,
}

/// Measures to the end; exit 3 when a link could not be measured.
pub fn run(globals: &Globals) -> Result<Exit, CliError> {
    let client = Client::find(globals)?;
    let status = progress::answered(globals, &client, Client::topology)?;
    if status.jobs_running > 0 {
        globals.note(format_args!(
            "running now: {}; links carry their bytes too, and times will be too long",
            count(status.jobs_running, "job")
        ));
    }
    let mut found: LinksReport = client.measure_links()?;
    while found.state == LinksState::Running {
        thread::sleep(RESULT_POLL);
        found = client.links()?;
    }
    let links = found.links;
    if links.is_empty() {
        return Err(
            CliError::unreachable("no two hosts that work together are ready").hint("`asterism status` shows them")
        );
    }
    let queries: Vec<&str> =
        status.hosts.iter().filter(|host| host.role == Role::Query).map(|host| host.name.as_str()).collect();
    let wire = wire(&links, &queries);
    let cluster = globals.cluster_if_any()?;
    if let Some(cluster) = &cluster {
        keep(globals, cluster, &links);
    }
    let written = match (wire, &cluster) {
        (Some(wire), Some(cluster)) => write(globals, cluster, wire)?,
        _ => None,
    };
    let report = LinkMeasurements { links, wire, written };
    match globals.format {
        Format::Table => output::print(&table(&report.links).to_string())?,
        format => output::print_json(&report, format)?,
    }
    match report.links.iter().find_map(|link| Some((link, link.error.as_ref()?))) {
        Some((link, error)) => {
            Err(CliError::unreachable(format!("{} to {} was not measured: {error}", link.from, link.to))
                .hint("`asterism status` shows what links go over, and why"))
        }
        None => Ok(Exit::Success),
    }
}

/// The longest round trip of a query host and the slowest link; none where either was not measured.
fn wire(links: &[LinkSpeed], queries: &[&str]) -> Option<Wire> {
    let asked = links.iter().filter(|link| queries.contains(&link.from.as_str()));
    let round_trip_s = asked.filter_map(|link| link.round_trip_s).max_by(f64::total_cmp)?;
    let bytes_per_s = links.iter().filter_map(|link| link.bytes_per_s).min_by(f64::total_cmp)?;
    Some(Wire { round_trip_s, bytes_per_s })
}

/// Puts the links' speeds in the place of those that `bench calibrate` measured within one machine.
fn write(globals: &Globals, cluster: &Cluster, wire: Wire) -> Result<Option<String>, CliError> {
    let model = checkpoint::checkpoint_of(&cluster.model).map_err(CliError::usage)?;
    match calibration::with_wire(cluster, model.name(), (wire.round_trip_s, wire.bytes_per_s)) {
        Ok(path) => {
            globals.note(format_args!(
                "written to {}, for `plan`; a running supervisor reads it at its next start",
                path.display()
            ));
            Ok(Some(path.display().to_string()))
        }
        Err(cause) => {
            globals.note(format_args!("not written for `plan`: {cause}"));
            Ok(None)
        }
    }
}

/// Keeps them for `plan` here as the supervisor has for itself, and says which islands come of them.
fn keep(globals: &Globals, cluster: &Cluster, measured: &[LinkSpeed]) {
    if let Err(error) = links::keep(cluster, measured) {
        globals.note(format_args!("not kept for `plan`: {}: {error}", links::path(cluster).display()));
    }
    let (_, islands) = links::with_islands(cluster.clone());
    links::in_words(&islands, links::BY_LINKS).into_iter().for_each(|words| globals.note(words));
}

fn table(links: &[LinkSpeed]) -> Table {
    let mut table = Table::new(["FROM", "TO", "OVER", "16 KIB AND BACK", "MB/S", "WHY"]);
    for link in links {
        table.row([
            link.from.clone(),
            link.to.clone(),
            if link.transport.is_empty() { "-".into() } else { link.transport.clone() },
            link.round_trip_s.map_or("-".into(), |seconds| match seconds {
                s if s < 1e-3 => format!("{:.0} us", 1e6 * s),
                s => duration(s),
            }),
            link.bytes_per_s.map_or("-".into(), |rate| format!("{:.0}", 1e-6 * rate)),
            link.error.clone().unwrap_or_else(|| link.why.clone()),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plan_takes_the_slowest_link_and_the_longest_way_of_a_question() {
        let link = |from: &str, round_trip_s, bytes_per_s| LinkSpeed {
            from: from.into(),
            round_trip_s,
            bytes_per_s,
            ..LinkSpeed::default()
        };
        let links = [
            link("q", Some(1e-4), Some(3e9)),
            link("q", Some(2e-4), Some(2e9)),
            link("c0", Some(9e-4), Some(1e9)),
            link("q", None, None),
        ];
        assert_eq!(wire(&links, &["q"]), Some(Wire { round_trip_s: 2e-4, bytes_per_s: 1e9 }));
        assert_eq!(wire(&links[2..], &["q"]), None);
    }
}
