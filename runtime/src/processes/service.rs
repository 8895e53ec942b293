//! The supervisor and its APIs in this process: the lock, the actor, the listeners. Starts no host and prints nothing.

pub(crate) mod client_threads;

use std::{
    net::IpAddr,
    path::Path,
    sync::{Arc, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use asterism_actors::{
    api::HostHealth,
    store::StateStore,
    supervisor::{ModelFront, Supervisor},
};
use rustls::ServerConfig;
use tokio::{runtime::Handle, sync::Notify};

use crate::{
    api::{
        admin::{
            self as http, AdminState, Cause, Server, Waiting, link_bench::LinkBench, running::RunningFile,
            self_test::SelfTest,
        },
        anthropic,
        http::body::intake::Intake,
        openai::{self, ApiKeys, ApiState, KeptResponses, Open, Store},
        secrets,
    },
    certificates::{
        credentials,
        joining::{self, JoinContext},
        members, rotation,
    },
    cluster::Cluster,
    data_dir::{self, LockRole},
    error::{CliError, Exit},
    processes::wiring::{
        self,
        standby::{JournalTurn, SharedJournal},
    },
};
use client_threads::ClientThreads;

/// How often a disk that takes nothing is looked at.
const SERVICE_LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often one that stands by looks whether anybody leads.
const LEADER_LOOK_EVERY: Duration = Duration::from_millis(250);

/// A running supervisor.
pub struct SupervisorService {
    /// Its actor.
    pub supervisor: Supervisor,
    /// Who serves the cluster, as other commands find it.
    pub record: data_dir::ServerRecord,
    admin: Server,
    api: Option<Server>,
    clients: ClientThreads,
    stop_wanted: Arc<Notify>,
    lock: Arc<data_dir::Lock>,
    /// Where it shares the journal with others.
    shared: Option<SharedJournal>,
}

/// What must be on the disk before anything is served.
struct Ground {
    lock: data_dir::Lock,
    store: Box<dyn StateStore>,
    /// Loaded already where it stood by; else none.
    models: Vec<Arc<ModelFront>>,
}

impl SupervisorService {
    /// Takes the cluster's data_dir, starts the supervisor and its admin API, and publishes where they are. While the disk
    /// takes nothing it waits for it, and while another supervisor leads it stands by; it calls `waits` with the cause at each look. `read`: the text of the cluster file, and where its
    /// relative paths start.
    pub async fn start(cluster: &Cluster, read: (&str, &Path), waits: impl Fn(&Waiting)) -> Result<Self, CliError> {
        let token = secrets::admin_token(cluster)?;
        let (keys, tls) = (secrets::api_keys(cluster)?, secrets::api_tls(cluster)?);
        let admin_tls = secrets::admin_tls(cluster)?;
        let mut shared = wiring::shared_journal(cluster)?;
        if let Some(shared) = shared.clone() {
            let known = tokio::task::spawn_blocking(move || wiring::known_to_etcd(&shared, false)).await;
            known.unwrap_or_else(|panic| Err(CliError::unreachable(panic)))?;
        }
        let Ground { lock, store, models } = Ground::awaited(cluster, &mut shared, waits).await?;
        let file = RunningFile::begin(read, cluster, wiring::CONFIGURED)?;
        let cluster = &file.cluster();
        let models = wiring::supervisors_models(cluster, &models)?;
        let (supervisor, listen, door) = wiring::start_supervisor(cluster, (models, store)).await?;
        let joins = joining::open(cluster, rules(&supervisor, &file))?.map(Arc::new);
        rotation::renew_daily(cluster);
        let stop_wanted = Arc::new(Notify::new());
        let self_test = SelfTest::new(&file, &supervisor);
        self_test.keep_untested_closed();
        let (intake, clients) = (Intake::new(&supervisor), ClientThreads::start()?);
        let store = cluster
            .api
            .as_ref()
            .map(|api| Store::open(data_dir::shared(cluster), api.limits).map(Arc::new))
            .transpose()?;
        let state = AdminState {
            self_test,
            intake: intake.clone(),
            store: store.clone(),
            links: LinkBench::new(&supervisor, &file),
            supervisor: supervisor.clone(),
            cluster: cluster.name.clone(),
            place: data_dir::place::Place::of(cluster),
            data_dir: cluster.data_dir.clone(),
            door,
            listen,
            token,
            joins,
            file,
            stop_wanted: stop_wanted.clone(),
        };
        let admin = http::serve(cluster.admin_listen, admin_tls, state)?;
        let api = open_api(cluster, (&supervisor, intake), (store, clients.handle()), (keys, tls)).await?;
        let api_tls = cluster.api.as_ref().is_some_and(|api| api.tls.is_some());
        let at = api.as_ref().map(|api| api.address);
        let (pid, admin_tls) = (std::process::id(), cluster.admin_tls.is_some());
        let record = data_dir::ServerRecord { pid, admin: admin.address, admin_tls, api: at, api_tls, listen };
        let lock = Arc::new(lock);
        publish(&lock, record.clone())?;
        Ok(Self { supervisor, record, admin, api, clients, stop_wanted, lock, shared })
    }

    /// Completes when a client asks for the end.
    pub async fn stop_wanted(&self) {
        self.stop_wanted.notified().await;
    }

    /// Tells every host to end, and ends supervisor and APIs.
    pub async fn shut_down(self) {
        if let Some(shared) = self.shared.clone() {
            // Before the lead is given up: who stands by would take it.
            let ended = tokio::task::spawn_blocking(move || shared.end_all()).await;
            if let Ok(Err(error)) = ended {
                tracing::error!(%error, "supervisors that stand by are not told of the end");
            }
        }
        self.supervisor.shutdown().await;
        self.close().await;
    }

    /// Ends supervisor and APIs, and leaves hosts as they are.
    pub async fn stop(self) {
        self.supervisor.stop().await;
        self.close().await;
    }

    async fn close(self) {
        if let Some(api) = self.api {
            api.stop().await;
        }
        self.admin.stop().await;
        drop((self.clients, self.lock));
    }
}

/// Whether the host of a name is connected, as the supervisor has it. Blocks until that has said so.
fn in_use(supervisor: &Supervisor) -> impl Fn(&str) -> bool + Send + Sync + 'static {
    let (supervisor, runtime) = (supervisor.clone(), Handle::current());
    move |name| {
        let host = runtime.block_on(supervisor.host(name));
        host.is_ok_and(|host| !matches!(host.health, HostHealth::Starting | HostHealth::Dead))
    }
}

/// What decides who joins: the cluster file as it is then.
fn rules(supervisor: &Supervisor, file: &RunningFile) -> JoinContext {
    let (running, joined, owner, runtime) = (file.clone(), file.clone(), supervisor.clone(), Handle::current());
    let offered = move |(node, from): (&str, IpAddr), hosts: &str| {
        let joining = joined.join(&owner, (node, from), hosts);
        runtime.block_on(joining).map_err(|error| error.to_string())
    };
    JoinContext {
        cluster: Box::new(move || running.cluster()),
        in_use: Box::new(in_use(supervisor)),
        offered: Box::new(offered),
    }
}

/// OpenAI's API, where the cluster file has one.
async fn open_api(
    cluster: &Cluster,
    (supervisor, intake): (&Supervisor, Intake),
    (store, runtime): (Option<Arc<Store>>, Handle),
    (keys, tls): (Option<ApiKeys>, Option<ServerConfig>),
) -> Result<Option<Server>, CliError> {
    let (Some(api), Some(store)) = (&cluster.api, store) else { return Ok(None) };
    let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let state = ApiState {
        supervisor: supervisor.clone(),
        cluster: cluster.name.clone(),
        origins: openai::origins(keys.is_none(), api.origins.clone()),
        keys,
        since,
        store,
        responses: Arc::new(KeptResponses::open(&cluster.data_dir)),
        open: Open::default(),
        runtime,
        intake,
        kept_idle: api.kept_idle,
    };
    openai::serve(api.listen, tls, (state, anthropic::routes)).await.map(Some)
}

impl Ground {
    fn take(cluster: &Cluster, shared: Option<&SharedJournal>) -> Result<JournalTurn<Self>, CliError> {
        let lock = data_dir::lock(&cluster.data_dir, &cluster.name, LockRole::Supervisor)?;
        // Before certificates are made: of several supervisors the one that leads makes those of all.
        let store = match wiring::journal(cluster, shared)? {
            JournalTurn::Ours(store) => store,
            JournalTurn::Theirs(leader) => return Ok(JournalTurn::Theirs(leader)),
        };
        credentials::found(cluster)?;
        credentials::provide(cluster, [members::SUPERVISOR])?;
        Ok(JournalTurn::Ours(Self { lock, store, models: Vec::new() }))
    }

    /// The same off the threads that serve: a disk or etcd may take long. One that stood by ends with the cluster.
    async fn tried(
        cluster: &Cluster,
        shared: &Option<SharedJournal>,
        stood_by: bool,
    ) -> Result<JournalTurn<Self>, CliError> {
        let (cluster, shared) = (cluster.clone(), shared.clone());
        let take = move || {
            let asked = shared.as_ref().filter(|_| stood_by);
            match asked.is_some_and(|shared| shared.has_ended().unwrap_or(false)) {
                true => Err(CliError::new(Exit::Success, "the cluster was ended")),
                false => Self::take(&cluster, shared.as_ref()),
            }
        };
        let tried = tokio::task::spawn_blocking(take).await;
        tried.unwrap_or_else(|panic| Err(CliError::unreachable(panic)))
    }

    /// `shared` is read again where it may be otherwise now.
    async fn awaited(
        cluster: &Cluster,
        shared: &mut Option<SharedJournal>,
        waits: impl Fn(&Waiting),
    ) -> Result<Self, CliError> {
        // Whoever stood by once ends with the cluster, however the journal is when that comes.
        let (mut listener, mut models, mut stood_by) = (None, Vec::new(), false);
        let stated = Cause::default();
        let taken = loop {
            let (waiting, look_every) = match Self::tried(cluster, shared, stood_by).await {
                Ok(JournalTurn::Ours(ground)) => break Ok(Self { models, ..ground }),
                Ok(JournalTurn::Theirs(leader)) => (Waiting::StandsBy(leader.to_string()), LEADER_LOOK_EVERY),
                Err(error) if error.may_pass => {
                    if let Ok(read) = wiring::shared_journal(cluster) {
                        *shared = read;
                    }
                    let code = if error.exit == Exit::Unreachable { "journal_unreachable" } else { "disk_full" };
                    (Waiting::Hindered { code, cause: error.message }, SERVICE_LOOK_EVERY)
                }
                Err(error) => break Err(error),
            };
            stood_by |= matches!(waiting, Waiting::StandsBy(_));
            let update = {
                let mut stated = stated.write().unwrap_or_else(PoisonError::into_inner);
                std::mem::replace(&mut *stated, waiting.clone()) != waiting
            };
            match &waiting {
                Waiting::StandsBy(leader) if update => tracing::info!(leader, "stands by"),
                Waiting::Hindered { cause, .. } if update => tracing::error!(cause, "waits for its journal"),
                _ => {}
            }
            if listener.is_none() {
                // An address that is taken is told when it is needed.
                listener = secrets::admin_tls(cluster)
                    .and_then(|tls| http::wait(cluster.admin_listen, tls, stated.clone()))
                    .ok();
            }
            waits(&waiting);
            if matches!(waiting, Waiting::StandsBy(_)) && models.is_empty() {
                // What can be done before the take-over is, and what would be refused then is refused now.
                let cluster = cluster.clone();
                let loaded = tokio::task::spawn_blocking(move || wiring::supervisors_models(&cluster, &[])).await;
                match loaded.unwrap_or_else(|panic| Err(CliError::unreachable(panic))) {
                    Ok(loaded) => models = loaded,
                    Err(error) => break Err(error),
                }
            }
            tokio::time::sleep(look_every).await;
        };
        if let Some(listener) = listener {
            listener.stop().await;
            tracing::info!("waits no more");
        }
        taken
    }
}

/// Publishes who serves, now or as soon as there is room for it: it serves all the same.
fn publish(lock: &Arc<data_dir::Lock>, record: data_dir::ServerRecord) -> Result<(), CliError> {
    let lock = match lock.publish(&record) {
        Err(error) if error.may_pass => {
            tracing::error!(%error, "other commands may not find this supervisor until there is room");
            Arc::downgrade(lock)
        }
        published => return published,
    };
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(SERVICE_LOOK_EVERY).await;
            if lock.upgrade().is_none_or(|lock| lock.publish(&record).is_ok()) {
                return;
            }
        }
    });
    Ok(())
}
