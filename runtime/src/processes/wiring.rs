//! From the resolved cluster to running actors: which model, which transport, which threads. Decides nothing at run time.

mod data;
pub(crate) mod listener;
pub mod standby;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread::available_parallelism,
    time::Duration,
};

use asterism_actors::{
    Batching, HostConfig, HostError, Transports,
    api::Role,
    host::HostEnd,
    messages::{Condition, HostRole, Settings},
    node::{self, NodeLink, NodeView},
    store::{RedbStore, StateStore, StoreError},
    supervisor::{
        HostSpec, MODEL_LABEL, ModelFront, Recovery, ServedModel, Supervisor, SupervisorConfig, record_config,
        scheduling,
    },
    tally::Tally,
};
use asterism_transport::{PlacePort, Places, Transport, certificates::MemberRole, local::LocalNetwork};
use futures_util::future::try_join_all;
use tokio::sync::watch;

use crate::{
    api::admin::{door::PeerRefusals, running::Configured},
    certificates::{credentials, members},
    cluster::{Cluster, Host, Model, file as cluster_file},
    data_dir::{self, links, private},
    error::{CliError, Exit},
    observe::{logging, metrics},
    processes::{
        calibration,
        checkpoint::{checkpoint_of, kv_type, model_front, weights_digest},
        device::{self, ProcessWeights},
        node::Watching,
    },
};
pub use data::{all_fit, known, memory_alone, try_ucx, usable};
use listener::{QUIC, bind, counted, here, no_threads, transport_refusal};
use standby::{JournalTurn, LeaderRecord, SharedJournal, access::Access};

/// Opens the journal of `cluster`, or begins it: in data_dir, or where several supervisors share it, if it is this one's turn.
pub fn journal(
    cluster: &Cluster,
    shared: Option<&SharedJournal>,
) -> Result<JournalTurn<Box<dyn StateStore>>, CliError> {
    let refused = |error| host_refusal(&HostError::Journal(error));
    let Some(shared) = shared else {
        let store = RedbStore::open(data_dir::journal(&cluster.data_dir), &cluster.name).map_err(refused)?;
        return Ok(JournalTurn::Ours(Box::new(store)));
    };
    if !shared.folder.is_dir() {
        let what = format!("[standby] shared_dir {} is no folder of this machine", shared.folder.display());
        return Err(CliError::usage(what).hint("make it, or mount it, where every supervisor's machine sees it"));
    }
    Ok(match shared.open().map_err(refused)? {
        JournalTurn::Ours(store) => JournalTurn::Ours(Box::new(store)),
        JournalTurn::Theirs(leader) => JournalTurn::Theirs(leader),
    })
}

/// Refuses an etcd that does not prove who it is, or that does not take this supervisor for one that may ask: every such member, or,
/// where a supervisor is to start, only when no other takes it. Those that do not answer now may do so later.
pub fn known_to_etcd(shared: &SharedJournal, every: bool) -> Result<(), CliError> {
    let (objections, taken) = shared.objections();
    if taken && !every {
        objections.iter().for_each(|error| tracing::warn!(%error, "a member of etcd is not to be counted on"));
        return Ok(());
    }
    let stated: Vec<String> = objections.iter().map(|error| format!("[standby] etcd: {error}")).collect();
    match stated.is_empty() {
        true => Ok(()),
        false => Err(CliError::new(Exit::Authentication, stated.join("\nerror: "))),
    }
}

/// Where several supervisors share the journal, if there are several.
pub fn shared_journal(cluster: &Cluster) -> Result<Option<SharedJournal>, CliError> {
    let Some(standby) = cluster.standby.as_ref() else { return Ok(None) };
    Ok(Some(SharedJournal {
        cluster: cluster.name.clone(),
        members: standby.etcd.clone(),
        access: Access::read(&standby.proof)?,
        folder: standby.shared_dir.clone(),
        lease_s: standby.lease_s,
        own: LeaderRecord {
            machine: machine_name(),
            pid: std::process::id(),
            admin: data_dir::admin_url(cluster.admin_listen, cluster.admin_tls.is_some()),
            listen: cluster.listen.to_string(),
        },
        deposed: Arc::new(|cause| {
            // Nothing that this process would still say or write counts: hosts and clients go to whoever leads.
            tracing::error!(cause, "this supervisor leads no more, and ends at once");
            std::process::exit(Exit::Unreachable as i32);
        }),
    }))
}

fn machine_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

