//! The cluster file of a cluster that runs, and what comes of another one while it does: what is checked, what is told to whom, what is
//! kept. What differs, and what that takes, is `cluster::file::changes`.

use std::{
    io,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use asterism_actors::{
    JobError,
    api::{HostHealth, HostStatus, Scheduling},
    cluster_event::ClusterEventKind,
    messages::Settings,
    supervisor::{EventListener, ModelFront, Supervisor, SupervisorConfig},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::sync::Mutex as AsyncMutex;

use crate::{
    cluster::{
        Cluster, ClusterError, Model,
        file::{
            self, ClusterFile, FileError, JoinedNodes,
            changes::{Change, changes},
        },
    },
    data_dir::{self, private},
    error::CliError,
    globals,
    observe::logging,
};

/// Where nodes that joined with hosts of their own are kept, in data_dir.
const JOINED_FILE: &str = "joined.toml";
/// How long a host that is in the file no more may take to give its work away.
const RETIRES_WITHIN: Duration = Duration::from_secs(3600);
/// What is left is then lost with its process, and encoded again.
const ENDS_WITHIN: Duration = Duration::from_secs(60);

/// Why a cluster file is not applied.
#[derive(Debug, Error)]
pub enum ApplyError {
    /// It cannot be read.
    #[error("the cluster file: {0}")]
    File(#[from] FileError),
    /// It contradicts itself.
    #[error("the cluster file: {0}")]
    Cluster(#[from] ClusterError),
    /// A cluster that runs does not take it.
    #[error("nothing was changed: {}. `asterism config apply FILE --dry-run` shows all changes", listed(changes))]
    NeedsRestart {
        /// What needs a restart.
        changes: Vec<Change>,
    },
    /// What it names cannot be used.
    #[error("nothing was changed: {0}")]
    Refused(CliError),
    /// The supervisor does not take it.
    #[error(transparent)]
    Supervisor(#[from] JobError),
    /// It cannot be kept.
    #[error("nothing was changed: {} cannot be written: {cause}", path.display())]
    Kept {
        /// The file.
        path: PathBuf,
        /// What the system says.
        cause: io::Error,
    },
}

fn listed(changes: &[Change]) -> String {
    changes.iter().map(Change::to_string).collect::<Vec<_>>().join("; ")
}

/// What came of a cluster file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Applied {
    /// What it says otherwise than the one before.
    pub changes: Vec<Change>,
    /// Whether that is so from now on.
    pub applied: bool,
}

/// What the cluster file says now. Clones are of one.
#[derive(Clone)]
pub struct RunningFile {
    state: Arc<RwLock<Running>>,
    /// One after another.
    turn: Arc<AsyncMutex<()>>,
    /// Where relative paths start.
    directory: Arc<PathBuf>,
    /// What the supervisor is told of a cluster.
    configured: Configured,
}

/// The models of a cluster, in its order; those that are known by their labels are taken as they are. Reads files.
pub type ReadModels = fn(&Cluster, &[Arc<ModelFront>]) -> Result<Vec<Arc<ModelFront>>, CliError>;

/// What the supervisor is told of a cluster.
#[derive(Clone, Copy)]
pub struct Configured {
    /// Its models.
    pub models: ReadModels,
    /// What the supervisor works by, with these models.
    pub config: fn(&Cluster, &[Arc<ModelFront>]) -> SupervisorConfig,
    /// Has the weights of a model hashed, in a data_dir, and the supervisor told.
    pub hash: fn(&Supervisor, &Model, &Path),
}

struct Running {
    /// As it was read, without the nodes that joined.
    base: ClusterFile,
    joined: JoinedNodes,
    cluster: Cluster,
}

impl Running {
    fn file(&self) -> ClusterFile {
        self.joined.laid_over(&self.base)
    }
}

impl RunningFile {
    /// The file of a cluster that is about to run, with the nodes that joined it before.
    ///
    /// # Errors
    /// When these are not readable, or contradict the file.
    pub fn begin(
        (text, directory): (&str, &Path),
        cluster: &Cluster,
        configured: Configured,
    ) -> Result<Self, CliError> {
        let base = globals::as_typed(text).map_err(CliError::usage)?;
        let path = data_dir::shared(cluster).join(JOINED_FILE);
        let refused = |cause: &dyn std::fmt::Display| {
            CliError::usage(format!("{}: {cause}", path.display()))
                .hint("these nodes joined with hosts of their own; move the file away to forget them")
        };
        let joined = match std::fs::read_to_string(&path) {
            Ok(text) => toml::from_str(&text).map_err(|error| refused(&error))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => JoinedNodes::default(),
            Err(error) => return Err(refused(&error)),
        };
        let mut running = Running { base, joined, cluster: cluster.clone() };
        let resolved = resolved(&running.file(), directory).map_err(|error| refused(&error))?;
        // Addresses are as the command line and the system had them.
        running.cluster.hosts = resolved.hosts;
        Ok(Self {
            state: Arc::new(RwLock::new(running)),
            turn: Arc::default(),
            directory: Arc::new(directory.to_owned()),
            configured,
        })
    }

    /// The cluster as it is now.
    pub fn cluster(&self) -> Cluster {
        self.state.read().unwrap_or_else(PoisonError::into_inner).cluster.clone()
    }

    /// Has the cluster be as `text` says, but for the nodes `without` of those that joined. `dry_run`: says alone what that changes.
    pub async fn apply(
        &self,
        supervisor: &Supervisor,
        (text, without): (&str, &[String]),
        dry_run: bool,
    ) -> Result<Applied, ApplyError> {
        let _turn = self.turn.lock().await;
        let base = globals::as_typed(text)?;
        let joined = self.state.read().unwrap_or_else(PoisonError::into_inner).joined.without(&base, without);
        self.change(supervisor, (base, joined), dry_run).await
    }

    /// Takes in a node that joined from an address with hosts of its own: the text of `[[host]]` sections.
    pub async fn join(
        &self,
        supervisor: &Supervisor,
        (node, from): (&str, IpAddr),
        hosts: &str,
    ) -> Result<(), ApplyError> {
        let _turn = self.turn.lock().await;
        let (base, joined) = {
            let running = self.state.read().unwrap_or_else(PoisonError::into_inner);
            (running.base.clone(), running.joined.with(&running.base, (node, from), hosts)?)
        };
        let applied = self.change(supervisor, (base, joined), false).await?;
        tracing::info!(node, %from, changes = applied.changes.len(), "a node joined with hosts of its own");
        Ok(())
    }

    /// Has the supervisor work by what is read beside the cluster file, such as measured links, as that is now.
    pub async fn read_again(&self, supervisor: &Supervisor) -> Result<(), ApplyError> {
        let _turn = self.turn.lock().await;
        let (base, joined, cluster) = {
            let running = self.state.read().unwrap_or_else(PoisonError::into_inner);
            (running.base.clone(), running.joined.clone(), running.cluster.clone())
        };
        self.take(supervisor, (base, joined), (cluster, supervisor.models())).await.map(drop)
    }

    async fn change(
        &self,
        supervisor: &Supervisor,
        (base, joined): (ClusterFile, JoinedNodes),
        dry_run: bool,
    ) -> Result<Applied, ApplyError> {
        let (before, joined_before, path) = {
            let running = self.state.read().unwrap_or_else(PoisonError::into_inner);
            (running.file(), running.joined.clone(), data_dir::shared(&running.cluster).join(JOINED_FILE))
        };
        let file = joined.laid_over(&base);
        let wanted = resolved(&file, &self.directory)?;
        logging::filter_of(&wanted.log.filter).map_err(ApplyError::Refused)?;
        let changes = changes(&before, &file);
        if changes.is_empty() {
            return Ok(Applied { changes, applied: !dry_run });
        }
        let models = self.models(supervisor, &wanted).await?;
        if dry_run {
            return Ok(Applied { changes, applied: false });
        }
        let refused: Vec<Change> = changes.iter().filter(|change| !change.takes.while_it_runs()).cloned().collect();
        if !refused.is_empty() {
            return Err(ApplyError::NeedsRestart { changes: refused });
        }
        keep(&path, &joined).await?;
        let gone = match self.take(supervisor, (base, joined), (wanted, models)).await {
            Ok(gone) => gone,
            Err(error) => {
                // Nothing came of it, and nothing of it is to come after the supervisor's next start.
                keep(&path, &joined_before).await?;
                return Err(error);
            }
        };
        changes.iter().for_each(|change| tracing::info!(%change, "the cluster file changed"));
        for host in gone {
            tokio::spawn(retire(supervisor.clone(), host));
        }
        Ok(Applied { changes, applied: true })
    }

    /// The models of a cluster that is wanted, read beside what else is to be done.
    async fn models(&self, supervisor: &Supervisor, wanted: &Cluster) -> Result<Vec<Arc<ModelFront>>, ApplyError> {
        let (configured, wanted, known) = (self.configured, wanted.clone(), supervisor.models());
        let models = beside(move || (configured.models)(&wanted, &known)).await?;
        models.map_err(ApplyError::Refused)
    }

    /// Brings it into force. Returns the hosts that are in the file no more.
    async fn take(
        &self,
        supervisor: &Supervisor,
        (base, joined): (ClusterFile, JoinedNodes),
        (wanted, models): (Cluster, Vec<Arc<ModelFront>>),
    ) -> Result<Vec<String>, ApplyError> {
        let (gone, come, cluster, logged) = {
            let running = self.state.read().unwrap_or_else(PoisonError::into_inner);
            let gone = running.cluster.hosts.iter().filter(|host| wanted.host(&host.name).is_none());
            let gone: Vec<String> = gone.map(|host| host.name.clone()).collect();
            let come = wanted.hosts.iter().filter(|host| running.cluster.host(&host.name).is_none());
            let come: Vec<String> = come.map(|host| host.name.clone()).collect();
            let Cluster { listen, admin_listen, api, log, .. } = running.cluster.clone();
            let cluster = Cluster { listen, admin_listen, api, ..wanted };
            let logged = (cluster.log.filter != log.filter).then(|| cluster.log.filter.clone());
            (gone, come, cluster, logged)
        };
        let text = toml::to_string_pretty(&joined.laid_over(&base)).expect("the typed file is TOML");
        let settings = Settings { log: logged.clone(), cluster_file: Some(text) };
        let known = supervisor.models();
        let config = (self.configured.config)(&cluster, &models);
        supervisor.reconfigure((config, models), settings).await?;
        for model in cluster.models().filter(|model| !known.iter().any(|known| known.label == model.label())) {
            (self.configured.hash)(supervisor, model, &cluster.data_dir);
        }
        logged.map_or(Ok(()), |filter| logging::change(&filter)).map_err(ApplyError::Refused)?;
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = Running { base, joined, cluster };
        for host in come {
            // One of that name was here before.
            if supervisor.host(&host).await?.scheduling == Scheduling::Removed {
                supervisor.schedule_host(&host, Scheduling::Open, None).await?;
            }
        }
        Ok(gone)
    }
}

/// Does what waits for a disk where nobody else waits for it.
async fn beside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, JobError> {
    tokio::task::spawn_blocking(work).await.map_err(|panic| JobError::Internal { cause: panic.to_string() })
}

/// Keeps who joined, for the supervisor's next start.
async fn keep(path: &Path, joined: &JoinedNodes) -> Result<(), ApplyError> {
    let text = toml::to_string_pretty(joined).expect("the typed file is TOML");
    let to = path.to_owned();
    let kept = beside(move || private::replace(&to, text.as_bytes())).await?;
    kept.map_err(|cause| ApplyError::Kept { path: path.to_owned(), cause })
}

/// With the overrides of this process's environment.
fn resolved(file: &ClusterFile, directory: &Path) -> Result<Cluster, ApplyError> {
    let text = toml::to_string(file).expect("the typed file is TOML");
    Ok(Cluster::resolve(&file::parse(&text, std::env::vars())?, directory)?)
}

/// Waits until a host is as it is to be: looks when something happened to it.
async fn until(
    is: impl Fn(&HostStatus) -> bool,
    supervisor: &Supervisor,
    (host, events): (&str, &mut EventListener),
) -> Result<(), JobError> {
    while !is(&supervisor.host(host).await?) {
        loop {
            let event = events.next().await.ok_or(JobError::Stopping)?;
            match &event.update {
                ClusterEventKind::HostScheduled { host: of, .. }
                | ClusterEventKind::HostLeft { host: of }
                | ClusterEventKind::HostLost { host: of, .. }
                    if of == host =>
                {
                    break;
                }
                ClusterEventKind::EventsMissed => break,
                _ => {}
            }
        }
    }
    Ok(())
}

/// Has a host give away what it has, and end for good.
async fn retire(supervisor: Supervisor, host: String) {
    let ended = async {
        let mut events = supervisor.events(None).await?;
        let is_gone = |host: &HostStatus| matches!(host.health, HostHealth::Dead | HostHealth::Starting);
        let found = supervisor.host(&host).await?;
        if !is_gone(&found) {
            let has_no_model = supervisor.models().iter().all(|model| model.label != found.model);
            match supervisor.schedule_host(&host, Scheduling::Draining, Some(RETIRES_WITHIN)).await {
                // Nobody could take what the last host of a model has that is in the file no more.
                Err(JobError::LastHost { .. }) if has_no_model => {
                    supervisor.schedule_host(&host, Scheduling::Cordoned, None).await?;
                }
                drained => {
                    let has_moved = |host: &HostStatus| is_gone(host) || host.scheduling != Scheduling::Draining;
                    drained?;
                    until(has_moved, &supervisor, (&host, &mut events)).await?;
                }
            }
            supervisor.restart_host(&host, ENDS_WITHIN).await?;
            until(is_gone, &supervisor, (&host, &mut events)).await?;
        }
        supervisor.schedule_host(&host, Scheduling::Removed, None).await.map(drop)
    };
    match ended.await {
        Ok(()) => tracing::info!(host, "is in the cluster file no more, and was removed"),
        Err(error) => tracing::warn!(host, %error, "is in the cluster file no more, and is not removed"),
    }
}
