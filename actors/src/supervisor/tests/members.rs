//! Members that say what is not theirs to say.

use super::*;

const HUGE: u64 = 9_000_000_000_000_000_000;

fn refusal(cluster: &mut Cluster, hello: Hello) -> String {
    cluster.sent.clear();
    cluster.deliver(700, HostMessage::Hello(hello));
    match cluster.take_sent().pop() {
        Some((700, HostCommand::Refuse { reason })) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_number_that_was_not_given_and_a_role_that_is_not_in_the_file_are_refused() {
    let mut cluster = Cluster::ready(config(1, 0));
    let own = Hello { name: "c0".into(), start: HUGE, ..Hello::default() };
    let reason = refusal(&mut cluster, Hello { incarnation: HUGE, cluster: CLUSTER, ..own.clone() });
    assert!(reason.contains("was never given, expected at most 1"), "{reason}");
    let reason = refusal(&mut cluster, Hello { incarnation: HUGE, ..own.clone() });
    assert!(reason.contains("another cluster"), "{reason}");
    let reason = refusal(&mut cluster, Hello { role: HostRole::Query, ..own.clone() });
    assert!(reason.contains("c0 is a Context host in the cluster file, expected that and got Query"), "{reason}");
    let reason = refusal(&mut cluster, Hello { role: HostRole::Node, ..own.clone() });
    assert!(reason.contains("no host of a node named c0"), "{reason}");
    assert_eq!(cluster.health(0), HostHealth::Ready);
    assert!(cluster.closed.is_empty());
}

#[test]
fn a_host_that_is_configured_later_joins_and_jobs_are_planned_for_it() {
    let mut cluster = Cluster::ready(config(1, 0));
    let endpoints = vec![Endpoint::new("quic", "127.0.0.1:2")];
    let reason = refusal(&mut cluster, Hello { name: "c1".into(), start: 1, endpoints, ..Hello::default() });
    assert!(reason.contains("no host named c1"), "{reason}");
    assert_eq!(cluster.state.context_hosts()[""].count, 1);
    let mut more = config(2, 0);
    more.hosts[0].labels.insert("rack".into(), "a".into());
    more.max_queue = 9;
    let commands = cluster.state.reconfigure(seconds(cluster.now), more);
    cluster.note(commands);
    let SupervisorConfig { hosts, max_queue, .. } = cluster.state.config();
    let names: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
    assert_eq!((names, *max_queue), (vec!["c0", "q0", "c1"], 9), "hosts keep their indices");
    assert_eq!(cluster.state.hosts.at(0).spec.labels["rack"], "a");
    cluster.join(2, 1);
    assert_eq!([0, 1, 2].map(|host| cluster.health(host)), [HostHealth::Ready; 3]);
    assert_eq!(cluster.state.context_hosts()[""].count, 2);
}

#[test]
fn a_number_of_a_start_that_cannot_be_is_over_with_its_process() {
    let mut cluster = Cluster::ready(config(1, 0));
    let own = Hello {
        name: "c0".into(),
        start: HUGE,
        endpoints: vec![Endpoint::new("quic", "127.0.0.1:1")],
        ..Hello::default()
    };
    cluster.deliver(700, HostMessage::Hello(own));
    cluster.hello(0, 2, 0, (&[], &[]));
    let late = matches!(cluster.take_sent().pop(), Some((_, HostCommand::Refuse { .. })));
    assert!(late, "while that process is there, an earlier one is taken for late");
    cluster.event(SupervisorEvent::Disconnected { connection: 700, cause: "reset".into() });
    cluster.join(0, 3);
    assert_eq!(cluster.health(0), HostHealth::Ready);
    cluster.deliver(NODE, HostMessage::Exited { host: "c0".into(), start: 3, cause: "9".into(), restarting: true });
    assert_eq!(cluster.health(0), HostHealth::Dead, "its node's numbers count again");
}

#[test]
fn numbers_that_cannot_be_in_the_journal_heal() {
    for (incarnation, fenced) in [(HUGE, 0), (HUGE, HUGE), (u64::MAX, u64::MAX), (1, 2)] {
        let mut cluster = Cluster::ready(config(1, 0));
        let entry = cluster.journal.iter_mut().find(|entry| entry.key == "c0").expect("it joined");
        let mut value: serde_json::Value = serde_json::from_slice(&entry.value).expect("JSON");
        (value["incarnation"], value["fenced"], value["start"]) = (incarnation.into(), fenced.into(), u64::MAX.into());
        entry.value = serde_json::to_vec(&value).expect("JSON");
        cluster.restart();
        cluster.join(0, 2);
        cluster.join(1, 2);
        assert_eq!([0, 1].map(|at| cluster.health(at)), [HostHealth::Ready; 2], "{incarnation}, {fenced}");
    }
}

#[test]
fn a_node_speaks_for_its_own_hosts_only() {
    let mut config = config(2, 0);
    config.hosts[1].node = "there".into();
    let mut cluster = Cluster::ready(config);
    cluster.deliver(
        NODE,
        HostMessage::Exited { host: "c1".into(), start: HUGE, cause: "a lie".into(), restarting: false },
    );
    assert_eq!((cluster.health(1), cluster.closed), (HostHealth::Ready, vec![NODE]));
}

#[test]
fn a_host_speaks_of_work_that_it_was_ordered_to_do_only() {
    let mut cluster = Cluster::ready(config(2, 0));
    let job = cluster.submit(None);
    // Connection 3 is the query host's, which encodes nothing.
    let (code, message) = ("lie".to_string(), "a lie".to_string());
    cluster.deliver(3, HostMessage::NotEncoded { context: job, attempt: 1, peer_lost: false, code, message });
    cluster.encode();
    let (to, generate) = cluster.generation().expect("it is asked");
    assert_eq!((to, generate.ticket), (3, origin(CLUSTER).secret.ticket(job)));
    let stall = || HostMessage::Stalled { job, host: "c1".into(), wrong: false, cause: "a lie".into() };
    for at in 0..10 {
        cluster.now += 1.0 + f64::from(at) / 100.0;
        cluster.deliver(1, stall());
        cluster.tick(cluster.now, &[1, 2, 3]);
    }
    cluster.token(3, job, 0, 5);
    assert!(cluster.status(job).recoveries.is_empty());
    cluster.token(1, job, 1, 6);
    assert_eq!(cluster.status(job).tokens, [5]);
}

#[test]
fn measures_that_cannot_be_are_believed_of_no_host() {
    for seconds in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 1e300, f64::MAX] {
        let mut cluster = Cluster::ready(config(1, 0));
        let job = cluster.submit(None);
        for block in 0..2 {
            let stated = Encoded {
                seconds,
                kv_bytes: u64::MAX,
                pairs: u64::MAX,
                exchange_bytes: u64::MAX,
                ..encoded(job, block, 30)
            };
            cluster.deliver(1, HostMessage::Encoded(stated));
        }
        let learnt = cluster.state.contexts.token_seconds();
        assert!((0.0..1.0).contains(&learnt), "{seconds}: {learnt}");
        cluster.submit(None);
        cluster.encode();
        assert!(cluster.generation().is_some(), "{seconds}: both go on");
        assert!(cluster.state.job_status(Duration::ZERO, job).is_some());
    }
}

#[test]
fn only_who_was_told_to_generate_claims_a_job_after_a_restart() {
    let (mut cluster, job) = super::decoding();
    let good = cluster.state.ticket_of(job);
    for (ticket, taken) in [(Default::default(), false), (origin(CLUSTER).secret.ticket(job + 1), false), (good, true)]
    {
        cluster.restart();
        let hello = Hello {
            name: "q0".into(),
            role: HostRole::Query,
            incarnation: 1,
            cluster: CLUSTER,
            jobs: vec![(job, ticket)],
            ..Hello::default()
        };
        cluster.deliver(3, HostMessage::Hello(hello));
        let stopped = cluster.take_sent().contains(&(3, HostCommand::Stop { job }));
        assert_eq!((cluster.state.jobs.count_on(2), stopped), (usize::from(taken), !taken));
    }
}

#[test]
fn a_failure_that_a_host_makes_up_has_no_label_of_its_own() {
    let (mut cluster, job) = super::decoding();
    cluster.deliver(3, HostMessage::Failed { job, code: "x".repeat(60_000), message: "no".into() });
    assert_eq!(cluster.status(job).error.expect("it failed").code, "other");
}

#[test]
fn each_host_says_which_version_it_speaks_and_what_build_it_is() {
    let mut cluster = Cluster::starting(config(1, 0));
    cluster.event(SupervisorEvent::Connected { connection: connection(0, 1), protocol: 3 });
    cluster.hello(0, 1, 0, (&[], &[]));
    let shown = |cluster: &Cluster| {
        let host = cluster.state.host_named(seconds(cluster.now), "c0").expect("it is configured");
        (host.protocol, host.build)
    };
    assert_eq!(shown(&cluster), (Some(3), None), "it has loaded nothing yet");
    let numerics = "cpu avx2 f32 0a1b2c3d tensor parallel 2".into();
    cluster.deliver(connection(0, 1), HostMessage::Ready { numerics, model: Box::default() });
    assert_eq!(shown(&cluster), (Some(3), Some("0a1b2c3d".to_owned())));
    cluster.event(SupervisorEvent::Disconnected { connection: connection(0, 1), cause: "reset".into() });
    assert_eq!(shown(&cluster).0, None);
}
