//! Hosts that drain and hosts that are replaced, with a fake clock.

mod returning;
mod spreading;
mod topology;

use std::time::Duration;

use serde_json::json;

use super::{CLUSTER, Cluster, NODE, config, connection, decoding, encoded, seconds};
use crate::{
    api::{Role, Scheduling},
    cluster_event::ClusterEventKind,
    error::JobError,
    messages::{EncodeShards, Encoded, HostCommand, HostMessage},
    supervisor::{SupervisorConfig, SupervisorEvent},
};

impl Cluster {
    fn drain(&mut self, name: &str, deadline: Option<f64>) -> Result<(), JobError> {
        let deadline = deadline.map(seconds);
        let decided = self.state.schedule_host(seconds(self.now), name, Scheduling::Draining, deadline)?;
        self.adopt(decided);
        Ok(())
    }

    fn scheduling(&self, at: usize) -> Scheduling {
        self.state.host_status(seconds(self.now), at).scheduling
    }
}

#[test]
fn shards_of_a_drained_host_are_held_elsewhere_before_they_leave_it() {
    let (mut cluster, job) = decoding();
    assert_eq!(cluster.drain("q0", None).expect_err("the only one").code(), "last_host");
    cluster.drain("c0", None).expect("there is another");
    assert!(!cluster.sent.contains(&(1, HostCommand::Release { context: job, keep: true })), "it goes on answering");
    let orders = cluster.encode();
    assert_eq!(orders.iter().map(|(to, _)| *to).collect::<Vec<_>>(), [2, 2]);
    let reported = cluster.take_sent();
    let Some((3, HostCommand::Holders { holders, .. })) = reported.last() else { panic!("{reported:?}") };
    assert_eq!((holders.len(), &holders[0].blocks[..]), (1, &[0, 1, 2, 3][..]));
    assert!(
        !reported.contains(&(1, HostCommand::Release { context: job, keep: true })),
        "the query host has to hear it first"
    );
    cluster.tick(1.0, &[1, 2, 3]);
    assert!(cluster.sent.contains(&(1, HostCommand::Release { context: job, keep: true })));
    assert_eq!(cluster.scheduling(0), Scheduling::Cordoned);
    assert!(cluster.status(job).recoveries.is_empty(), "nobody waited");
    assert_eq!(cluster.drain("c1", None).expect_err("the only one left").code(), "last_host");
    let decided = cluster.state.schedule_host(seconds(1.0), "c0", Scheduling::Open, None).expect("it is there");
    cluster.adopt(decided);
    cluster.drain("c1", None).expect("there is another again");
}

#[test]
fn a_host_that_dies_while_it_drains_leaves_its_shards_to_their_heirs() {
    let (mut cluster, job) = decoding();
    cluster.drain("c0", None).expect("there is another");
    let first = cluster.take_sent();
    cluster.deliver(NODE, HostMessage::Exited { host: "c0".into(), start: 1, cause: "9".into(), restarting: false });
    let again = cluster.encode();
    let blocks = |orders: &[(u64, EncodeShards)]| -> Vec<usize> {
        orders.iter().flat_map(|(_, order)| &order.shards).map(|shard| shard.block).collect()
    };
    assert_eq!((blocks(&again), again.iter().all(|(to, _)| *to == 2)), (vec![0, 1], true), "after {first:?}");
    assert_eq!(cluster.status(job).recoveries[0].shards, 2);
    assert!(
        cluster
            .take_sent()
            .iter()
            .any(|(to, command)| (*to, matches!(command, HostCommand::Holders { .. })) == (3, true))
    );
}

#[test]
fn a_move_whose_heir_dies_begins_again_and_one_that_fails_takes_the_shards_away() {
    let mut cluster = Cluster::ready(config(3, 0));
    let job = cluster.submit(None);
    cluster.encode();
    cluster.drain("c0", None).expect("there are others");
    cluster.take_sent();
    cluster.deliver(NODE, HostMessage::Exited { host: "c1".into(), start: 1, cause: "9".into(), restarting: false });
    assert!(
        !cluster.sent.contains(&(1, HostCommand::Release { context: job, keep: true })),
        "what it has stays until the rest is whole"
    );
    assert!(cluster.encode().iter().all(|(to, _)| *to == 3));
    cluster.tick(0.5, &[1, 3, 4]);
    assert_eq!(cluster.scheduling(0), Scheduling::Draining);
    let orders: Vec<u64> = cluster
        .take_sent()
        .into_iter()
        .filter(|(_, c)| matches!(c, HostCommand::Encode(_)))
        .map(|(to, _)| to)
        .collect();
    assert!(!orders.is_empty() && orders.iter().all(|to| *to == 3), "{orders:?}");
    let failed = HostMessage::NotEncoded {
        context: job,
        attempt: 1,
        peer_lost: false,
        code: "out_of_memory".into(),
        message: "no room".into(),
    };
    cluster.deliver(3, failed);
    assert!(cluster.sent.contains(&(1, HostCommand::Release { context: job, keep: true })), "{:?}", cluster.sent);
}

