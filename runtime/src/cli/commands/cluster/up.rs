//! `up`: the parent of a cluster's processes on this machine. Ends when it is told to, and takes them with it.

use std::time::Duration;

use asterism_actors::api::ClusterStatus;

use super::{Readiness, UpArgs, detach};
use crate::{
    certificates::credentials,
    cli::{
        checks,
        commands::cluster::process::{HOST_STOP_TIMEOUT, Hangup, Signals},
    },
    client::Client,
    cluster::Cluster,
    data_dir::{self, LockRole, logs, start_file::StartFile},
    error::{CliError, Exit},
    globals::{Globals, ReadFile},
    observe::{logging, service_manager::ServiceManager},
    processes::{
        keeper::Keeper,
        local_hosts,
        node::{Launch, NodeAgent, SupervisorTie},
        readiness::Wait,
        wiring::{self, runtime},
    },
};

/// Starts the cluster and stays, or leaves it in the background.
pub fn up(globals: &Globals, args: &UpArgs) -> Result<Exit, CliError> {
    if args.detach {
        logging::client(globals);
        return detach::up(globals, args.timeout);
    }
    let ReadFile { cluster, text, directory } = globals.read_cluster()?;
    checks::fit_to_start(&cluster)?;
    let log = match args.in_background {
        true => cluster.log.clone(),
        false => crate::cluster::Log { filter: "warn".into(), ..cluster.log.clone() },
    };
    logging::process(&log, globals)?;
    let file = StartFile::new(data_dir::start_file(&cluster.data_dir, LockRole::Up), &directory, text);
    let held = data_dir::lock(&cluster.data_dir, &cluster.name, LockRole::Up)?;
    // A supervisor that somebody else started is not ours to keep.
    drop(data_dir::lock(&cluster.data_dir, &cluster.name, LockRole::Supervisor)?);
    held.publish_pid()?;
    wiring::all_fit(&cluster, &local_hosts(&cluster))?;
    if credentials::found(&cluster)? {
        let folder = crate::certificates::members::ca_folder(&cluster);
        globals.note(format_args!("made the cluster's certificate authority in {}", folder.display()));
    }
    let members = local_hosts(&cluster).into_iter().map(|host| host.member());
    credentials::provide(&cluster, members.chain([crate::certificates::members::SUPERVISOR]))?;
    let hangup = if args.in_background { Hangup::Ignored } else { Hangup::Ends };
    runtime()?.block_on(async {
        let mut signals = Signals::listen(hangup)?;
        logs::keep_short(&cluster.data_dir);
        let started = tokio::select! {
            started = RunningCluster::start(globals, &cluster, file) => started?,
            _ = signals.next() => return Err(interrupted()),
        };
        started.serve(globals, args.timeout, &mut signals).await
    })
}

/// What `up` started.
struct RunningCluster<'a> {
    cluster: &'a Cluster,
    keeper: Keeper,
    agent: NodeAgent,
}

impl<'a> RunningCluster<'a> {
    async fn start(globals: &Globals, cluster: &'a Cluster, file: StartFile) -> Result<Self, CliError> {
        let waits = |cause: &str| globals.note(format_args!("the supervisor waits: {cause}"));
        let keeper = Keeper::start(cluster, file.clone(), waits).await?;
        let launch = Launch::new(file, keeper.record.listen)?;
        let hosts = local_hosts(cluster);
        let (agent, exits) = NodeAgent::start(cluster, &hosts, &launch);
        let tie = SupervisorTie::new(cluster, &hosts, &launch.supervisor, (&agent, exits))?;
        tokio::spawn(async move {
            if let Err(error) = tie.hold().await {
                tracing::error!(%error, "this machine's hosts are on their own");
            }
        });
        Ok(Self { cluster, keeper, agent })
    }

    /// Waits for readiness, then for the end; nothing is left running after it.
    async fn serve(mut self, globals: &Globals, limit: Duration, signals: &mut Signals) -> Result<Exit, CliError> {
        let mut readiness = Readiness::default();
        let wait = Wait { cluster: self.cluster, agent: &self.agent, limit };
        let record = self.keeper.record.clone();
        let look = topology(globals, self.cluster, &record)?;
        let ready = tokio::select! {
            ready = wait.ready(look, |status, age| readiness.see(globals, status, age)) => ready.map(Some),
            ended = self.keeper.ended() => ended.map(|()| None),
            _ = signals.next() => Ok(None),
        };
        let outcome = match ready {
            Ok(Some(status)) => readiness.show(globals, &status, &record),
            Ok(None) => Err(interrupted()),
            Err(error) => Err(error),
        };
        let outcome = match outcome {
            Ok(()) => {
                globals.note("Ctrl-C stops the cluster");
                let manager = ServiceManager::of_environment();
                let manager = manager.map(|manager| manager.ready(&format!("serves at {}", record.url()), || true));
                tokio::select! {
                    ended = self.keeper.ended() => {
                        if ended.is_ok() {
                            globals.note("a client asked for the end");
                            tracing::info!("ends: a client asked for the end of the cluster");
                        }
                        ended.map(|()| Exit::Success)
                    }
                    signal = signals.next() => {
                        globals.note("stopping");
                        tracing::info!("ends, and what it started with it: {signal}");
                        manager.iter().for_each(|manager| manager.stopping(&signal.to_string()));
                        Ok(signal.exit())
                    }
                }
            }
            Err(error) => Err(error),
        };
        self.keeper.stop().await;
        self.agent.stop(HOST_STOP_TIMEOUT).await;
        outcome
    }
}

/// Asks the admin API for the cluster's status.
fn topology(
    globals: &Globals,
    cluster: &Cluster,
    record: &data_dir::ServerRecord,
) -> Result<impl AsyncFnMut() -> Result<ClusterStatus, CliError>, CliError> {
    let token = cluster.security.token_file.as_deref().map(crate::globals::read_token).transpose()?;
    let client = Client::of(cluster, record, token, globals.request_timeout)?;
    Ok(async move || {
        let client = client.clone();
        let asked = tokio::task::spawn_blocking(move || client.topology()).await;
        asked.unwrap_or_else(|panic| Err(CliError::unreachable(panic)))
    })
}

fn interrupted() -> CliError {
    CliError::new(Exit::Interrupted, "interrupted before the cluster was ready; nothing is left running")
}
