//! What happens to shards while hosts come back, where they lie afterwards, and who counts as there, with a fake clock.

use std::time::Duration;

use crate::{
    api::{HostHealth, Role, Scheduling, SessionState},
    messages::{Encoded, Hello, HostCommand, HostMessage, HostRole},
    supervisor::{
        ReadyWhen, SupervisorConfig, SupervisorEvent,
        tests::{CLUSTER, Cluster, NODE, config, connection, encoded, prepared, ready, seconds},
    },
};

impl Cluster {
    /// A session of four shards.
    fn session(config: SupervisorConfig) -> Self {
        let mut cluster = Self::ready(config);
        let context = prepared(&cluster.state.config().method.clone(), cluster.contexts());
        let number = cluster.state.number();
        let decided = cluster.state.create_session((Duration::ZERO, number), "moby", context, Some(seconds(1e6)));
        cluster.adopt(decided.expect("taken"));
        assert_eq!(cluster.encode().len(), 4);
        cluster.sent.clear();
        cluster
    }

    fn shards(&self) -> Vec<usize> {
        let status = self.state.cluster_status(seconds(self.now), "");
        status.hosts.iter().map(|host| host.shards).collect()
    }

    fn session_state(&self) -> SessionState {
        self.state.session_status(seconds(self.now), "moby").expect("there").state
    }

    fn node_joins(&mut self) {
        let hello = Hello { name: "here".into(), role: HostRole::Node, start: 1, ..Hello::default() };
        self.deliver(NODE, HostMessage::Hello(hello));
    }

    fn schedule(&mut self, name: &str, scheduling: Scheduling) -> Result<(), &'static str> {
        let decided = self.state.schedule_host(seconds(self.now), name, scheduling, None);
        self.adopt(decided.map_err(|error| error.code())?);
        Ok(())
    }

    fn exits(&mut self, name: &str, start: u64, restarting: bool) {
        self.deliver(NODE, HostMessage::Exited { host: name.into(), start, cause: "signal 9".into(), restarting });
    }

    /// Time passes in ticks of half a second; hosts on `beating` are alive, and encode what they are told.
    fn pass(&mut self, until: f64, beating: &[u64]) {
        while self.now < until {
            self.tick(self.now + 0.5, beating);
            self.encode();
        }
    }
}

#[test]
fn shards_wait_for_hosts_that_are_being_started_rather_than_pile_up_on_the_first() {
    let mut cluster = Cluster::session(config(3, 0));
    cluster.restart();
    cluster.node_joins();
    cluster.now = 1.0;
    // The machine was started again: every process is new, and the query host is ready first.
    cluster.join(3, 2);
    cluster.encode();
    assert_eq!(cluster.shards()[3], 0, "it takes nothing that the others come for");
    cluster.join(0, 2);
    cluster.encode();
    assert!(cluster.session_state() != SessionState::Ready);
    assert_eq!(cluster.shards()[0], 0, "two more come, and it is the only one there");
    cluster.join(1, 2);
    cluster.encode();
    assert_eq!(cluster.shards()[3], 0, "the query host gets none");
    cluster.join(2, 2);
    cluster.encode();
    assert_eq!(cluster.session_state(), SessionState::Ready);
    let beating = [1, 2, 3, 4].map(|at| at + 100);
    cluster.pass(30.0, &beating);
    assert_eq!((cluster.shards()[3], cluster.session_state()), (0, SessionState::Ready));
    assert!(cluster.shards()[..3].iter().all(|shards| *shards <= 2), "{:?}", cluster.shards());
}

#[test]
fn the_wait_is_bounded_and_what_was_put_elsewhere_moves_back_when_it_is_quiet() {
    let mut cluster = Cluster::session(config(1, 0));
    cluster.exits("c0", 1, true);
    assert!(cluster.encode().is_empty(), "its node starts it again");
    cluster.pass(9.0, &[2]);
    assert_eq!(cluster.shards(), [0, 0]);
    cluster.pass(11.0, &[2]);
    assert_eq!(cluster.shards(), [0, 4], "it does not come: the query host stands in");
    cluster.join(0, 2);
    let hosts = [connection(0, 2), 2];
    cluster.pass(13.0, &hosts);
    assert_eq!(cluster.shards(), [0, 4], "not at once");
    cluster.pass(25.0, &hosts);
    assert_eq!(cluster.shards(), [4, 0], "they are back");
    assert!(cluster.sent.contains(&(2, HostCommand::Release { context: 1, keep: true })), "{:?}", cluster.sent);
}

#[test]
fn a_host_whose_shards_others_have_room_for_is_not_waited_for() {
    let mut cluster = Cluster::session(config(2, 0));
    cluster.exits("c0", 1, true);
    assert_eq!(cluster.encode().len(), 2, "as many are there as come");
    assert_eq!(cluster.shards(), [0, 4, 0]);
    cluster.join(0, 2);
    let hosts = [connection(0, 2), 2, 3];
    cluster.pass(40.0, &hosts);
    assert_eq!(cluster.shards(), [2, 2, 0], "its share comes back to it");
    cluster.sent.clear();
    cluster.pass(60.0, &hosts);
    let moved = cluster.sent.iter().any(|(_, command)| matches!(command, HostCommand::Encode(_)));
    assert!(!moved, "and there is nothing more to be done");
}

#[test]
fn nothing_moves_where_nobody_wants_that() {
    let mut cluster = Cluster::session(SupervisorConfig { rebalance: false, ..config(2, 0) });
    cluster.exits("c0", 1, true);
    cluster.encode();
    cluster.join(0, 2);
    cluster.pass(40.0, &[connection(0, 2), 2, 3]);
    assert_eq!(cluster.shards(), [0, 4, 0]);
}

