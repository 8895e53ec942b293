//! A cluster served by this process: the lock, the supervisor, its hosts here, the admin API. Prints nothing.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use asterism_actors::{
    api::{ClusterStatus, HostHealth, HostStatus},
    supervisor::Supervisor,
};
use tokio::sync::{Notify, mpsc};

use crate::{
    children::{Children, Exited, Launch, local_hosts},
    cluster::Cluster,
    credentials, data_dir,
    error::{CliError, Exit},
    globals,
    http::{self, AdminServer, AdminState},
    wiring,
};

/// How long hosts may take to end by themselves.
const GRACE: Duration = Duration::from_secs(3);
/// How often readiness is looked at.
const POLL: Duration = Duration::from_millis(50);

/// A running cluster.
pub struct Service {
    /// Its configuration.
    pub cluster: Cluster,
    /// Its supervisor.
    pub supervisor: Supervisor,
    /// Who serves it, as other commands find it.
    pub record: data_dir::Record,
    /// Whether the cluster's CA was made just now.
    pub made_authority: bool,
    admin: AdminServer,
    children: Children,
    stop_wanted: Arc<Notify>,
    lock: data_dir::Lock,
    started: Instant,
}

impl Service {
    /// Starts everything of `cluster` that belongs on this machine; `file` is what host processes read.
    pub async fn start(cluster: Cluster, file: PathBuf) -> Result<Self, CliError> {
        let started = Instant::now();
        let lock = data_dir::lock(&cluster.data_dir, &cluster.name)?;
        let names = local_hosts(&cluster).into_iter().map(|host| host.name.as_str());
        let made_authority = credentials::provide(&cluster, names.chain([credentials::SUPERVISOR]))?;
        let token = cluster.security.token_file.as_deref().map(globals::read_token).transpose()?;
        let (supervisor, address) = wiring::start_supervisor(&cluster).await?;
        let stop_wanted = Arc::new(Notify::new());
        let state = AdminState { supervisor: supervisor.clone(), token, stop_wanted: stop_wanted.clone() };
        let admin = http::serve(cluster.admin_listen, state)?;
        let record = data_dir::Record { pid: std::process::id(), admin: admin.address };
        lock.publish(&record).map_err(|error| {
            CliError::usage(format!("cannot write to data_dir {}: {error}", cluster.data_dir.display()))
        })?;
        let (exits, ended) = mpsc::unbounded_channel();
        let children = Children::start(&cluster, &Launch { file, supervisor: address }, &exits)?;
        tokio::spawn(tell_exits(supervisor.clone(), ended));
        Ok(Self { cluster, supervisor, record, made_authority, admin, children, stop_wanted, lock, started })
    }

    /// Waits until every host is ready; `changed` hears of each status with its age. Gives up at once when a host dies.
    pub async fn ready(
        &self,
        limit: Duration,
        mut changed: impl FnMut(&ClusterStatus, Duration),
    ) -> Result<ClusterStatus, CliError> {
        loop {
            let status = self.supervisor.cluster().await.map_err(CliError::unreachable)?;
            let age = self.started.elapsed();
            changed(&status, age);
            if status.ready {
                return Ok(status);
            }
            let dead = |host: &&HostStatus| host.health == HostHealth::Dead;
            if let Some(host) = status.hosts.iter().find(dead) {
                return Err(self.not_ready(host, age));
            }
            if age > limit {
                let late = |host: &&HostStatus| host.health != HostHealth::Ready;
                return Err(match status.hosts.iter().find(late) {
                    Some(host) => self.not_ready(host, age),
                    None => CliError::unreachable("the cluster has no hosts"),
                });
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Completes when a client asks for the end.
    pub async fn stop_wanted(&self) {
        self.stop_wanted.notified().await;
    }

    /// Process ids of the hosts on this machine.
    pub fn host_pids(&self) -> Vec<u32> {
        self.children.pids().into_values().collect()
    }

    /// Ends hosts, supervisor and admin API, in this order; no process is left.
    pub async fn stop(self) {
        self.supervisor.shutdown().await;
        self.children.stop(GRACE).await;
        self.admin.stop().await;
        drop(self.lock);
    }

    fn not_ready(&self, host: &HostStatus, age: Duration) -> CliError {
        not_ready(&self.cluster, host, age)
    }
}

/// Which host, in which phase, and why, probably.
pub fn not_ready(cluster: &Cluster, host: &HostStatus, age: Duration) -> CliError {
    let phase = match (host.health, host.pid) {
        (HostHealth::Starting, _) => "starting: it has not reached the supervisor",
        (HostHealth::Loading, _) => "loading the model",
        (HostHealth::Dead, None) => "starting",
        (HostHealth::Dead, Some(_)) => "loading the model",
        (HostHealth::Ready | HostHealth::Suspect, _) => "joined",
    };
    let log = data_dir::log_file(&cluster.data_dir, &host.name);
    let local = local_hosts(cluster).iter().any(|local| local.name == host.name);
    let cause = match &host.cause {
        Some(cause) => cause.clone(),
        None if !local => {
            format!("nobody started it on its node; run `asterism host --name {} -f FILE` there", host.name)
        }
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

async fn tell_exits(supervisor: Supervisor, mut ended: mpsc::UnboundedReceiver<Exited>) {
    while let Some(Exited { host, cause }) = ended.recv().await {
        tracing::info!(host, cause, "host process ended");
        supervisor.host_exited(&host, &cause);
    }
}
