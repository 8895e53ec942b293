//! A cluster for the length of one command: ports chosen by the operating system, its data in a folder that goes with it.

use std::{fs, path::PathBuf, time::Duration};

use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::{
    certificates::credentials,
    client::Client,
    cluster::{Cluster, file::ClusterFile},
    data_dir::start_file::StartFile,
    error::CliError,
    globals::{self, Globals},
    observe::metrics,
    processes::{
        local_hosts,
        node::{Launch, NodeAgent, SupervisorTie},
        readiness::Wait,
        service::SupervisorService,
        wiring::runtime,
    },
};

/// How long hosts may take to end by themselves.
const TEMPORARY_STOP_TIMEOUT: Duration = Duration::from_secs(3);

/// A running temporary cluster. Dropping it without [`TemporaryCluster::stop`] ends its processes all the same.
pub struct TemporaryCluster {
    runtime: Runtime,
    cluster: Cluster,
    service: SupervisorService,
    agent: NodeAgent,
    _folder: TempDir,
}

impl TemporaryCluster {
    /// Starts `file` under other addresses and another data_dir, and waits until it is ready.
    pub fn start(file: ClusterFile, limit: Duration) -> Result<Self, CliError> {
        let failed = |error: std::io::Error| CliError::unreachable(format!("no temporary folder can be made: {error}"));
        let folder = tempfile::Builder::new().prefix("asterism-").tempdir().map_err(failed)?;
        let path = folder.path().join(globals::DEFAULT_FILE);
        let text = toml::to_string_pretty(&relocated(file)).expect("the typed file is TOML");
        fs::write(&path, &text).map_err(failed)?;
        let cluster = globals::load(&path)?;
        let runtime = runtime()?;
        let file = StartFile::new(path, folder.path(), text.clone());
        let (service, agent) = runtime.block_on(serve(&cluster, (file, &text), limit))?;
        Ok(Self { runtime, cluster, service, agent, _folder: folder })
    }

    /// Its admin API.
    pub fn client(&self, globals: &Globals) -> Result<Client, CliError> {
        let token = self.cluster.security.token_file.as_deref().map(globals::read_token).transpose()?;
        Client::of(&self.cluster, &self.service.record, token, globals.request_timeout)
    }

    /// Its processes: this one, then the hosts.
    pub fn pids(&self) -> Vec<u32> {
        [std::process::id()].into_iter().chain(self.agent.pids().into_values()).collect()
    }

    /// Ends it.
    pub fn stop(self) {
        self.runtime.block_on(stop(self.service, self.agent));
    }
}

async fn serve(
    cluster: &Cluster,
    (file, text): (StartFile, &str),
    limit: Duration,
) -> Result<(SupervisorService, NodeAgent), CliError> {
    metrics::install();
    let read = (text, file.beside());
    let service = SupervisorService::start(cluster, read, |cause| tracing::error!(%cause, "waits")).await?;
    let hosts = local_hosts(cluster);
    credentials::provide(cluster, hosts.iter().map(|host| host.member()))?;
    let launch = Launch::new(file, service.record.listen)?;
    let (agent, exits) = NodeAgent::start(cluster, &hosts, &launch);
    tokio::spawn(SupervisorTie::new(cluster, &hosts, &launch.supervisor, (&agent, exits))?.hold());
    let look = async || service.supervisor.cluster().await.map_err(CliError::unreachable);
    match (Wait { cluster, agent: &agent, limit }).ready(look, |_, _| ()).await {
        Ok(_) => Ok((service, agent)),
        Err(error) => {
            stop(service, agent).await;
            Err(error)
        }
    }
}

async fn stop(service: SupervisorService, agent: NodeAgent) {
    // Hosts and their node are told of the end: nobody warns of a supervisor that is lost.
    service.shut_down().await;
    agent.stop(TEMPORARY_STOP_TIMEOUT).await;
}

/// Sections whose relative paths were meant for another folder have absolute ones already.
fn relocated(mut file: ClusterFile) -> ClusterFile {
    file.cluster.data_dir = Some(PathBuf::from("data"));
    file.cluster.listen = "127.0.0.1:0".into();
    file.api.admin_listen = "127.0.0.1:0".into();
    file.api.listen = None;
    file.hosts.iter_mut().for_each(|host| host.port = 0);
    file
}