#[test]
fn a_cluster_is_ready_when_it_answers() {
    for (ready_when, with_one, with_none) in
        [(ReadyWhen::Answers, true, true), (ReadyWhen::Contexts(1), true, false), (ReadyWhen::All, false, false)]
    {
        let mut cluster = Cluster::ready(SupervisorConfig { ready_when, ..config(2, 0) });
        let answers = |cluster: &Cluster| cluster.state.cluster_status(seconds(0.0), "").answers;
        assert!(answers(&cluster), "{ready_when:?}");
        cluster.exits("c0", 1, false);
        assert_eq!(answers(&cluster), with_one, "{ready_when:?}");
        cluster.exits("c1", 1, false);
        assert_eq!(answers(&cluster), with_none, "{ready_when:?}: the query host could do both");
        cluster.exits("q0", 1, false);
        assert!(!answers(&cluster), "{ready_when:?}");
    }
}

#[test]
fn a_removed_host_is_nobody_until_an_operator_takes_it_in_again() {
    let mut cluster = Cluster::session(config(2, 0));
    assert_eq!(cluster.schedule("c0", Scheduling::Removed), Err("host_conflict"), "it is there");
    cluster.exits("c0", 1, false);
    assert!(!cluster.state.cluster_status(seconds(0.0), "").ready);
    cluster.schedule("c0", Scheduling::Removed).expect("it is gone");
    cluster.restart();
    cluster.node_joins();
    for at in [1, 2] {
        cluster.hello(at, 1, CLUSTER, (&[1], &[]));
        cluster.deliver(connection(at, 1), ready());
    }
    cluster.encode();
    let status = cluster.state.cluster_status(seconds(0.0), "");
    assert_eq!((status.ready, status.removed, status.hosts.len()), (true, vec!["c0".to_string()], 2));
    assert_eq!(cluster.session_state(), SessionState::Ready);
    cluster.sent.clear();
    cluster.join(0, 2);
    let refused = |(_, command): &(u64, HostCommand)| matches!(command, HostCommand::Refuse { reason } if reason.contains("was removed"));
    assert!(cluster.sent.iter().any(refused), "{:?}", cluster.sent);
    cluster.schedule("c0", Scheduling::Open).expect("it is known");
    cluster.join(0, 3);
    assert_eq!((cluster.health(0), cluster.state.cluster_status(seconds(0.0), "").hosts.len()), (HostHealth::Ready, 3));
}

/// Both encode ring attention together, so that the fast one takes as long as the slow one: it waits.
#[test]
fn the_slow_host_is_named_and_avoided_and_the_one_that_waits_for_it_is_not() {
    for avoid_stragglers in [false, true] {
        let mut cluster = Cluster::ready(SupervisorConfig { avoid_stragglers, ..config(2, 0) });
        let mut named = Vec::new();
        for round in 0..12 {
            cluster.tick(f64::from(round) * 5.0, &[1, 2, 3]);
            let job = cluster.submit(None);
            for (to, command) in cluster.take_sent() {
                let HostCommand::Encode(order) = command else { continue };
                for shard in &order.shards {
                    let computing_s = if to == 1 { 4.0 } else { 0.3 };
                    let done = Encoded {
                        seconds: 4.1,
                        computing_s,
                        operations: 1_000_000_000,
                        ..encoded(job, shard.block as u32, shard.kept_tokens() as u64)
                    };
                    cluster.deliver(to, HostMessage::Encoded(done));
                }
            }
            let end = HostMessage::Generated { job, tokens: 0, stopped: true, text: "".into(), times: Box::default() };
            cluster.deliver(3, end);
            let slow = cluster.state.cluster_status(seconds(cluster.now), "").hosts;
            named.extend(slow.into_iter().filter_map(|host| host.slow.map(|slow| (host.name, slow, host.role))));
        }
        assert!(
            named.iter().all(|(host, slow, role)| (host.as_str(), *role) == ("c0", Role::Context)
                && slow.contains("phase 1 of star takes it 13.3 times as long as its equals")),
            "{named:?}"
        );
        assert!(named.len() >= 9, "within ten seconds: {named:?}");
        let job = cluster.submit(None);
        let given: Vec<u64> = cluster.encode().into_iter().map(|(to, _)| to).collect();
        assert_eq!(given.contains(&1), !avoid_stragglers, "job {job}: {given:?}");
    }
}

#[test]
fn what_a_host_answers_tells_of_it_too() {
    let mut cluster = Cluster::ready(config(2, 0));
    let mut answered = [0_u64; 2];
    for round in 0..40 {
        cluster.tick(f64::from(round) * 0.5, &[1, 2, 3]);
        for at in [0, 1] {
            answered[at] += 1_000_000_000;
            let each = if at == 1 { 5e-10 } else { 3e-11 };
            let mut report = crate::readings::LinkReport::default();
            report.answered.operations = answered[at];
            report.answered.seconds = answered[at] as f64 * each;
            cluster.deliver(connection(at, 1), HostMessage::Links(report));
        }
    }
    cluster.event(SupervisorEvent::Tick);
    let slow: Vec<Option<String>> =
        cluster.state.cluster_status(seconds(20.0), "").hosts.into_iter().map(|host| host.slow).collect();
    assert_eq!((slow[0].as_ref(), slow[2].as_ref()), (None, None));
    assert!(slow[1].as_ref().is_some_and(|slow| slow.contains("answers of phase 2")), "{slow:?}");
}
