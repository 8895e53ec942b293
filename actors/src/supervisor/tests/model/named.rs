//! Several models by name, each with its hosts.

use std::collections::BTreeSet;

use super::*;
use crate::api::Waiting;

const NAME: &str = "b";

fn of_b() -> BTreeMap<String, String> {
    BTreeMap::from([(MODEL_LABEL.to_owned(), NAME.to_owned())])
}

/// Hosts c0, c1 and q0 of the model without a name, d0 and p0 of b.
fn two() -> SupervisorConfig {
    let mut config = SupervisorConfig { max_running: 4, ..model(Some(2)) };
    let first = config.hosts[0].clone();
    let host = |name: &str, role| HostSpec { name: name.into(), role, labels: of_b(), ..first.clone() };
    config.hosts.extend([host("d0", Role::Context), host("p0", Role::Query)]);
    let (digest, weights) = (front("7"), Some(weights(9)));
    let b = ServedModel { label: NAME.into(), name: NAME.into(), digest, weights, ..config.models[0].clone() };
    config.models.push(b);
    config
}

fn of_the_first() -> Cluster {
    let mut cluster = Cluster::starting(model(Some(2)));
    let hello = Hello { name: "here".into(), role: HostRole::Node, start: 1, ..Hello::default() };
    cluster.deliver(NODE, HostMessage::Hello(hello));
    (0..3).for_each(|at| cluster.joins_with(at, "1", 2));
    cluster
}

/// Both are there: the second came while the first ran.
fn of_both() -> Cluster {
    let mut cluster = of_the_first();
    let commands = cluster.state.reconfigure(seconds(cluster.now), two());
    cluster.note(commands);
    (3..5).for_each(|at| cluster.joins_with(at, "7", 9));
    cluster.sent.clear();
    cluster
}

impl Cluster {
    fn ask_b(&mut self) -> u64 {
        let placement = PlacementPolicy { labels: of_b(), ..PlacementPolicy::default() };
        let context = PreparedContext { placement, ..prepared(&self.state.config().method.clone(), 1) };
        self.ask(Source::Context(apart(context)), None)
    }

    fn ends(&mut self, host: &str) {
        let (host, cause) = (host.to_owned(), "signal 9".to_owned());
        self.deliver(NODE, HostMessage::Exited { host, start: 1, cause, restarting: false });
    }
}

#[test]
fn jobs_of_each_model_go_to_its_own_hosts() {
    let mut cluster = of_both();
    assert_eq!([0, 1, 2, 3, 4].map(|at| cluster.health(at)), [HostHealth::Ready; 5]);
    let jobs = [cluster.submit(None), cluster.ask_b()];
    let orders = cluster.encode();
    let hosts = |job: u64| -> BTreeSet<u64> {
        orders.iter().filter(|(_, order)| order.context == job).map(|(to, _)| *to).collect()
    };
    assert_eq!(jobs.map(hosts), [BTreeSet::from([1, 2]), BTreeSet::from([4])]);
    let generated: BTreeSet<(u64, u64)> =
        std::iter::from_fn(|| cluster.generation()).map(|(to, order)| (to, order.job)).collect();
    assert!(
        generated.is_subset(&BTreeSet::from([(3, jobs[0]), (5, jobs[1])])) && !generated.is_empty(),
        "{generated:?}"
    );
    assert_eq!(jobs.map(|job| cluster.status(job).model), ["model", NAME]);
    let models = cluster.state.cluster_status(seconds(0.0), "").models;
    assert_eq!(
        models.iter().map(|one| (one.name.as_str(), one.answers)).collect::<Vec<_>>(),
        [("model", true), (NAME, true)]
    );
    assert_ne!(models[0].digest, models[1].digest);
}

#[test]
fn the_same_tokens_are_another_shard_in_another_model() {
    let mut cluster = of_both();
    let plain = prepared(&cluster.state.config().method.clone(), 1);
    let placement = PlacementPolicy { labels: of_b(), ..PlacementPolicy::default() };
    let named = PreparedContext { placement, ..plain.clone() }.identified();
    assert!(!plain.identities.is_empty());
    assert!(plain.identities.iter().zip(&*named.identities).all(|(one, other)| one != other));
    let first = cluster.ask(Source::Context(plain), None);
    cluster.encode();
    let second = cluster.ask(Source::Context(named), None);
    let orders = cluster.encode();
    assert!(orders.iter().all(|(to, order)| (*to, order.context) == (4, second)), "{first}: {orders:?}");
}

#[test]
fn a_host_with_the_other_model_is_refused() {
    let mut cluster = Cluster::starting(two());
    cluster.joins_with(3, "1", 2);
    cluster.joins_with(4, "7", 9);
    assert!(cluster.refusals()[0].1.starts_with("host d0: configuration differs: rope_theta 1 vs 7"));
    assert_eq!([3, 4].map(|at| cluster.health(at)), [HostHealth::Dead, HostHealth::Ready]);
}

