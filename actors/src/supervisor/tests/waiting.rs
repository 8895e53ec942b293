//! What jobs and sessions wait for, with a fake clock.

use std::time::Duration;

use asterism_plan::{MethodConfig, Shard};
use serde_json::json;

use super::{Cluster, apart, config, decoding, encoded, job, prepared, prepared_of, seconds};
use crate::{
    api::{PlacementPolicy, Role, Scheduling},
    cores::GpuMemory,
    messages::{HostCommand, HostMessage},
    readings::{LinkReport, ProcessReading},
    supervisor::{PreparedContext, PreparedJob, Recovery, Source, SupervisorConfig},
};

fn stated(cluster: &Cluster, job: u64) -> String {
    cluster.status(job).waiting.map_or("nothing".into(), |waiting| waiting.to_string())
}

/// `hosts` context hosts that take `tokens` tokens each.
fn roomy(hosts: usize, tokens: u64) -> SupervisorConfig {
    let mut config = SupervisorConfig { recovery: Recovery::Spare, ..config(hosts, 0) };
    config.hosts.iter_mut().for_each(|host| host.memory_limit = Some(8 * tokens));
    config
}

fn session(cluster: &mut Cluster, name: &str) {
    let context = prepared(&cluster.state.config().method.clone(), cluster.contexts());
    let number = cluster.state.number();
    let at = (seconds(cluster.now), number);
    let decided = cluster.state.create_session(at, name, context, Some(seconds(1000.0))).expect("taken");
    cluster.adopt(decided);
}

#[test]
fn a_job_waits_for_hosts_then_for_its_turn_then_for_nothing() {
    let mut cluster = Cluster::starting(config(2, 0));
    let first = cluster.submit(None);
    assert_eq!(stated(&cluster, first), "waiting for c0: starting, c1: starting, q0: starting");
    cluster.join(0, 1);
    cluster.join(2, 1);
    assert_eq!(stated(&cluster, first), "waiting for c1: starting");
    cluster.now = 50.0;
    cluster.join(1, 1);
    assert_eq!(stated(&cluster, first), "nothing");
    let (second, third) = (cluster.submit(None), cluster.submit(None));
    assert_eq!(stated(&cluster, second), "next in line, 1 job before yours at work");
    assert_eq!(stated(&cluster, third), "1 job before yours, 1 more at work");
    cluster.encode();
    assert_eq!(stated(&cluster, first), "nothing", "a query host answers");
    let timings = cluster.status(first).timings;
    assert_eq!((timings.queue_s, timings.encode_s), (50.0, 0.0), "the queue is no part of the work");
}

#[test]
fn who_waits_for_one_query_host_holds_up_nobody() {
    let mut cluster = Cluster::ready(SupervisorConfig { max_running: 9, ..config(2, 0) });
    let mut context = prepared(&cluster.state.config().method.clone(), 2);
    context.placement.query_host = Some("q9".into());
    cluster.ask(Source::Context(context), Some(60.0));
    let second = cluster.submit(None);
    cluster.encode();
    let (_, generate) = cluster.generation().expect("the query host that is there has nothing else to do");
    assert_eq!(generate.job, second);
}

