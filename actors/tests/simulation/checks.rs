//! One schedule from its first moment to its last check: the healed cluster works, and nothing is left over.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use asterism_actors::{
    api::{HostHealth, Scheduling, SessionState},
    machine::Simulation,
    store::{StateStore, Table},
    supervisor::{JobFilter, Recovery},
};
use tokio::{
    runtime::Handle,
    sync::mpsc,
    task::JoinHandle,
    time::{sleep, timeout},
};

use crate::{
    client,
    cluster::Cluster,
    faults::{self, Met},
    node,
    scenario::Scenario,
};

/// From the beginning to the end of the last job of a cluster with faults.
const BOUND: Duration = Duration::from_secs(170);
/// For hosts to come back.
const HEALING: Duration = Duration::from_secs(60);
/// For fresh jobs: where nobody is left to generate, one fails as long after it is encoded as a job waits for hosts, 60 s.
const ANSWERING: Duration = Duration::from_secs(75);
/// For what was freed to be freed.
const SETTLING: Duration = Duration::from_secs(5);
/// For what waits for a deadline to reach it.
const ENDING: Duration = Duration::from_secs(90);
const LOOK: Duration = Duration::from_millis(100);

/// What came of a schedule.
pub struct Report {
    pub failure: Option<String>,
    pub trace: Vec<String>,
    pub fingerprint: u64,
    pub planned: String,
    pub met: Vec<Met>,
    pub simulated_s: f64,
}

/// Runs the schedule of a seed, on this thread and those that take turns with it.
pub fn run(seed: u64, traced: bool) -> Report {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(async {
        let _simulation = Simulation::begin();
        let scenario = Scenario::new(seed);
        let planned = scenario.faults.iter().map(|fault| format!("{fault:?}")).collect::<Vec<_>>().join("\n  ");
        let (exits, exited): (Vec<_>, Vec<_>) = (0..scenario.node_count).map(|_| mpsc::unbounded_channel()).unzip();
        let cluster = Cluster::new(seed, scenario, exits, traced);
        let mut met = Vec::new();
        let outcome = course(seed, &cluster, exited, &mut met).await;
        if let Err(failure) = outcome {
            cluster.fail(failure);
        }
        let failure = cluster.failure();
        let (trace, fingerprint, simulated) = cluster.ended();
        Report { failure, trace, fingerprint, planned, met, simulated_s: simulated.as_secs_f64() }
    })
}

type Exits = Vec<mpsc::UnboundedReceiver<crate::cluster::Exit>>;

async fn course(seed: u64, cluster: &Arc<Cluster>, exits: Exits, met: &mut Vec<Met>) -> Result<(), String> {
    cluster.start_supervisor().await;
    let crash = tokio::spawn(faults::crash(cluster.clone()));
    // A node without hosts is in no cluster file.
    let nodes = exits.into_iter().enumerate().filter(|(node, _)| cluster.scenario.nodes.contains(node));
    for (number, exits) in nodes {
        tokio::spawn(node::run(cluster.clone(), number, exits));
    }
    let sessions = 0..cluster.scenario.sessions.len();
    let sessions: Vec<_> = sessions.map(|at| tokio::spawn(client::make_session(cluster.clone(), at))).collect();
    let jobs = cluster.scenario.jobs.clone();
    let clients: Vec<_> = jobs.into_iter().map(|spec| tokio::spawn(client::ask(cluster.clone(), spec))).collect();
    let operator = tokio::spawn(faults::operate(cluster.clone()));
    let strikes = cluster.scenario.faults.clone();
    let strikes: Vec<_> =
        strikes.into_iter().map(|fault| tokio::spawn(faults::strike(cluster.clone(), fault))).collect();
    all(cluster, sessions.into_iter().chain(clients), BOUND).await?;
    // What has not happened by now does not happen any more.
    operator.abort();
    for strike in strikes {
        let late = strike.abort_handle();
        match timeout(Duration::from_secs(10), strike).await {
            Ok(struck) => met.extend(struck.ok().flatten()),
            Err(_) => late.abort(),
        }
    }
    cluster.disk.calm();
    crash.abort();
    cluster.network.heal_all();
    heal(cluster).await?;
    let sessions = (0..cluster.scenario.sessions.len()).map(Some);
    let fresh: Vec<_> =
        [None].into_iter().chain(sessions).map(|session| cluster.scenario.fresh(seed, session)).collect();
    let fresh: Vec<_> = fresh.into_iter().map(|spec| tokio::spawn(client::ask(cluster.clone(), spec))).collect();
    all(cluster, fresh.into_iter(), ANSWERING).await?;
    drop_sessions(cluster).await?;
    settle(cluster).await?;
    end(cluster).await
}

/// Waits for tasks, or a failure.
async fn all(
    cluster: &Arc<Cluster>,
    tasks: impl Iterator<Item = JoinHandle<()>>,
    within: Duration,
) -> Result<(), String> {
    let tasks: Vec<_> = tasks.collect();
    let aborts: Vec<_> = tasks.iter().map(JoinHandle::abort_handle).collect();
    let ended = async {
        for task in tasks {
            task.await.map_err(|error| format!("a client panicked: {error}"))?;
        }
        Ok::<_, String>(())
    };
    let ended = tokio::select! {
        biased;
        () = cluster.wait_until(|cluster| cluster.failure().is_some()) => Ok(Ok(())),
        ended = timeout(within, ended) => ended,
    };
    aborts.iter().for_each(|task| task.abort());
    match (cluster.failure(), ended) {
        (Some(failure), _) => Err(failure),
        (None, Ok(ended)) => ended,
        (None, Err(_)) => Err(describe(cluster, &format!("jobs have not ended {within:?} later")).await),
    }
}