#[test]
fn a_model_without_hosts_holds_up_no_other() {
    let mut cluster = of_both();
    cluster.ends("d0");
    cluster.ends("p0");
    let lost = cluster.ask_b();
    let job = cluster.submit(None);
    let orders = cluster.encode();
    assert!(!orders.is_empty() && orders.iter().all(|(_, order)| order.context == job));
    assert_eq!(cluster.generation().map(|(to, order)| (to, order.job)), Some((3, job)));
    cluster.tick(59.0, &[1, 2, 3]);
    assert_eq!((cluster.failure(lost), cluster.failure(job)), (None, None));
    cluster.tick(61.0, &[1, 2, 3]);
    assert_eq!((cluster.failure(lost).as_deref(), cluster.failure(job)), (Some("placement_impossible"), None));
    let status = cluster.state.cluster_status(seconds(61.0), "");
    assert_eq!((status.answers, status.models[1].answers), (true, false));
}

#[test]
fn a_question_whose_model_has_no_query_host_holds_up_no_other_and_ends() {
    let mut cluster = of_both();
    let lost = cluster.ask_b();
    cluster.encode();
    assert_eq!(cluster.generation().map(|(to, _)| to), Some(5));
    cluster.ends("p0");
    cluster.ends("d0");
    cluster.take_sent();
    cluster.now = 1.0;
    let job = cluster.submit(None);
    cluster.encode();
    assert_eq!(cluster.generation().map(|(to, order)| (to, order.job)), Some((3, job)));
    for at in 2..130 {
        cluster.tick(f64::from(at), &[1, 2, 3]);
    }
    assert!(cluster.failure(lost).is_some() && cluster.failure(job).is_none(), "{:?}", cluster.failure(lost));
}

#[test]
fn questions_wait_in_line_behind_those_of_their_own_model_alone() {
    let mut cluster = of_both();
    let commands = cluster.state.reconfigure(seconds(cluster.now), SupervisorConfig { max_generating: 1, ..two() });
    cluster.note(commands);
    let of_b = [(); 3].map(|()| cluster.ask_b());
    cluster.encode();
    assert_eq!(cluster.generation().map(|(to, order)| (to, order.job)), Some((5, of_b[0])));
    let job = cluster.submit(None);
    cluster.encode();
    assert_eq!(
        cluster.generation().map(|(to, order)| (to, order.job)),
        Some((3, job)),
        "b is full, and the first is not"
    );
    let turns = of_b.map(|job| cluster.status(job).waiting);
    // Its context host stands in for its query host, and takes one, too.
    assert_eq!(turns, [None, None, Some(Waiting::Turn { before: 0, running: 2 })]);
    assert!(cluster.state.indexes_agree());
}

#[test]
fn the_only_host_of_a_model_is_not_drained_for_one_of_another() {
    let cluster = of_both();
    let refused = |host: &str| {
        let decided = cluster.state.schedule_host(seconds(0.0), host, crate::api::Scheduling::Draining, None);
        decided.err().map(|error| error.code())
    };
    assert_eq!(["c0", "d0"].map(refused), [None, Some("last_host")]);
}

#[test]
fn a_journal_has_the_jobs_of_each_model_and_ends_those_of_one_that_is_gone() {
    let mut cluster = of_both();
    let jobs = [cluster.submit(None), cluster.ask_b()];
    cluster.restart_with(two());
    assert_eq!(jobs.map(|job| cluster.failure(job)), [None, None]);
    let mut other = two();
    other.models[1].weights = Some(weights(8));
    cluster.restart_with(other);
    assert_eq!(jobs.map(|job| cluster.failure(job)), [None, Some("model_changed".to_owned())]);
    let again = cluster.ask_b();
    cluster.restart_with(model(Some(2)));
    assert_eq!([jobs[0], again].map(|job| cluster.failure(job)), [None, Some("model_changed".to_owned())]);
}

#[test]
fn a_model_that_comes_again_under_a_name_is_another_one() {
    let mut cluster = of_both();
    let jobs = [cluster.submit(None), cluster.ask_b()];
    let digest = |cluster: &Cluster| cluster.state.cluster_status(seconds(0.0), "").models[1].digest.clone();
    let before = digest(&cluster);
    let mut other = two();
    other.models[1].weights = Some(weights(8));
    for config in [model(Some(2)), other] {
        let commands = cluster.state.reconfigure(seconds(cluster.now), config);
        cluster.note(commands);
    }
    assert_eq!(jobs.map(|job| cluster.failure(job)), [None, Some("model_changed".to_owned())]);
    assert_ne!(digest(&cluster), before);
}