#[test]
fn what_cannot_move_is_taken_away_and_so_is_all_when_the_time_is_over() {
    let ring = serde_json::from_value(json!({"ring": {"layout": "contiguous"}})).expect("a method");
    let mut cluster = Cluster::ready(SupervisorConfig { method: ring, ..config(2, 0) });
    let job = cluster.submit(None);
    cluster.encode();
    cluster.drain("c0", Some(10.0)).expect("there is another");
    let released =
        |cluster: &super::Cluster, keep| cluster.sent.contains(&(1, HostCommand::Release { context: job, keep }));
    assert!(!released(&cluster, true) && !released(&cluster, false), "its job may end before");
    cluster.drain("c0", None).expect("there is another");
    assert!(released(&cluster, false), "its shards need each other, and are not found without them");
    let (mut cluster, job) = decoding();
    cluster.drain("c0", Some(10.0)).expect("there is another");
    cluster.sent.clear();
    cluster.tick(9.0, &[1, 2, 3]);
    assert!(cluster.sent.is_empty(), "{:?}", cluster.sent);
    cluster.tick(10.0, &[1, 2, 3]);
    assert!(cluster.sent.contains(&(1, HostCommand::Release { context: job, keep: true })));
    assert_eq!(cluster.status(job).recoveries[0].reason, "drained");
}

#[test]
fn a_restarted_supervisor_goes_on_draining() {
    let (mut cluster, job) = decoding();
    cluster.drain("c0", None).expect("there is another");
    cluster.restart();
    cluster.tick(0.5, &[]);
    for at in [0, 1] {
        cluster.hello(at, 1, CLUSTER, (&[job], &[]));
        cluster.deliver(connection(at, 1), super::ready());
        cluster.encode();
    }
    cluster.tick(1.0, &[1, 2]);
    assert!(cluster.encode().iter().all(|(to, _)| *to == 2));
    assert_eq!(cluster.state.host_status(seconds(1.0), 0).shards, 0);
}

#[test]
fn a_spare_replaces_a_dead_host_for_good() {
    let mut cluster = Cluster::ready(config(2, 2));
    let replace = |cluster: &mut Cluster, dead: &str, spare: &str| {
        cluster.state.replace_host(seconds(cluster.now), dead, spare).map(|decided| cluster.adopt(decided))
    };
    assert_eq!(replace(&mut cluster, "c1", "s0").expect_err("at work").code(), "host_conflict");
    let exited = HostMessage::Exited { host: "c1".into(), start: 1, cause: "signal 9".into(), restarting: false };
    cluster.deliver(NODE, exited);
    assert_eq!(replace(&mut cluster, "c1", "c0").expect_err("no spare").code(), "host_conflict");
    assert_eq!(replace(&mut cluster, "c1", "s9").expect_err("unknown").code(), "host_not_found");
    replace(&mut cluster, "c1", "s0").expect("idle");
    cluster.restart();
    let roles: Vec<Role> = (0..5).map(|at| cluster.state.host_status(Duration::ZERO, at).role).collect();
    assert_eq!(roles, [Role::Context, Role::Spare, Role::Query, Role::Context, Role::Spare]);
}

#[test]
fn an_heir_that_reads_something_else_keeps_nothing_of_it() {
    let (mut cluster, job) = decoding();
    cluster.sent.clear();
    cluster.drain("c0", None).expect("there is another");
    let first = |cluster: &Cluster| {
        cluster.sent.iter().find_map(|(to, command)| match command {
            HostCommand::Encode(order) => Some((*to, order.shards[0].block as u32)),
            _ => None,
        })
    };
    let (migration_target, block) = first(&cluster).expect("its shards move");
    cluster.sent.clear();
    cluster.deliver(migration_target, HostMessage::Encoded(Encoded { digest: 1, ..encoded(job, block, 30) }));
    assert!(
        cluster.closed.contains(&migration_target),
        "it is fenced, and what it read goes with it: {:?}",
        cluster.sent
    );
}

impl Cluster {
    fn restarts(&mut self, name: &str, deadline: f64) -> Result<(), JobError> {
        let decided = self.state.restart_host(seconds(self.now), name, seconds(deadline))?;
        assert!(!decided.changes.is_empty(), "a change without a word for the journal comes into force nowhere");
        self.adopt(decided);
        Ok(())
    }

    fn told(&self, at: usize) -> Vec<&HostCommand> {
        let ends = |command: &&HostCommand| matches!(command, HostCommand::Leave | HostCommand::Shutdown);
        let to = connection(at, 1);
        self.sent.iter().filter(|(connection, _)| *connection == to).map(|(_, command)| command).filter(ends).collect()
    }
}

