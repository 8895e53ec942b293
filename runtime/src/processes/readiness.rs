//! Waiting until every host of a cluster is ready, and saying which one is not, and why. Starts nothing.

use std::time::{Duration, Instant};

use asterism_actors::api::{ClusterStatus, HostHealth, HostStatus};

use crate::{
    cluster::Cluster,
    data_dir,
    error::{CliError, Exit},
    processes::{local_hosts, node::NodeAgent},
};

/// How often readiness is looked at.
const READINESS_POLL: Duration = Duration::from_millis(50);

/// What is waited for, and for how long.
pub struct Wait<'a> {
    /// The cluster.
    pub cluster: &'a Cluster,
    /// Who runs its hosts here.
    pub agent: &'a NodeAgent,
    /// Most time.
    pub limit: Duration,
}

impl Wait<'_> {
    /// Waits; `look` asks for the status, `changed` is called with each and its age. Gives up at once when a host of this
    /// machine is not started any more.
    pub async fn ready(
        &self,
        mut look: impl AsyncFnMut() -> Result<ClusterStatus, CliError>,
        mut changed: impl FnMut(&ClusterStatus, Duration),
    ) -> Result<ClusterStatus, CliError> {
        let started = Instant::now();
        loop {
            let looked = look().await;
            let age = started.elapsed();
            if let Ok(status) = &looked {
                changed(status, age);
                if status.is_settled() {
                    return looked;
                }
                if let Some(error) = self.given_up(status, age) {
                    return Err(error);
                }
            }
            if age > self.limit {
                let late = |host: &&HostStatus| host.health != HostHealth::Ready;
                let status = looked?;
                return Err(match status.hosts.iter().find(late) {
                    Some(host) => not_ready(self.cluster, host, age),
                    None => untested(&status, age),
                });
            }
            tokio::time::sleep(READINESS_POLL).await;
        }
    }

    fn given_up(&self, status: &ClusterStatus, age: Duration) -> Option<CliError> {
        let exit = self.agent.given_up().into_iter().next()?;
        let host = status.hosts.iter().find(|host| host.name == exit.host)?;
        // The supervisor may not have heard of the end yet.
        let cause = host.cause.clone().unwrap_or(exit.cause);
        Some(not_ready(self.cluster, &HostStatus { health: HostHealth::Dead, cause: Some(cause), ..host.clone() }, age))
    }
}

/// That hosts are there and their self-test has not ended.
fn untested(status: &ClusterStatus, age: Duration) -> CliError {
    let stated = status.self_test.iter().flat_map(|test| [&test.doing, &test.cause]).flatten().next();
    let stated = stated.map(|stated| format!(": {stated}")).unwrap_or_default();
    CliError::unreachable(format!("the self-test has not passed after {:.1} s{stated}", age.as_secs_f64()))
        .hint("`asterism up` again, with --timeout SECONDS if it needs longer")
}

/// How far a host is.
fn phase(host: &HostStatus) -> &'static str {
    match (host.health, host.pid) {
        (HostHealth::Starting, _) => "starting: it has not reached the supervisor",
        (HostHealth::Loading, _) => "loading the model",
        (HostHealth::Dead, None) => "starting",
        (HostHealth::Dead, Some(_)) => "loading the model",
        (HostHealth::Ready | HostHealth::Suspect, _) => "joined",
    }
}

/// What is waited for, in words; nothing where all is there.
pub fn awaited(status: &ClusterStatus) -> Option<String> {
    let mut late = status.hosts.iter().filter(|host| host.health != HostHealth::Ready);
    let Some(first) = late.next() else {
        let test = status.self_test.as_ref().filter(|_| !status.is_settled())?;
        return Some(match &test.doing {
            Some(doing) => format!("the self-test: {doing}"),
            None => "the self-test".into(),
        });
    };
    let others = match late.count() {
        0 => String::new(),
        more => format!(" and {more} more of {}", status.hosts.len()),
    };
    Some(format!("host '{}' ({}){others}", first.name, phase(first)))
}

/// Which host, in which phase, and why, probably.
pub fn not_ready(cluster: &Cluster, host: &HostStatus, age: Duration) -> CliError {
    let phase = phase(host);
    let log = data_dir::log_of(cluster, &host.name);
    let local = local_hosts(cluster).iter().any(|local| local.name == host.name);
    let nameless = || {
        let place = &cluster.host(&host.name)?.address.place;
        Some(format!("its node's address '{place}' is a name that has none here: {}", place.resolve().err()?))
    };
    let cause = match &host.cause {
        Some(cause) => cause.clone(),
        None if !local => nameless().unwrap_or_else(|| {
            format!(
                "nobody started it on its node; run `asterism node --join {} --name {} -f FILE` there",
                data_dir::running(&cluster.data_dir).map_or(cluster.listen, |record| record.listen),
                host.node
            )
        }),
        None => match data_dir::last_line(&log) {
            Some(line) => format!("its log ends with: {line}"),
            None => "its process is alive and silent; the machine may be overloaded".into(),
        },
    };
    let message = format!(
        "host '{}' is not ready after {:.1} s, in phase '{phase}'. Probable cause: {cause}",
        host.name,
        age.as_secs_f64()
    );
    let exit = match cause.contains("certificate") {
        true => Exit::Authentication,
        false => Exit::Unreachable,
    };
    CliError::new(exit, message)
        .hint(format!("see {}; `asterism up` again, with --timeout SECONDS if it needs longer", log.display()))
}