#[test]
fn a_request_names_no_query_host() {
    let policy = |text| serde_json::from_str::<PlacementPolicy>(text);
    assert!(policy(r#"{"arrangement": "pack"}"#).is_ok());
    assert!(policy(r#"{"query_host": "query-0"}"#).is_err());
}

#[test]
fn a_job_waits_for_memory_and_for_hosts_that_are_lost() {
    let mut cluster = Cluster::ready(SupervisorConfig { max_running: 9, ..roomy(1, 120) });
    let first = cluster.submit(None);
    let second = cluster.submit(None);
    assert_eq!(stated(&cluster, first), "nothing");
    assert_eq!(stated(&cluster, second), "waiting for memory on c0: 0.0 MiB needed, 0.0 MiB free");

    let (mut cluster, number) = decoding();
    for at in [0, 1] {
        let exited =
            HostMessage::Exited { host: format!("c{at}"), start: 1, cause: "signal 9".into(), restarting: true };
        cluster.deliver(super::NODE, exited);
    }
    let waits = stated(&cluster, number);
    assert!(waits.starts_with("waiting for") || waits == "nothing", "{waits}");
    let exited = HostMessage::Exited { host: "q0".into(), start: 1, cause: "signal 9".into(), restarting: true };
    cluster.deliver(super::NODE, exited);
    assert_eq!(stated(&cluster, number), "waiting for c0: dead (signal 9), c1: dead (signal 9), q0: dead (signal 9)");
}

#[test]
fn a_question_waits_for_its_session_and_a_session_for_its_turn() {
    let mut cluster = Cluster::ready(config(1, 0));
    session(&mut cluster, "moby");
    session(&mut cluster, "ahab");
    let asked = cluster.ask(Source::Session("moby".into()), None);
    assert_eq!(stated(&cluster, asked), "waiting for session moby: encoding");
    let status = cluster.state.session_status(Duration::ZERO, "ahab").expect("it is there");
    assert_eq!(status.waiting.expect("its turn").to_string(), "next in line, 1 job before yours at work");
    assert!(status.progress.is_empty());
    let status = cluster.state.session_status(Duration::ZERO, "moby").expect("it is there");
    assert_eq!((status.waiting, status.progress[0].total_tokens > 0), (None, true));
    cluster.encode();
    let status = cluster.state.session_status(Duration::ZERO, "moby").expect("it is there");
    assert_eq!((status.waiting, status.progress.len()), (None, 0));
}

#[test]
fn a_job_waits_for_hosts_that_take_no_work() {
    let mut cluster = Cluster::ready(SupervisorConfig { recovery: Recovery::Spare, ..config(1, 0) });
    for name in ["c0", "q0"] {
        let decided = cluster.state.schedule_host(Duration::ZERO, name, Scheduling::Cordoned, None).expect("known");
        cluster.adopt(decided);
    }
    let context = prepared(&cluster.state.config().method.clone(), 1);
    let number = cluster.ask(Source::Context(context), None);
    assert_eq!(stated(&cluster, number), "waiting for c0: cordoned");
}

/// The place that is told is the one in which jobs begin.
#[test]
fn jobs_begin_in_the_order_that_is_told() {
    let mut cluster = Cluster::ready(SupervisorConfig { max_queue: 50, ..config(1, 0) });
    cluster.submit(None);
    let ask = |cluster: &mut Cluster, tokens: u32, at: f64| {
        cluster.now = at;
        let small =
            PreparedContext { dense_pairs: u64::from(tokens), ..prepared(&cluster.state.config().method.clone(), 1) };
        let fresh = cluster.state.number();
        let asked: PreparedJob = job(Source::Context(small), None);
        let (number, decided) = cluster.state.submit(seconds(at), fresh, asked).expect("taken");
        cluster.adopt(decided);
        number
    };
    let mut jobs: Vec<u64> = (0..6).map(|at| ask(&mut cluster, 10, f64::from(at) * 0.001)).collect();
    let before = |cluster: &Cluster, job: u64| match cluster.status(job).waiting {
        Some(crate::api::Waiting::Turn { before, .. }) => before,
        other => panic!("{other:?}"),
    };
    jobs.sort_by_key(|&job| before(&cluster, job));
    assert_eq!(jobs.iter().map(|&job| before(&cluster, job)).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    for &next in &jobs {
        let running = (1..=7).find(|&job| {
            cluster
                .state
                .job_status(Duration::ZERO, job)
                .is_some_and(|job| job.phase == Some(crate::api::JobPhase::Encoding))
        });
        let running = running.expect("one is encoded");
        let id = cluster.status(running).id;
        let decided = cluster.state.cancel(Duration::ZERO, &id).expect("it runs");
        cluster.adopt(decided);
        assert_eq!(cluster.status(next).phase, Some(crate::api::JobPhase::Encoding));
    }
}

/// A key that asked for much does not keep one that asks for a little waiting: its first context begins beside those that run, and
/// behind it keys take turns.
#[test]
fn keys_take_turns() {
    let mut cluster = Cluster::ready(SupervisorConfig { max_running: 1, max_queue: 50, ..config(1, 0) });
    let ask = |cluster: &mut Cluster, key: &str| {
        let context = apart(prepared(&cluster.state.config().method.clone(), 1));
        cluster.ask(Source::Context(PreparedContext { key: Some(key.into()), ..context }), None)
    };
    let much: Vec<u64> = (0..4).map(|_| ask(&mut cluster, "much")).collect();
    let little: Vec<u64> = (0..2).map(|_| ask(&mut cluster, "little")).collect();
    let all: Vec<u64> = much.iter().chain(&little).copied().collect();
    let encoding = |cluster: &Cluster| -> Vec<u64> {
        let is = |job: &u64| cluster.status(*job).phase == Some(crate::api::JobPhase::Encoding);
        all.iter().copied().filter(is).collect()
    };
    assert_eq!(encoding(&cluster), [much[0], little[0]]);
    let other = ask(&mut cluster, "other");
    assert_eq!(encoding(&cluster), [much[0], little[0]], "twice the room and no more");
    let reported: Vec<String> = [much[1], much[2], little[1], other].map(|job| stated(&cluster, job)).into();
    let before = ["next in line", "3 jobs before yours", "next in line", "next in line"];
    assert!(reported.iter().zip(before).all(|(reported, before)| reported.starts_with(before)), "{reported:?}");
    let end = |cluster: &mut Cluster, job: u64| {
        let id = cluster.status(job).id;
        let decided = cluster.state.cancel(Duration::ZERO, &id).expect("it runs");
        cluster.adopt(decided);
    };
    end(&mut cluster, other);
    let mut order = Vec::new();
    while let Some(job) = encoding(&cluster).first().copied() {
        order.push(job);
        end(&mut cluster, job);
    }
    assert_eq!(order, [much[0], much[1], much[2], much[3], little[0], little[1]], "as many as there is room for");
}

/// Whoever generates much leaves a place for whoever generates nothing.
#[test]
fn a_key_for_which_nothing_is_generated_has_a_place_beside_those_that_another_has_taken() {
    let limits = SupervisorConfig { max_running: 100, max_queue: 100, recovery: Recovery::Spare, ..config(1, 0) };
    let mut cluster = Cluster::ready(limits);
    let ask = |cluster: &mut Cluster, key: &str| {
        let context = apart(prepared(&cluster.state.config().method.clone(), 1));
        cluster.ask(Source::Context(PreparedContext { key: Some(key.into()), ..context }), None)
    };
    let much: Vec<u64> = (0..36).map(|_| ask(&mut cluster, "much")).collect();
    let little: Vec<u64> = (0..2).map(|_| ask(&mut cluster, "little")).collect();
    while !cluster.encode().is_empty() {}
    let generating = |cluster: &Cluster, jobs: &[u64]| {
        let is = |job: &&u64| cluster.status(**job).phase == Some(crate::api::JobPhase::Querying);
        jobs.iter().filter(is).count()
    };
    assert_eq!((generating(&cluster, &much), generating(&cluster, &little)), (32, 1));
    assert!(stated(&cluster, little[1]).starts_with("next in line"), "{}", stated(&cluster, little[1]));
    let id = cluster.status(much[0]).id;
    let decided = cluster.state.cancel(Duration::ZERO, &id).expect("it runs");
    cluster.adopt(decided);
    assert_eq!(generating(&cluster, &little), 1, "33 were too many for all");
    let id = cluster.status(much[1]).id;
    let decided = cluster.state.cancel(Duration::ZERO, &id).expect("it runs");
    cluster.adopt(decided);
    assert_eq!((generating(&cluster, &much), generating(&cluster, &little)), (30, 2), "the fewest first");
}

/// A query host takes as many jobs as its memory holds the questions and answers of, and one in any case.
#[test]
fn jobs_wait_for_memory_of_the_query_host() {
    let mut limits = SupervisorConfig { max_running: 100, max_queue: 100, recovery: Recovery::Spare, ..config(1, 0) };
    // A question of one token and four of the answer, of 8 bytes each.
    let query = limits.hosts.iter_mut().find(|host| host.role == Role::Query).expect("a query host");
    query.memory_limit = Some(3 * 40);
    let mut cluster = Cluster::ready(limits.clone());
    let jobs: Vec<u64> = (0..5).map(|_| cluster.submit(None)).collect();
    while !cluster.encode().is_empty() {}
    let generating = |cluster: &Cluster| {
        let is = |job: &&u64| cluster.status(**job).phase == Some(crate::api::JobPhase::Querying);
        jobs.iter().filter(is).count()
    };
    assert_eq!(generating(&cluster), 3);
    let id = cluster.status(jobs[0]).id;
    let decided = cluster.state.cancel(Duration::ZERO, &id).expect("it runs");
    cluster.adopt(decided);
    assert_eq!(generating(&cluster), 3, "the next has its room");
    let query = limits.hosts.iter_mut().find(|host| host.role == Role::Query).expect("a query host");
    query.memory_limit = Some(1);
    let mut cluster = Cluster::ready(limits);
    let jobs: Vec<u64> = (0..2).map(|_| cluster.submit(None)).collect();
    while !cluster.encode().is_empty() {}
    assert_eq!(phases(&cluster, &jobs), [Some(crate::api::JobPhase::Querying), Some(crate::api::JobPhase::Encoding)]);
}

/// Beyond the places for all, contexts begin while all that is encoded takes no longer than that.
#[test]
fn short_contexts_begin_together_and_a_long_one_waits_for_its_place() {
    let mut limits = SupervisorConfig { max_running: 1, max_queue: 100, ..config(1, 0) };
    let method = limits.method.clone();
    let (short, long) = (apart(prepared_of(&method, 1, 30, &[1])), apart(prepared_of(&method, 1, 3000, &[1])));
    // Thirty tokens of a short one at the speed that a cluster begins with.
    limits.encode_ahead = Duration::from_millis(9);
    let mut cluster = Cluster::ready(limits);
    let mut ask = |context: &PreparedContext| cluster.ask(Source::Context(context.clone()), None);
    let jobs = vec![ask(&short), ask(&short), ask(&short), ask(&short), ask(&long)];
    let (encoding, queued) = (Some(crate::api::JobPhase::Encoding), Some(crate::api::JobPhase::Queued));
    assert_eq!(phases(&cluster, &jobs), [encoding, encoding, encoding, queued, queued]);
    cluster.encode();
    assert_eq!(phases(&cluster, &jobs[3..]), [encoding, queued], "short ones pass it");
    cluster.encode();
    assert_eq!(phases(&cluster, &jobs[4..]), [encoding], "alone it has the place for all");
}

/// The phase that each job is in.
fn phases(cluster: &Cluster, jobs: &[u64]) -> Vec<Option<crate::api::JobPhase>> {
    jobs.iter().map(|job| cluster.status(*job).phase).collect()
}

/// Where nothing limits a host's memory, contexts wait for that of its GPU; one that would wait for nobody is tried.
#[test]
fn contexts_wait_for_memory_of_a_gpu() {
    let mut cluster = Cluster::ready(SupervisorConfig { max_running: 9, recovery: Recovery::Spare, ..config(1, 0) });
    let context = prepared(&cluster.state.config().method.clone(), 1);
    let each = context.weight().kv_bytes;
    let report = |cluster: &mut Cluster, held: u64, free: u64| {
        let process =
            ProcessReading { gpu: Some(GpuMemory { used: 160 * each - free, free }), ..ProcessReading::default() };
        cluster.deliver(1, HostMessage::Heartbeat { kv_bytes: held, idle_bytes: 0 });
        cluster.deliver(1, HostMessage::Links(LinkReport { process, ..LinkReport::default() }));
    };
    // A sixteenth of it all is left to what is computed.
    let spare = 10 * each;
    report(&mut cluster, 0, spare + each + each / 2);
    let jobs: Vec<u64> = (0..3).map(|_| cluster.submit(None)).collect();
    let (encoding, queued) = (Some(crate::api::JobPhase::Encoding), Some(crate::api::JobPhase::Queued));
    assert_eq!(phases(&cluster, &jobs), [encoding, queued, queued]);
    // What is placed is held by now, and counts once.
    report(&mut cluster, each, spare + each / 2);
    cluster.tick(0.1, &[]);
    assert_eq!(phases(&cluster, &jobs), [encoding, queued, queued]);
    report(&mut cluster, each, spare + each);
    cluster.tick(0.2, &[]);
    assert_eq!(phases(&cluster, &jobs), [encoding, encoding, queued]);
    // Of those that are placed none is left: the third is tried, however little is free.
    report(&mut cluster, 0, 0);
    for job in &jobs[..2] {
        let id = cluster.status(*job).id;
        let decided = cluster.state.cancel(Duration::ZERO, &id).expect("it runs");
        cluster.adopt(decided);
    }
    assert_eq!(phases(&cluster, &jobs[2..]), [encoding]);
}

/// What found no room on its device is ordered again there: shards that no other needs, and all of a chain.
#[test]
fn shards_that_found_no_room_are_ordered_again() {
    for (method, again) in [
        (json!({"star": {"shared_prefix": false}}), vec![2, 3]),
        (json!({"chain": {"block_tokens": 25}}), vec![0, 1, 2, 3]),
    ] {
        let method: MethodConfig = serde_json::from_value(method).expect("a method");
        let mut cluster = Cluster::ready(config(1, 0));
        let context = cluster.ask(Source::Context(prepared(&method, 4)), None);
        let ordered = |cluster: &mut Cluster| -> Vec<Shard> {
            let sent = cluster.take_sent().into_iter();
            let of_order = |command| if let HostCommand::Encode(order) = command { order.shards } else { Vec::new() };
            sent.flat_map(|(_, command)| of_order(command)).collect()
        };
        let blocks = |shards: Vec<Shard>| shards.iter().map(|shard| shard.block).collect::<Vec<_>>();
        let first = ordered(&mut cluster);
        for shard in &first[..2] {
            let kept = shard.kept_tokens() as u64;
            cluster.deliver(1, HostMessage::Encoded(encoded(context, shard.block as u32, kept)));
        }
        assert_eq!(blocks(first), [0, 1, 2, 3], "{method:?}");
        let (code, message) = ("kernel".to_string(), "shards do not fit on the device".to_string());
        cluster.deliver(1, HostMessage::NotEncoded { context, attempt: 1, peer_lost: true, code, message });
        assert!(ordered(&mut cluster).is_empty(), "{method:?}: a little later");
        cluster.tick(0.3, &[1, 2]);
        assert_eq!(blocks(ordered(&mut cluster)), again, "{method:?}");
    }
}