/// A signal asked its process to end: it says so, and is told to when others have its shards.
#[test]
fn a_host_that_is_asked_to_end_is_told_to_when_its_shards_are_elsewhere() {
    let (mut cluster, job) = decoding();
    cluster.deliver(1, HostMessage::Leaving { grace_ms: 8000 });
    assert_eq!((cluster.scheduling(0), cluster.told(0).len()), (Scheduling::Draining, 0), "its shards are asked");
    let orders = cluster.encode();
    assert_eq!(orders.iter().map(|(to, _)| *to).collect::<Vec<_>>(), [2, 2]);
    cluster.tick(1.0, &[1, 2, 3]);
    assert!(cluster.told(0).is_empty(), "the query host has to hear it first");
    cluster.tick(1.5, &[1, 2, 3]);
    assert_eq!(cluster.told(0), [&HostCommand::Leave]);
    assert!(!cluster.state.hosts.at(0).takes_work(), "nothing more goes to it");
    cluster.event(SupervisorEvent::Disconnected { connection: 1, cause: "closed".into() });
    let exited =
        |start| HostMessage::Exited { host: "c0".into(), start, cause: "exit status: 143".into(), restarting: true };
    cluster.deliver(NODE, exited(1));
    assert!(cluster.status(job).recoveries.is_empty(), "nobody waited");
    let lost = |update: &ClusterEventKind| matches!(update, ClusterEventKind::HostLost { .. });
    assert!(!cluster.update.iter().any(lost), "{:?}", cluster.update);
    assert!(cluster.update.contains(&ClusterEventKind::HostLeft { host: "c0".into() }));
    cluster.join(0, 2);
    let status = cluster.state.host_status(seconds(cluster.now), 0);
    assert_eq!((status.restarts, status.scheduling), (0, Scheduling::Open), "it was no failure");
    assert!(cluster.state.hosts.at(0).takes_work());
}

#[test]
fn what_an_operator_took_the_work_from_is_told_to_end_for_good_and_started_when_it_is_to_work_again() {
    let (mut cluster, _) = decoding();
    cluster.drain("c0", None).expect("there is another");
    cluster.encode();
    cluster.tick(1.0, &[1, 2, 3]);
    assert_eq!(cluster.scheduling(0), Scheduling::Cordoned);
    cluster.deliver(1, HostMessage::Leaving { grace_ms: 8000 });
    assert_eq!(cluster.told(0), [&HostCommand::Shutdown]);
    cluster.event(SupervisorEvent::Disconnected { connection: 1, cause: "closed".into() });
    cluster.sent.clear();
    let decided = cluster.state.schedule_host(seconds(2.0), "c0", Scheduling::Open, None).expect("it is there");
    cluster.adopt(decided);
    assert!(cluster.sent.contains(&(NODE, HostCommand::Start { host: "c0".into() })), "{:?}", cluster.sent);
}

#[test]
fn a_host_that_nobody_can_take_over_from_ends_by_its_deadline_and_its_job_goes_on() {
    let (mut cluster, job) = decoding();
    cluster.restarts("q0", 10.0).expect("it is there");
    cluster.tick(9.0, &[1, 2, 3]);
    assert!(cluster.told(2).is_empty(), "its answer may be done by then");
    cluster.token(3, job, 2, 6);
    cluster.tick(10.0, &[1, 2, 3]);
    assert_eq!(cluster.told(2), [&HostCommand::Leave]);
    let (to, generate) = cluster.generation().expect("another goes on with its job");
    assert!(to != 3 && generate.generated == cluster.status(job).tokens, "{to}");
    cluster.event(SupervisorEvent::Disconnected { connection: 3, cause: "closed".into() });
    cluster.join(2, 2);
    assert!(cluster.state.hosts.at(2).takes_work());
}

#[test]
fn a_restart_of_what_is_idle_waits_for_nobody() {
    let mut cluster = Cluster::ready(config(2, 0));
    assert_eq!(cluster.restarts("c9", 60.0).expect_err("unknown").code(), "host_not_found");
    cluster.restarts("c1", 60.0).expect("it is there");
    assert_eq!(cluster.told(1), [&HostCommand::Leave]);
    // The word got lost with its connection: it comes back as it was, and hears it again.
    cluster.sent.clear();
    cluster.restart();
    cluster.hello(1, 1, CLUSTER, (&[], &[]));
    assert_eq!(cluster.told(1), [&HostCommand::Leave]);
    cluster.event(SupervisorEvent::Disconnected { connection: connection(1, 1), cause: "closed".into() });
    assert_eq!(cluster.restarts("c1", 60.0).expect_err("its node is gone, too").code(), "host_conflict");
}