/// The cluster as it is, for who wonders why it hangs.
async fn describe(cluster: &Cluster, what: &str) -> String {
    let mut lines = vec![what.to_string()];
    let Some((supervisor, _)) = cluster.supervisor() else { return format!("{what}; no supervisor runs") };
    for host in supervisor.cluster().await.map(|status| status.hosts).unwrap_or_default() {
        let (name, health, scheduling, shards) = (host.name, host.health, host.scheduling, host.shards);
        let (kv, cause) = (host.kv_bytes, host.cause);
        lines.push(format!("  {name} {health:?} {scheduling:?} shards {shards} kv {kv} cause {cause:?}"));
    }
    let every = JobFilter { limit: usize::MAX, ..JobFilter::default() };
    for job in supervisor.jobs(every).await.unwrap_or_default() {
        let (id, state, phase, tokens) = (job.id, job.state, job.phase, job.tokens.len());
        lines.push(format!(
            "  {id} {} {state:?} {phase:?} {tokens} tokens {:?} {:?}",
            job.method, job.waiting, job.error
        ));
    }
    for session in supervisor.sessions().await.unwrap_or_default() {
        lines.push(format!("  session {} {:?} {:?}", session.name, session.state, session.error));
    }
    lines.join("\n")
}

/// Waits until every host and session is well.
async fn heal(cluster: &Arc<Cluster>) -> Result<(), String> {
    let healed = async {
        loop {
            if is_healed(cluster).await? {
                return Ok(());
            }
            sleep(LOOK).await;
        }
    };
    match timeout(HEALING, healed).await {
        Ok(healed) => healed,
        Err(_) => Err(describe(cluster, "it is not well again").await),
    }
}

async fn is_healed(cluster: &Cluster) -> Result<bool, String> {
    let Some((supervisor, _)) = cluster.supervisor() else { return Ok(false) };
    let Ok(status) = supervisor.cluster().await else { return Ok(false) };
    for host in status.hosts.iter().filter(|host| host.scheduling != Scheduling::Open) {
        let _ = supervisor.schedule_host(&host.name, Scheduling::Open, None).await;
    }
    let fail = cluster.scenario.config.recovery == Recovery::Fail;
    for session in supervisor.sessions().await.unwrap_or_default() {
        match session.state {
            SessionState::Ready => {}
            SessionState::Failed if fail => {}
            SessionState::Failed => return Err(format!("session {} was lost: {:?}", session.name, session.error)),
            _ => return Ok(false),
        }
    }
    Ok(status.hosts.iter().all(|host| host.health == HostHealth::Ready && host.scheduling == Scheduling::Open))
}

async fn drop_sessions(cluster: &Cluster) -> Result<(), String> {
    let Some((supervisor, _)) = cluster.supervisor() else { return Err("no supervisor runs".into()) };
    for session in &cluster.scenario.sessions {
        let dropped = supervisor.drop_session(&session.name).await;
        dropped.map_err(|error| format!("session {} was lost: {error}", session.name))?;
    }
    Ok(())
}

/// Waits until no host holds anything, and the journal has no context.
async fn settle(cluster: &Arc<Cluster>) -> Result<(), String> {
    let settled = async {
        while let Some(left) = left(cluster).await {
            cluster.note(|| left);
            sleep(LOOK).await;
        }
    };
    let settled = timeout(SETTLING, settled).await;
    if settled.is_ok() {
        return Ok(());
    }
    let left = left(cluster).await.unwrap_or_default();
    Err(describe(cluster, &left).await)
}

async fn left(cluster: &Cluster) -> Option<String> {
    let entries = cluster.disk.content.clone().load().expect("it is in memory");
    let number = |key: &str| key.split('/').next().and_then(|number| number.parse::<u64>().ok());
    let contexts = entries.iter().filter(|entry| entry.table == Table::Contexts);
    let contexts: BTreeSet<u64> = contexts.filter_map(|entry| number(&entry.key)).collect();
    if !contexts.is_empty() {
        return Some(format!("the journal has contexts {contexts:?} for no session"));
    }
    let (supervisor, _) = cluster.supervisor()?;
    let hosts = supervisor.cluster().await.map(|status| status.hosts).unwrap_or_default();
    let holding: Vec<String> = hosts
        .iter()
        .filter(|host| host.kv_bytes > 0 || host.shards > 0)
        .map(|host| format!("{} {} bytes, {} shards", host.name, host.kv_bytes, host.shards))
        .collect();
    (!holding.is_empty()).then(|| format!("hosts hold what nobody asks for: {holding:?}"))
}

/// Ends everything in order, and looks for what goes on.
async fn end(cluster: &Arc<Cluster>) -> Result<(), String> {
    cluster.close();
    let Some((supervisor, _)) = cluster.supervisor() else { return Err("no supervisor runs".into()) };
    let shutdown = timeout(SETTLING, supervisor.shutdown()).await;
    shutdown.map_err(|_| "the supervisor does not end".to_string())?;
    drop(supervisor);
    cluster.forget_supervisor();
    let ended = cluster.wait_until(Cluster::is_empty);
    timeout(SETTLING, ended).await.map_err(|_| "hosts do not end with their supervisor".to_string())?;
    let metrics = Handle::current().metrics();
    for _ in 0..ENDING.as_secs() {
        if metrics.num_alive_tasks() == 0 {
            break;
        }
        sleep(Duration::from_secs(1)).await;
    }
    match metrics.num_alive_tasks() {
        0 => Ok(()),
        tasks => Err(format!("{tasks} tasks go on after everything has ended")),
    }
}
