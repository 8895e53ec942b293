//! Carries faults and the operator's deeds out, and counts what they met.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use asterism_actors::api::{JobPhase, Role};
use asterism_transport::sim::Faults;
use tokio::time::sleep;

use crate::{
    cluster::Cluster,
    scenario::{Fault, FaultKind, Moment, Operation, Peer, Trigger},
};

/// Columns: what the jobs were doing.
const PHASES: [&str; 5] = ["idle", "encoding", "query", "decoding", "recovering"];

/// What a fault struck, and what the jobs were doing.
pub type Met = (&'static str, &'static str, &'static str);

/// How often each fault met each role in each phase, for people.
pub fn table<'a>(met: impl Iterator<Item = &'a Vec<Met>>) -> String {
    let mut counts: BTreeMap<(&str, &str), [u32; 5]> = BTreeMap::new();
    for (fault, role, phase) in met.flatten() {
        let column = PHASES.iter().position(|known| known == phase).expect("one of these");
        counts.entry((*fault, *role)).or_default()[column] += 1;
    }
    let mut lines = vec![format!("{:32}{}", "fault", PHASES.map(|phase| format!("{phase:>12}")).concat())];
    for ((fault, role), cells) in counts {
        lines.push(format!("{:32}{}", format!("{fault}, {role}"), cells.map(|count| format!("{count:>12}")).concat()));
    }
    lines.join("\n")
}

/// How late comes what is under way when a link is given up.
const LATE: Duration = Duration::from_millis(600);

/// Waits for a fault's time and has it happen. Returns what it met.
pub async fn strike(cluster: Arc<Cluster>, fault: Fault) -> Option<Met> {
    match fault.trigger {
        Trigger::At(at) => sleep(at).await,
        Trigger::Phase(phase, later) => {
            cluster.wait_until(|cluster| cluster.has_entered(phase)).await;
            sleep(later).await;
        }
    }
    let phase = current_phase(&cluster);
    let what = format!("{:?}", fault.kind);
    let (name, role, after) = happen(&cluster, fault.kind)?;
    cluster.note(|| format!("FAULT {what} while {phase}"));
    if let Some((time, heal)) = after {
        sleep(time).await;
        heal(&cluster);
        cluster.note(|| format!("OVER {what}"));
    }
    Some((name, role, phase))
}

fn current_phase(cluster: &Cluster) -> &'static str {
    let rank = |phase: JobPhase| match phase {
        JobPhase::Recovering => 4,
        JobPhase::Decoding => 3,
        JobPhase::Querying => 2,
        JobPhase::Encoding => 1,
        JobPhase::Queued => 0,
    };
    PHASES[cluster.phases().into_iter().map(rank).max().unwrap_or(0)]
}

/// How long a fault lasts, and what ends it.
type After = Option<(Duration, Box<dyn FnOnce(&Cluster) + Send>)>;

/// Has a fault happen. Returns its name, whom it struck, and how it ends.
fn happen(cluster: &Arc<Cluster>, kind: FaultKind) -> Option<(&'static str, &'static str, After)> {
    let role = |host: usize| match cluster.scenario.config.hosts[host].role {
        Role::Context => "context",
        Role::Query => "query",
        Role::Spare => "spare",
    };
    let of = |peer: Peer| cluster.address_of(peer);
    match kind {
        FaultKind::Kill(host, quietly) => cluster.kill_host(host, None, quietly).then(|| ("kill", role(host), None)),
        FaultKind::KillSupervisor(Moment::Now) => {
            cluster.kill_supervisor(cluster.one_in(2));
            Some(("kill", "supervisor", None))
        }
        FaultKind::KillSupervisor(moment) => {
            cluster.disk.crash(moment);
            Some(("kill at a write", "supervisor", None))
        }
        FaultKind::Hang(host, time) => Some(("hang", role(host), alone(cluster, &[of(Peer::Host(host))?], time))),
        FaultKind::HangSupervisor(time) => Some(("hang", "supervisor", alone(cluster, &[of(Peer::Supervisor)?], time))),
        FaultKind::CutNode(node, time) => Some(("cut off", "node", alone(cluster, &cluster.addresses_on(node), time))),
        FaultKind::CutPair(left, right, time) => {
            let (left, right) = (of(left)?, of(right)?);
            cluster.network.partition(&[left], &[right]);
            let heal = move |cluster: &Cluster| cluster.network.heal(&[left], &[right]);
            Some(("cut off", struck(cluster, kind)?, Some((time, Box::new(heal)))))
        }
        FaultKind::Break(left, right) => {
            cluster.network.cut(of(left)?, of(right)?);
            Some(("break", struck(cluster, kind)?, None))
        }
        FaultKind::Slow(host, time, by) => {
            let faults = Faults { delay: by..=by, ..cluster.calm() };
            Some(("slow", role(host), noisy(cluster, host, (faults, time))?))
        }
        FaultKind::GiveUp(from, to, time) => {
            let struck = struck(cluster, kind.clone())?;
            let (from, to) = (of(from)?, of(to)?);
            let late = Faults { delay: LATE..=LATE, ..cluster.calm() };
            cluster.network.set_faults_between(from, to, Some(late));
            let give_up = move |cluster: &Cluster| {
                cluster.network.half_close(from, to, time);
                cluster.network.set_faults_between(from, to, None);
            };
            Some(("give up", struck, Some((LATE / 2, Box::new(give_up)))))
        }
        FaultKind::Misread(host) => cluster.misread(host).then(|| ("misread", role(host), None)),
        FaultKind::Noise(host, time, chance) => {
            let faults = Faults {
                drop: chance,
                duplicate: chance,
                reorder: chance,
                corrupt: chance / 10.0,
                cut: chance / 20.0,
                ..cluster.calm()
            };
            Some(("noise", role(host), noisy(cluster, host, (faults, time))?))
        }
    }
}

