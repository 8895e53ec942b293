//! What is said in the log, with a fake clock.

use super::{CLUSTER, Cluster, config, connection, decoding, prepared, seconds};
use crate::{
    api::Scheduling,
    cluster_event::ClusterEventKind,
    messages::HostMessage,
    supervisor::{Decided, SupervisorState},
};

/// The name of each, and what it took where that is part of it.
fn reported(cluster: &mut Cluster) -> Vec<String> {
    let shown = |update: ClusterEventKind| match update {
        ClusterEventKind::JobSubmitted { context_tokens, query_tokens, .. } => {
            format!("submitted {context_tokens}+{query_tokens}")
        }
        ClusterEventKind::JobStarted { queue_s, .. } => format!("started {queue_s}"),
        ClusterEventKind::JobEnded { state, code, tokens, timings, .. } => {
            format!("{state:?} {} {tokens} in {}", code.unwrap_or_default(), timings.total_s)
        }
        ClusterEventKind::SessionCreated { session, .. } => format!("created {session}"),
        ClusterEventKind::SessionReady { session, encode_s, .. } => format!("ready {session} {encode_s}"),
        ClusterEventKind::SessionEnded { session, expired, hits, .. } => format!("ended {session} {expired} {hits}"),
        ClusterEventKind::HostJoined { host, incarnation, .. } => format!("joined {host} {incarnation}"),
        ClusterEventKind::HostReady { host } => format!("ready {host}"),
        ClusterEventKind::HostSuspect { host, silent_s, .. } => format!("suspect {host} {silent_s}"),
        ClusterEventKind::HostBack { host, silent_s } => format!("back {host} {silent_s}"),
        ClusterEventKind::HostLost { host, reason, .. } => format!("lost {host} {reason}"),
        ClusterEventKind::HostScheduled { host, scheduling } => format!("{host} {scheduling:?}"),
        ClusterEventKind::ShardsReencoded { shards, took, .. } => format!("again {shards} in {took:?}"),
        ClusterEventKind::ShardsMoved { shards, took, .. } => format!("moved {shards} in {took:?}"),
        other => format!("{other:?}"),
    };
    std::mem::take(&mut cluster.update).into_iter().map(shown).collect()
}

fn adopt(cluster: &mut Cluster, decide: impl FnOnce(&mut SupervisorState) -> Decided) {
    let decided = decide(&mut cluster.state);
    cluster.adopt(decided);
}

#[test]
fn each_step_of_a_job_is_told_once_and_its_tokens_are_not() {
    let mut cluster = Cluster::ready(config(1, 0));
    assert_eq!(reported(&mut cluster)[1..], ["joined c0 1", "ready c0", "joined q0 1", "ready q0"]);
    let job = cluster.submit(None);
    cluster.now = 1.0;
    cluster.encode();
    let (query, _) = cluster.generation().expect("the query host is asked");
    assert_eq!(reported(&mut cluster), ["submitted 100+1", "started 0"]);
    (0..3).for_each(|index| cluster.token(query, job, index, 5));
    assert_eq!(reported(&mut cluster), [""; 0]);
    let end = HostMessage::Generated { job, tokens: 3, stopped: true, text: String::new(), times: Box::default() };
    cluster.deliver(query, end);
    assert_eq!(reported(&mut cluster), ["Succeeded  3 in 1"]);
}

#[test]
fn hosts_come_falter_and_go_and_what_that_costs_is_told() {
    let (mut cluster, job) = decoding();
    reported(&mut cluster);
    cluster.tick(1.6, &[1, 3]);
    cluster.deliver(2, HostMessage::Heartbeat { kv_bytes: 0, idle_bytes: 0 });
    assert_eq!(reported(&mut cluster), ["suspect c1 1.6", "back c1 1.6"]);
    cluster.hello(1, 1, CLUSTER, (&[job], &[]));
    assert_eq!(reported(&mut cluster), ["back c1 0"], "over a new connection");
    cluster.deliver(connection(1, 1), super::ready());
    let adopted = |state: &mut SupervisorState| {
        state.schedule_host(seconds(1.6), "c0", Scheduling::Draining, None).expect("there is another")
    };
    adopt(&mut cluster, adopted);
    cluster.now = 2.1;
    cluster.encode();
    assert_eq!(reported(&mut cluster), ["ready c1", "c0 Draining", "moved 2 in 500ms"]);
    let decided = cluster.state.schedule_host(seconds(2.1), "c0", Scheduling::Open, None).expect("it is there");
    cluster.adopt(decided);
    [2.6, 3.3, 4.0, 4.5].into_iter().for_each(|at| cluster.tick(at, &[1, 3]));
    assert_eq!(reported(&mut cluster), ["c0 Open", "suspect c1 1.2", "lost c1 heartbeat"]);
    cluster.now = 5.0;
    cluster.encode();
    assert_eq!(reported(&mut cluster), ["again 4 in 500ms"]);
}

#[test]
fn sessions_are_made_and_end_by_themselves_or_not() {
    let mut cluster = Cluster::ready(config(1, 0));
    reported(&mut cluster);
    for name in ["a", "b"] {
        let (context, number) = (prepared(&cluster.state.config().method.clone(), 1), cluster.state.number());
        let ttl = Some(seconds(10.0));
        let decided = cluster.state.create_session((seconds(0.0), number), name, context, ttl).expect("taken");
        cluster.adopt(decided);
        cluster.encode();
    }
    let decided = cluster.state.drop_session(seconds(0.0), "a").expect("it is there");
    cluster.adopt(decided);
    cluster.tick(11.0, &[1, 2]);
    let reported = reported(&mut cluster);
    let of_sessions: Vec<_> = reported.iter().filter(|reported| !reported.contains("suspect")).collect();
    assert_eq!(of_sessions, ["created a", "ready a 0", "created b", "ready b 0", "ended a false 0", "ended b true 0"]);
}