/// The cluster's models as its supervisor begins with them; those that are `known` are taken as they are.
pub fn supervisors_models(cluster: &Cluster, known: &[Arc<ModelFront>]) -> Result<Vec<Arc<ModelFront>>, CliError> {
    let models = fronts(cluster, known)?;
    if known.is_empty() {
        models.iter().flat_map(|model| &model.config.notes).for_each(|note| tracing::warn!("{note}"));
    }
    Ok(models)
}

/// Starts the supervisor's actor with what its journal has. Returns it with the address hosts reach it at, and who called there
/// in vain.
pub async fn start_supervisor(
    cluster: &Cluster,
    (models, store): (Vec<Arc<ModelFront>>, Box<dyn StateStore>),
) -> Result<(Supervisor, SocketAddr, Arc<PeerRefusals>), CliError> {
    let door = PeerRefusals::new(cluster, QUIC);
    let transport = bind(cluster, members::SUPERVISOR, (cluster.listen, 0), door.clone())?;
    let address = transport.local_address();
    let config = supervisor_config(cluster, &models);
    record_config(&config);
    let supervisor = Supervisor::start(config, models, transport, store).await.map_err(|error| host_refusal(&error))?;
    watch_itself(&supervisor, cluster.liveness.heartbeat / 2);
    cluster.models().for_each(|model| hash_weights(&supervisor, model, &cluster.data_dir));
    Ok((supervisor, address, door))
}

/// What a supervisor is told of a cluster file that changes while it runs.
pub const CONFIGURED: Configured = Configured { models: fronts, config: supervisor_config, hash: hash_weights };

/// The models of `cluster` as the supervisor knows them, in its order; those that are `known` by their labels are taken as they are.
fn fronts(cluster: &Cluster, known: &[Arc<ModelFront>]) -> Result<Vec<Arc<ModelFront>>, CliError> {
    let mut fronts: Vec<Arc<ModelFront>> = Vec::new();
    for model in cluster.models() {
        let front = match known.iter().find(|front| front.label == model.label()) {
            Some(front) => front.clone(),
            None => Arc::new(model_front(model)?),
        };
        if fronts.iter().any(|other| other.name == front.name) {
            return Err(CliError::usage(format!("two models are called '{}'; names must differ", front.name))
                .hint("give the first [[model]] a name of its own, too: without one it is called as its folder is"));
        }
        fronts.push(front);
    }
    Ok(fronts)
}

/// Tells the supervisor what a model's weights hash to, as soon as that is known: until then hosts load theirs.
fn hash_weights(supervisor: &Supervisor, model: &Model, folder: &Path) {
    let (owner, model, folder) = (supervisor.clone(), model.clone(), folder.to_owned());
    let label = model.label().to_owned();
    let hash = move || {
        let weights = checkpoint_of(&model).and_then(|checkpoint| weights_digest(&checkpoint, &model, &folder));
        owner.weights_are(model.label(), weights.map_err(|error| error.to_string()));
    };
    if let Err(error) = std::thread::Builder::new().name("digest".into()).spawn(hash) {
        supervisor.weights_are(&label, Err(format!("no thread can be started for it: {error}")));
    }
}

/// Tells the supervisor when its own process waits for memory, a disk or a core. On a thread of its own, which waits for nobody's.
fn watch_itself(supervisor: &Supervisor, every: Duration) {
    let (supervisor, mut look) = (supervisor.clone(), Watching::at(std::process::id()));
    let watch = move || {
        while !supervisor.has_ended() {
            std::thread::sleep(every);
            if look.again() == Condition::Starved {
                supervisor.was_starved();
            }
        }
    };
    if let Err(error) = std::thread::Builder::new().name("watch".into()).spawn(watch) {
        tracing::warn!(%error, "the supervisor does not see whether it waits for memory");
    }
}

