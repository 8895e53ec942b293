//! Silent hosts that their node sees: stopped, starved, or neither.

use super::*;

fn seen(cluster: &mut Cluster, now: f64, condition: Condition) {
    cluster.now = now;
    cluster.deliver(NODE, HostMessage::Seen { host: "c1".into(), start: 1, condition });
}

/// Ticks twice a second from `from` to `to`, with what the node sees before each; c1 says nothing.
fn silent(cluster: &mut Cluster, from: f64, to: f64, condition: Option<Condition>) {
    for half_seconds in (2.0 * from) as usize..=(2.0 * to) as usize {
        let now = half_seconds as f64 / 2.0;
        condition.into_iter().for_each(|condition| seen(cluster, now, condition));
        cluster.tick(now, &[1, 3]);
    }
}

#[test]
fn a_starved_host_is_a_busy_suspect_and_keeps_its_work() {
    let (mut cluster, job) = decoding();
    silent(&mut cluster, 0.5, 20.0, Some(Condition::Starved));
    assert_eq!(cluster.health(1), HostHealth::Suspect);
    let cause = cluster.state.host_status(seconds(20.0), 1).cause.expect("one");
    assert!(cause.contains("busy: its process waits for memory"), "{cause}");
    assert!(cluster.encode().is_empty() && cluster.status(job).recoveries.is_empty());
    cluster.tick(20.1, &[1, 2, 3]);
    assert_eq!(cluster.health(1), HostHealth::Ready);
    assert_eq!(cluster.state.host_status(seconds(20.1), 1).cause, None);
}

#[test]
fn what_is_stopped_hangs_or_starves_without_end_is_dead() {
    for (last, until, cause) in [
        (Some(Condition::Stopped), 12.5, "stopped by a signal"),
        (Some(Condition::Well), 12.5, "the process hangs"),
        // Its node was not heard either: what it saw last is old.
        (None, 12.5, "waits for memory"),
        (Some(Condition::Starved), 61.0, "waits for memory"),
    ] {
        let (mut cluster, _) = decoding();
        silent(&mut cluster, 0.5, 10.0, Some(Condition::Starved));
        assert_eq!(cluster.health(1), HostHealth::Suspect);
        silent(&mut cluster, 10.5, until, last);
        assert_eq!(cluster.health(1), HostHealth::Dead, "{last:?}");
        let got = cluster.state.host_status(seconds(until), 1).cause.expect("one");
        assert!(got.contains(cause), "{got}");
    }
}

#[test]
fn nobody_excuses_the_hosts_of_others_or_a_process_that_is_gone() {
    let (mut cluster, _) = decoding();
    for now in [0.5, 1.0, 1.5, 2.0] {
        cluster.now = now;
        cluster.deliver(NODE, HostMessage::Seen { host: "c1".into(), start: 2, condition: Condition::Starved });
        cluster.deliver(1, HostMessage::Seen { host: "c1".into(), start: 1, condition: Condition::Starved });
        cluster.tick(now, &[1, 3]);
    }
    cluster.tick(2.5, &[1, 3]);
    assert_eq!(cluster.health(1), HostHealth::Dead);
}

#[test]
fn a_supervisor_that_waits_for_memory_itself_judges_nobody_by_that_time() {
    let (mut cluster, job) = decoding();
    // Its clock goes on, but nothing reaches it: no host and no node is heard.
    let starved = |cluster: &mut Cluster, from: f64, to: f64| {
        for half_seconds in (2.0 * from) as usize..=(2.0 * to) as usize {
            cluster.now = half_seconds as f64 / 2.0;
            cluster.event(SupervisorEvent::Starved);
            cluster.tick(cluster.now, &[]);
        }
    };
    starved(&mut cluster, 0.5, 30.0);
    assert!((0..3).all(|host| cluster.health(host) != HostHealth::Dead));
    assert!(cluster.encode().is_empty() && cluster.status(job).recoveries.is_empty());
    // Once it hears again, who is not heard is lost as ever.
    for half_seconds in 61..67 {
        cluster.tick(f64::from(half_seconds) / 2.0, &[1, 3]);
    }
    assert_eq!((cluster.health(0), cluster.health(1)), (HostHealth::Ready, HostHealth::Dead));
}

#[test]
fn who_is_stopped_is_lost_also_while_the_supervisor_waits_for_memory_and_nobody_is_excused_for_ever() {
    for (condition, until) in [(Condition::Stopped, 4.0), (Condition::Well, 64.0)] {
        let (mut cluster, _) = decoding();
        for half_seconds in 1..=(2.0 * until) as usize {
            let now = half_seconds as f64 / 2.0;
            seen(&mut cluster, now, condition);
            cluster.event(SupervisorEvent::Starved);
            cluster.tick(now, &[1, 3]);
            assert!(now < until || cluster.health(1) == HostHealth::Dead, "{condition:?}");
        }
    }
}

#[test]
fn hosts_that_starve_or_that_a_starved_supervisor_does_not_hear_have_longer_to_come_back() {
    // Without anybody's want of memory they are given up seven seconds after the start.
    for (own, of_c1, lost) in [(false, false, true), (true, false, false), (false, true, false)] {
        let (mut cluster, _) = decoding();
        cluster.restart();
        let hello = Hello { name: "here".into(), role: HostRole::Node, start: 1, ..Hello::default() };
        cluster.deliver(NODE, HostMessage::Hello(hello));
        for half_seconds in 1..=20 {
            cluster.now = f64::from(half_seconds) / 2.0;
            if own {
                cluster.event(SupervisorEvent::Starved);
            }
            if of_c1 {
                seen(&mut cluster, f64::from(half_seconds) / 2.0, Condition::Starved);
            }
            cluster.tick(cluster.now, &[]);
        }
        assert_eq!(cluster.health(1) == HostHealth::Dead, lost, "{own} {of_c1}");
    }
}

#[test]
fn a_supervisor_that_waits_for_memory_for_minutes_loses_nobody_whom_it_hears_now_and_then() {
    let (mut cluster, job) = decoding();
    for half_seconds in 1..=400 {
        let heard: &[u64] = if half_seconds % 14 == 0 { &[1, 2, 3] } else { &[] };
        cluster.now = f64::from(half_seconds) / 2.0;
        cluster.event(SupervisorEvent::Starved);
        cluster.tick(cluster.now, heard);
    }
    assert!((0..3).all(|host| cluster.health(host) != HostHealth::Dead));
    assert!(cluster.status(job).recoveries.is_empty());
}
