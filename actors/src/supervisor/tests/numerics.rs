//! Hosts that compute different bits.

use super::*;
use crate::supervisor::MixedNumerics;

/// Context hosts and one query host, which say these numerics, in this order.
fn cluster(numerics: &[&str], mixed_numerics: MixedNumerics) -> Cluster {
    let config = SupervisorConfig { mixed_numerics, ..config(numerics.len() - 1, 0) };
    let mut cluster = Cluster::starting(config);
    let hello = Hello { name: "here".into(), role: HostRole::Node, start: 1, ..Hello::default() };
    cluster.deliver(NODE, HostMessage::Hello(hello));
    for (at, numerics) in numerics.iter().enumerate() {
        cluster.hello(at, 1, 0, (&[], &[]));
        cluster
            .deliver(connection(at, 1), HostMessage::Ready { numerics: numerics.to_string(), model: Box::default() });
    }
    cluster.sent.clear();
    cluster
}

fn asked(orders: &[(u64, EncodeShards)]) -> Vec<u64> {
    let mut to: Vec<u64> = orders.iter().map(|(to, _)| *to).collect();
    to.sort_unstable();
    to.dedup();
    to
}

fn mixed_news(cluster: &Cluster) -> usize {
    cluster.update.iter().filter(|update| matches!(update, ClusterEventKind::NumericsMixed { .. })).count()
}

#[test]
fn shards_of_a_job_stay_among_equals_whoever_generates() {
    for mixed_numerics in [MixedNumerics::Refuse, MixedNumerics::Mark] {
        let mut cluster = cluster(&["a", "b", "b", "c"], mixed_numerics);
        let job = cluster.submit(None);
        assert_eq!(asked(&cluster.encode()), [2, 3], "the two that are equal");
        assert_eq!(cluster.generation().expect("it is asked").0, 4);
        assert_eq!((cluster.status(job).mixed_numerics, mixed_news(&cluster)), (false, 0));
        let numerics = cluster.state.host_status(seconds(0.0), 1).numerics;
        assert_eq!(numerics.as_deref(), Some("b"));
    }
}

#[test]
fn what_a_lost_host_had_goes_to_its_equals() {
    let mut cluster = cluster(&["a", "b", "b", "c"], MixedNumerics::Mark);
    let job = cluster.submit(None);
    cluster.encode();
    let (query, _) = cluster.generation().expect("it is asked");
    cluster.token(query, job, 0, 7);
    cluster.tick(1.6, &[1, 3, 4]);
    cluster.tick(2.5, &[1, 3, 4]);
    assert_eq!(asked(&cluster.encode()), [3], "not to a, which has nothing to do");
    assert!(!cluster.status(job).mixed_numerics);
}

#[test]
fn without_equals_a_job_waits_and_fails_or_goes_on_and_says_so() {
    for mixed_numerics in [MixedNumerics::Refuse, MixedNumerics::Mark] {
        let mut cluster = cluster(&["a", "b", "c"], mixed_numerics);
        let job = cluster.submit(None);
        assert_eq!(asked(&cluster.encode()), [1]);
        let (query, _) = cluster.generation().expect("it is asked");
        cluster.token(query, job, 0, 7);
        cluster.tick(1.6, &[2, 3]);
        cluster.tick(2.5, &[2, 3]);
        let orders = cluster.encode();
        match mixed_numerics {
            MixedNumerics::Refuse => {
                assert!(orders.is_empty());
                for half_seconds in 6..140 {
                    cluster.tick(f64::from(half_seconds) / 2.0, &[2, 3]);
                }
                let error = cluster.status(job).error.expect("it fails");
                assert!(error.message.contains("began on a"), "{}", error.message);
                assert!(error.message.contains("mixed_numerics"), "{}", error.message);
            }
            MixedNumerics::Mark => {
                assert_eq!(asked(&orders), [2]);
                assert_eq!((cluster.status(job).mixed_numerics, mixed_news(&cluster)), (true, 1));
            }
        }
    }
}

#[test]
fn a_job_without_tokens_begins_anew_on_others() {
    let mut cluster = cluster(&["a", "b", "c"], MixedNumerics::Refuse);
    let job = cluster.submit(None);
    assert_eq!(asked(&cluster.encode()), [1]);
    cluster.tick(1.6, &[2, 3]);
    cluster.tick(2.5, &[2, 3]);
    assert_eq!(asked(&cluster.encode()), [2], "all of it");
    assert!(!cluster.status(job).mixed_numerics);
}

#[test]
fn tokens_are_gone_on_with_by_an_equal_of_the_query_host() {
    for mixed_numerics in [MixedNumerics::Refuse, MixedNumerics::Mark] {
        // Every host can generate: c0 would be the first to be asked.
        let mut cluster = cluster(&["a", "b", "b"], mixed_numerics);
        let job = cluster.submit(None);
        cluster.encode();
        let (query, _) = cluster.generation().expect("it is asked");
        assert_eq!(query, 3);
        cluster.token(query, job, 0, 7);
        cluster.tick(1.6, &[1, 2]);
        cluster.tick(2.5, &[1, 2]);
        cluster.encode();
        assert_eq!(cluster.generation().map(|(to, _)| to), Some(2), "its equal");
        cluster.token(2, job, 0, 7);
        [3.4, 4.3, 5.2].into_iter().for_each(|now| cluster.tick(now, &[1]));
        cluster.encode();
        let next = cluster.generation().map(|(to, _)| to);
        match mixed_numerics {
            MixedNumerics::Refuse => {
                assert_eq!(next, None);
                for half_seconds in 11..140 {
                    cluster.tick(f64::from(half_seconds) / 2.0, &[1]);
                }
                assert_eq!(cluster.status(job).error.expect("it fails").code, "host_lost");
            }
            MixedNumerics::Mark => {
                assert_eq!(next, Some(1));
                assert!(cluster.status(job).mixed_numerics);
            }
        }
    }
}

#[test]
fn a_host_that_says_nothing_of_its_numerics_is_unfit() {
    let mut cluster = Cluster::ready(config(2, 0));
    cluster.hello(0, 2, 0, (&[], &[]));
    cluster.deliver(connection(0, 2), HostMessage::Ready { numerics: "\u{7}".into(), model: Box::default() });
    assert_eq!(cluster.health(0), HostHealth::Dead);
    let cause = cluster.state.host_status(seconds(0.0), 0).cause.expect("one");
    assert!(cause.contains("printable"), "{cause}");
}

#[test]
fn the_next_supervisor_knows_what_tokens_were_made_on() {
    for mixed_numerics in [MixedNumerics::Refuse, MixedNumerics::Mark] {
        let mut cluster = cluster(&["a", "a", "b"], mixed_numerics);
        let job = cluster.submit(None);
        cluster.encode();
        let (query, _) = cluster.generation().expect("it is asked");
        cluster.token(query, job, 0, 7);
        cluster.restart();
        for at in [0, 1] {
            cluster.hello(at, 1, CLUSTER, (&[job], &[]));
            cluster.deliver(connection(at, 1), HostMessage::Ready { numerics: "a".into(), model: Box::default() });
            cluster.encode();
        }
        // The query host does not come back.
        for half_seconds in 1..20 {
            cluster.tick(f64::from(half_seconds) / 2.0, &[1, 2]);
        }
        let marked = mixed_numerics == MixedNumerics::Mark;
        assert_eq!(cluster.generation().is_some(), marked, "only where others may go on");
        assert_eq!(cluster.status(job).mixed_numerics, marked);
    }
}