/// What the supervisor of `cluster`, which has these models, is told about it.
pub fn supervisor_config(cluster: &Cluster, models: &[Arc<ModelFront>]) -> SupervisorConfig {
    let (cluster, _) = &links::with_islands(cluster.clone());
    let own: Vec<(Cluster, &Arc<ModelFront>)> =
        cluster.models().map(|model| cluster.of_model(model)).zip(models).collect();
    let spec = |host: &Host| {
        let found = own.iter().find(|(own, _)| own.model.name == host.model);
        let (own, model) = found.expect("a resolved cluster has the models of its hosts");
        let label = Some(model.label.clone()).filter(|label| !label.is_empty());
        let label = label.map(|label| (MODEL_LABEL.to_owned(), label));
        HostSpec {
            name: host.name.clone(),
            role: role(host.role),
            device: host.devices.to_string(),
            node: host.node.clone(),
            memory_limit: host.memory_limit,
            weight_bytes: device::weight_bytes(own, host, &model.config),
            labels: host.labels.clone().into_iter().chain(label).collect(),
        }
    };
    let served = |(own, model): &(Cluster, &Arc<ModelFront>)| ServedModel {
        label: model.label.clone(),
        name: model.name.clone(),
        digest: model.digest.clone(),
        weights: None,
        kv: kv_type(&own.model),
        speeds: calibration::find(own, &model.checkpoint).ok(),
    };
    SupervisorConfig {
        cluster: cluster.name.clone(),
        models: own.iter().map(served).collect(),
        hosts: cluster.hosts.iter().map(spec).collect(),
        method: cluster.method.clone(),
        liveness: cluster.liveness,
        max_running: scheduling::CONTEXTS_AT_ONCE,
        encode_ahead: scheduling::ENCODED_AHEAD,
        max_generating: cluster.serving.max_generating,
        speculates: cluster.serving.speculation == cluster_file::Speculation::Auto,
        max_queue: cluster.queue.jobs,
        max_queue_bytes: cluster.queue.bytes,
        recovery: match cluster.recovery {
            cluster_file::Recovery::Spare => Recovery::Spare,
            cluster_file::Recovery::Redistribute => Recovery::Redistribute,
            cluster_file::Recovery::Fail => Recovery::Fail,
        },
        rebalance: cluster.rebalance,
        avoid_stragglers: cluster.avoid_stragglers,
        ready_when: cluster.ready_when,
        patience: scheduling::PLACEMENT_PATIENCE,
        sessions: cluster.sessions,
        mixed_numerics: cluster.mixed_numerics,
    }
}

/// The runtime of a process that serves, of which tensors have no need. This thread and its threads answer promptly from now on.
pub fn runtime() -> Result<tokio::runtime::Runtime, CliError> {
    asterism_actors::machine::answer_promptly();
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .worker_threads(2)
        .build()
        .map_err(|error| no_threads(&error))
}

/// Runs the hosts of this process until their supervisor has ended them or is gone, or one of them fails; `start` is larger at each
/// start of the process. They leave once `leaving` is true, and all of them when one does. Calls `joined` when the supervisor has welcomed all of them for the first time.
pub async fn run_hosts<'a>(
    cluster: &'a Cluster,
    hosts: &[&'a Host],
    (supervisor, start): (&Places, u64),
    (joined, leave, leaving): (impl FnOnce() + Send + 'static, watch::Sender<bool>, watch::Receiver<bool>),
) -> Result<HostEnd, CliError> {
    let (waited_for, joined) = (AtomicUsize::new(hosts.len()), Mutex::new(Some(joined)));
    let one_joined = Arc::new(move || {
        if waited_for.fetch_sub(1, Ordering::Relaxed) == 1
            && let Some(joined) = joined.lock().unwrap_or_else(PoisonError::into_inner).take()
        {
            joined();
        }
    });
    // Tensors lie on devices, and hosts hand each other those of their own kind, on as many devices.
    let kind = |host: &Host| (host.devices.on_cpu(), host.devices.count());
    let kinds: BTreeSet<_> = hosts.iter().map(|host| kind(host)).collect();
    let networks: BTreeMap<_, _> = kinds.into_iter().map(|kind| (kind, LocalNetwork::new())).collect();
    let (weights, mut tally) = (ProcessWeights::default(), Some(metrics::tally()));
    let (told, mut settings) = watch::channel(Settings::default());
    tokio::spawn(async move {
        while settings.changed().await.is_ok() {
            let log = settings.borrow_and_update().log.clone();
            if let Some(Err(error)) = log.map(|filter| logging::change(&filter)) {
                tracing::warn!(%error, "it logs as before");
            }
        }
    });
    let run = |host: &'a Host| {
        let (config, joined) = (host_config(cluster, host, (supervisor, start), tally.take()), one_joined.clone());
        let config = HostConfig { leave: Some(leaving.clone()), settings: Some(told.clone()), ..config };
        let leave = &leave;
        let alike = hosts.iter().filter(|other| kind(other) == kind(host)).count();
        let network = networks.get(&kind(host)).filter(|_| alike > 1);
        let ended = run_host(cluster, host, (config, network, weights.clone()), move || joined());
        async move {
            let ended = ended.await;
            if let Ok(HostEnd::Left) = ended {
                // The hosts of a process end together.
                leave.send_replace(true);
            }
            ended
        }
    };
    let ended = try_join_all(hosts.iter().copied().map(run)).await?;
    Ok(if ended.contains(&HostEnd::Left) { HostEnd::Left } else { HostEnd::Ended })
}