/// The ends of a link between two.
fn struck(cluster: &Cluster, kind: FaultKind) -> Option<&'static str> {
    let (FaultKind::CutPair(one, other, _) | FaultKind::Break(one, other) | FaultKind::GiveUp(one, other, _)) = kind
    else {
        return None;
    };
    let (host, other) = match (one, other) {
        (Peer::Host(host), other) | (other, Peer::Host(host)) => (host, other),
        _ => return None,
    };
    let query = cluster.scenario.config.hosts[host].role == Role::Query;
    Some(match (other, query) {
        (Peer::Supervisor, true) => "query and supervisor",
        (Peer::Supervisor, false) => "context and supervisor",
        (Peer::Host(_), true) => "query and host",
        (Peer::Host(_), false) => "context and host",
    })
}

/// These and all others do not hear each other for so long.
fn alone(cluster: &Cluster, those: &[std::net::SocketAddr], time: Duration) -> After {
    let others: Vec<_> = cluster.network.addresses().into_iter().filter(|other| !those.contains(other)).collect();
    cluster.network.partition(those, &others);
    let those = those.to_vec();
    Some((time, Box::new(move |cluster| cluster.network.heal(&those, &others))))
}

/// A host's links to all others are like that for so long.
fn noisy(cluster: &Cluster, host: usize, (faults, time): (Faults, Duration)) -> Option<After> {
    let there = cluster.address_of(Peer::Host(host))?;
    let others = cluster.network.addresses();
    let set = move |cluster: &Cluster, faults: Option<Faults>| {
        others.iter().for_each(|other| cluster.network.set_faults_between(there, *other, faults.clone()));
    };
    set(cluster, Some(faults));
    Some(Some((time, Box::new(move |cluster| set(cluster, None)))))
}

/// The operator's deeds, one after the other; what is refused is not done.
pub async fn operate(cluster: Arc<Cluster>) {
    for (at, operation) in cluster.scenario.operations.clone() {
        sleep(at.saturating_sub(cluster.elapsed())).await;
        loop {
            cluster.wait_until(|cluster| cluster.supervisor().is_some()).await;
            let Some((supervisor, life)) = cluster.supervisor() else { continue };
            let name = |host: usize| cluster.scenario.config.hosts[host].name.clone();
            let done = match &operation {
                Operation::Schedule(host, scheduling) => {
                    supervisor.schedule_host(&name(*host), *scheduling, None).await.map(drop)
                }
                Operation::Replace(old, new) => supervisor.replace_host(&name(*old), &name(*new)).await.map(drop),
            };
            let gone = cluster.supervisor().is_none_or(|(_, now)| now != life);
            if done.is_ok() || !gone {
                cluster.note(|| format!("OPERATOR {operation:?}: {:?}", done.err().map(|error| error.to_string())));
                break;
            }
        }
    }
}

/// Ends the supervisor when its disk says so.
pub async fn crash(cluster: Arc<Cluster>) {
    loop {
        cluster.disk.crashed.notified().await;
        cluster.kill_supervisor(cluster.one_in(2));
    }
}