/// What a host is started as. What its process counts is for one host of it to tell.
fn host_config(
    cluster: &Cluster,
    host: &Host,
    (supervisor, start): (&Places, u64),
    tally: Option<Arc<Tally>>,
) -> HostConfig {
    let role = match host.role {
        cluster_file::Role::Context => HostRole::Context,
        cluster_file::Role::Query => HostRole::Query,
        cluster_file::Role::Spare => HostRole::Spare,
    };
    let batching = Batching { token_interval: cluster.serving.token_interval, pack_rows: None };
    let grace = cluster.stop_grace;
    let mut config =
        HostConfig { tally, batching, grace, ..HostConfig::new(&host.name, role, supervisor.clone(), start) };
    if cluster.recovery == cluster_file::Recovery::Redistribute {
        (config.encodes, config.generates) = (true, true);
    }
    config
}

/// Runs one host; `network` and `weights` are of its process.
async fn run_host(
    cluster: &Cluster,
    host: &Host,
    (config, network, weights): (HostConfig, Option<&LocalNetwork>, ProcessWeights),
    joined: impl FnOnce() + Send + 'static,
) -> Result<HostEnd, CliError> {
    let control =
        bind(cluster, host.member(), (here(&PlacePort { port: 0, ..host.address.clone() })?, 0), counted(QUIC))?;
    let transports = Transports { control, data: data::plane(cluster, host, network)? };
    let parts = device::parts(host.role, cluster.recovery);
    let cores = available_parallelism().map_or(1, |cores| cores.get());
    let endpoints: Vec<String> = transports.data.endpoints().iter().map(|endpoint| endpoint.to_string()).collect();
    let endpoints = endpoints.join(", ");
    tracing::info!(host = %host.name, start = config.start, endpoints, device = %host.devices, cores, "starting");
    let setup = device::DeviceSetup { cluster: cluster.with_model_of(host), host: host.clone(), cores, parts, weights };
    let ended = device::run_host(config, transports, setup, joined).await;
    ended.map_err(|error| host_refusal(&error))
}

/// Joins the supervisor at `listen` as the agent of the node called `name`, from now on and for ever; says what `look` finds.
pub fn node_link(cluster: &Cluster, name: &str, listen: &Places, look: NodeView) -> Result<NodeLink, CliError> {
    let member = (MemberRole::Node, name);
    credentials::provide(cluster, [member])?;
    let place = cluster.node_place(name).unwrap_or(&listen.first().place);
    let address = here(&PlacePort { place: place.clone(), port: 0 })?;
    let transport = bind(cluster, member, (address, 0), counted(QUIC))?;
    let config = HostConfig::new(name, HostRole::Node, listen.clone(), 1);
    Ok(node::start(config, transport, look))
}

fn role(role: cluster_file::Role) -> Role {
    match role {
        cluster_file::Role::Context => Role::Context,
        cluster_file::Role::Query => Role::Query,
        cluster_file::Role::Spare => Role::Spare,
    }
}

fn host_refusal(error: &HostError) -> CliError {
    match error {
        HostError::Supervisor { cause, .. } => CliError { message: error.to_string(), ..transport_refusal(cause) },
        // The same file would be refused again, so that exit 2 keeps the supervisor from being started again.
        HostError::Journal(
            StoreError::Damaged { .. }
            | StoreError::Record { .. }
            | StoreError::OtherVersion { .. }
            | StoreError::OtherCluster { .. },
        ) => CliError::usage(error).hint("nothing was changed"),
        HostError::Journal(StoreError::DiskFull { .. }) => CliError::no_room(error),
        HostError::Journal(StoreError::Remote { .. }) => CliError {
            may_pass: true,
            ..CliError::unreachable(error).hint("see that a majority of etcd's members runs")
        },
        HostError::Journal(StoreError::Io { cause, .. }) if private::may_pass(cause.kind()) => CliError::no_room(error),
        HostError::Journal(_) => CliError::unreachable(error).hint("nothing was changed"),
        HostError::OtherModel { .. } => {
            CliError::usage(error).hint("`asterism doctor` on both machines shows the digests of their models")
        }
        HostError::Model { .. } => CliError::usage(error).hint("correct [model] in the cluster file"),
        _ => CliError::unreachable(error).hint("`asterism status` shows the supervisor's view"),
    }
}
