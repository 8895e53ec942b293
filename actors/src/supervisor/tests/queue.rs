//! Many jobs, contexts and sessions: what is counted as it changes is what counting anew gives, and few things run at once.

use asterism_plan::MethodConfig;
use proptest::{prelude::*, sample::Index};

use super::*;

/// Something that happens to a cluster of two context hosts, a query host and a spare.
#[derive(Clone, Debug)]
enum Deed {
    Submit { ring: bool, timeout: Option<f64> },
    Create { ttl: f64 },
    Ask(Index),
    Drop(Index),
    Cancel(Index),
    Watch(Index),
    Pass { seconds: f64, silent: Option<usize> },
    Encode,
    Fail { peer_lost: bool },
    Token(Index),
    Finish(Index),
    Stall(Index),
    Exit(usize),
    Rejoin(usize),
    Drain(usize),
    Open(usize),
    Restart,
}

fn deeds() -> impl Strategy<Value = Vec<Deed>> {
    let host = 0..4usize;
    let deed = prop_oneof![
        6 => (any::<bool>(), proptest::option::of(0.5..20.0)).prop_map(|(ring, timeout)| Deed::Submit { ring, timeout }),
        2 => (1.0..30.0).prop_map(|ttl| Deed::Create { ttl }),
        3 => any::<Index>().prop_map(Deed::Ask),
        1 => any::<Index>().prop_map(Deed::Drop),
        2 => any::<Index>().prop_map(Deed::Cancel),
        1 => any::<Index>().prop_map(Deed::Watch),
        5 => (0.0..3.0, proptest::option::of(host.clone())).prop_map(|(seconds, silent)| Deed::Pass { seconds, silent }),
        8 => Just(Deed::Encode),
        1 => any::<bool>().prop_map(|peer_lost| Deed::Fail { peer_lost }),
        4 => any::<Index>().prop_map(Deed::Token),
        4 => any::<Index>().prop_map(Deed::Finish),
        1 => any::<Index>().prop_map(Deed::Stall),
        1 => host.clone().prop_map(Deed::Exit),
        2 => host.clone().prop_map(Deed::Rejoin),
        1 => host.clone().prop_map(Deed::Drain),
        2 => host.prop_map(Deed::Open),
        1 => Just(Deed::Restart),
    ];
    proptest::collection::vec(deed, 1..80)
}

/// A cluster, the processes of its hosts, and what there is to choose from.
struct World {
    cluster: Cluster,
    starts: [u64; 4],
    jobs: Vec<u64>,
    sessions: Vec<String>,
    orders: Vec<(u64, EncodeShards)>,
}

impl World {
    fn new() -> Self {
        let limits = SupervisorConfig { max_running: 3, max_queue: 12, ..config(2, 1) };
        let cluster = Cluster::ready(limits);
        Self { cluster, starts: [1; 4], jobs: Vec::new(), sessions: Vec::new(), orders: Vec::new() }
    }

    fn name(&self, host: usize) -> String {
        self.cluster.state.config().hosts[host].name.clone()
    }

    fn running(&self, of: &Index) -> Option<(u64, u64)> {
        let states = vec![JobState::Running];
        let filter = JobFilter { states, ..every_job() };
        let running = self.cluster.state.job_statuses(seconds(self.cluster.now), &filter).expect("no id is asked for");
        let job = running.get(of.index(running.len().max(1)))?;
        let job = self.cluster.state.job_number(&job.id)?;
        Some((connection(2, self.starts[2]), job))
    }

    fn act(&mut self, deed: Deed) {
        let now = self.cluster.now;
        match deed {
            Deed::Submit { ring, timeout } => {
                let ring_method: MethodConfig = serde_json::from_value(json!({"ring": {}})).expect("a method");
                let method = if ring { ring_method } else { self.cluster.state.config().method.clone() };
                self.submit(Source::Context(prepared(&method, 2)), timeout);
            }
            Deed::Ask(at) => {
                if let Some(name) = self.sessions.get(at.index(self.sessions.len().max(1))).cloned() {
                    self.submit(Source::Session(name), None);
                }
            }
            Deed::Create { ttl } => {
                let context = prepared(&self.cluster.state.config().method.clone(), 2);
                let name = format!("s{}", self.sessions.len());
                let number = self.cluster.state.number();
                let when = (seconds(now), number);
                if let Ok(decided) = self.cluster.state.create_session(when, &name, context, Some(seconds(ttl))) {
                    self.cluster.adopt(decided);
                    self.sessions.push(name);
                }
            }
            Deed::Drop(at) => {
                let Some(name) = self.sessions.get(at.index(self.sessions.len().max(1))) else { return };
                if let Ok(decided) = self.cluster.state.drop_session(seconds(now), name) {
                    self.cluster.adopt(decided);
                }
            }
            Deed::Cancel(at) => self.with_job(&at, |cluster, job| {
                let Some(status) = cluster.state.job_status(seconds(cluster.now), job) else { return };
                if let Ok(decided) = cluster.state.cancel(seconds(cluster.now), &status.id) {
                    cluster.adopt(decided);
                }
            }),
            Deed::Watch(at) => self.with_job(&at, |cluster, job| cluster.state.set_watched(job, true)),
            Deed::Pass { seconds, silent } => {
                let heard = (0..4).filter(|host| Some(*host) != silent);
                let heard: Vec<u64> = heard.map(|host| connection(host, self.starts[host])).collect();
                self.cluster.tick(now + seconds, &heard);
            }
            Deed::Encode => self.orders = self.cluster.encode(),
            Deed::Fail { peer_lost } => {
                let Some((to, order)) = self.orders.first().cloned() else { return };
                let (context, attempt, code, message) = (order.context, order.attempt, "host".into(), "reset".into());
                self.cluster.deliver(to, HostMessage::NotEncoded { context, attempt, peer_lost, code, message });
            }
            Deed::Token(of) => {
                let Some((from, job)) = self.running(&of) else { return };
                let index = self.cluster.status(job).tokens.len() as u32;
                self.cluster.token(from, job, index, 7);
            }
            Deed::Finish(of) => {
                let Some((from, job)) = self.running(&of) else { return };
                let (tokens, text) = (self.cluster.status(job).tokens.len() as u32, String::new());
                self.cluster
                    .deliver(from, HostMessage::Generated { job, tokens, stopped: true, text, times: Box::default() });
            }
            Deed::Stall(of) => {
                let Some((from, job)) = self.running(&of) else { return };
                self.cluster.deliver(
                    from,
                    HostMessage::Stalled { job, host: "c1".into(), wrong: false, cause: "reset".into() },
                );
            }
            Deed::Exit(host) => {
                let (host, start, cause) = (self.name(host), self.starts[host], "signal 9".into());
                self.cluster.deliver(NODE, HostMessage::Exited { host, start, cause, restarting: true });
            }
            Deed::Rejoin(host) => {
                self.starts[host] += 1;
                self.cluster.join(host, self.starts[host]);
            }
            Deed::Drain(host) => self.schedule(host, crate::api::Scheduling::Draining),
            Deed::Open(host) => self.schedule(host, crate::api::Scheduling::Open),
            Deed::Restart => {
                self.cluster.restart();
                let hello = Hello { name: "here".into(), role: HostRole::Node, start: 1, ..Hello::default() };
                self.cluster.deliver(NODE, HostMessage::Hello(hello));
            }
        }
    }

    fn submit(&mut self, source: Source, timeout: Option<f64>) {
        let (now, fresh) = (seconds(self.cluster.now), self.cluster.state.number());
        if let Ok((number, decided)) = self.cluster.state.submit(now, fresh, job(source, timeout)) {
            self.cluster.adopt(decided);
            self.jobs.push(number);
        }
    }

    fn with_job(&mut self, at: &Index, act: impl FnOnce(&mut Cluster, u64)) {
        if let Some(&job) = self.jobs.get(at.index(self.jobs.len().max(1))) {
            act(&mut self.cluster, job);
        }
    }

    fn schedule(&mut self, host: usize, scheduling: crate::api::Scheduling) {
        let (name, now) = (self.name(host), seconds(self.cluster.now));
        if let Ok(decided) = self.cluster.state.schedule_host(now, &name, scheduling, None) {
            self.cluster.adopt(decided);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// After each deed, and after a restart from the journal that the deeds left.
    #[test]
    fn indexes_are_what_counting_gives(deeds in deeds()) {
        let mut world = World::new();
        for deed in deeds {
            let shown = format!("{deed:?}");
            world.act(deed);
            prop_assert!(world.cluster.state.indexes_agree(), "after {shown}");
        }
        world.cluster.restart();
        prop_assert!(world.cluster.state.indexes_agree(), "after a restart");
    }
}

/// Orders to encode contexts that were not encoded before, answered until there are none.
fn encode_all(cluster: &mut Cluster) -> usize {
    let mut contexts = std::collections::BTreeSet::new();
    loop {
        let orders = cluster.encode();
        if orders.is_empty() {
            return contexts.len();
        }
        contexts.extend(orders.iter().map(|(_, order)| order.context));
    }
}

#[test]
fn contexts_that_wait_for_a_query_host_count_as_running() {
    let limits = SupervisorConfig { max_running: 2, max_queue: 100, recovery: Recovery::Spare, ..config(2, 0) };
    let mut cluster = Cluster::ready(limits);
    let jobs: Vec<u64> = (0..40).map(|_| cluster.submit(None)).collect();
    assert_eq!(encode_all(&mut cluster), 32 + 2, "one query host takes 32, two more wait for it");
    for &job in &jobs[..3] {
        let (tokens, text) = (0, String::new());
        cluster.deliver(3, HostMessage::Generated { job, tokens, stopped: true, text, times: Box::default() });
    }
    assert_eq!(encode_all(&mut cluster), 3);
    let state = |state| jobs.iter().filter(|job| cluster.status(**job).state == state).count();
    assert_eq!((state(JobState::Succeeded), state(JobState::Running), state(JobState::Pending)), (3, 34, 3));
}

#[test]
fn what_is_accepted_takes_bounded_memory() {
    let limits = SupervisorConfig { max_queue: 1000, max_queue_bytes: 100_000, ..config(2, 0) };
    let mut cluster = Cluster::ready(limits);
    let context = prepared(&cluster.state.config().method.clone(), 2);
    let taken = (1..1000).take_while(|&number| {
        let named = PreparedJob { id: format!("n-{number}"), ..job(Source::Context(context.clone()), None) };
        match cluster.state.submit(Duration::ZERO, number, named) {
            Ok((_, decided)) => cluster.adopt(decided),
            Err(error) => assert_eq!(error.code(), "overloaded"),
        }
        cluster.state.job_number(&format!("n-{number}")).is_some()
    });
    let taken = taken.count();
    assert!((20..60).contains(&taken), "{taken} jobs of some 3 KB each");
    let created = cluster.state.create_session((Duration::ZERO, 1000), "s", context, None);
    assert_eq!(created.expect_err("full").code(), "overloaded");
    let cancelled = cluster.state.cancel(Duration::ZERO, "n-1").expect("it is there");
    cluster.adopt(cancelled);
    cluster.submit(None);
}

#[test]
fn a_list_is_filtered_and_read_in_parts() {
    let mut cluster = Cluster::ready(SupervisorConfig { max_queue: 100, ..config(1, 0) });
    let jobs: Vec<u64> = (0..10).map(|_| cluster.submit(None)).collect();
    let cancelled = cluster.status(jobs[4]).id;
    let cancelled = cluster.state.cancel(Duration::ZERO, &cancelled).expect("it is there");
    cluster.adopt(cancelled);
    let listed = |oldest_first: bool, states: &[JobState], after: Option<&str>, limit: usize| -> Vec<String> {
        let filter = JobFilter { states: states.to_vec(), after: after.map(str::to_owned), oldest_first, limit };
        let listed = cluster.state.job_statuses(Duration::ZERO, &filter).expect("known");
        listed.into_iter().map(|job| job.id).collect()
    };
    let id = |at: usize| cluster.status(jobs[at]).id;
    let list = |states: &[JobState], after: Option<&str>, limit| listed(false, states, after, limit);
    assert_eq!(list(&[], None, 3), [id(9), id(8), id(7)], "the newest first");
    assert_eq!(list(&[], Some(&id(7)), 3), [id(6), id(5), id(4)]);
    assert_eq!(list(&[JobState::Pending], Some(&id(6)), 2), [id(5), id(3)]);
    assert_eq!(list(&[JobState::Cancelled, JobState::Running], None, 9), [id(4), id(0)]);
    assert_eq!(listed(true, &[JobState::Pending], Some(&id(2)), 2), [id(3), id(5)], "the oldest first");
    let unknown = JobFilter { after: Some("nobody".into()), ..JobFilter::default() };
    assert_eq!(cluster.state.job_statuses(Duration::ZERO, &unknown).expect_err("none").code(), "job_not_found");
}

#[test]
fn a_place_that_is_free_is_taken_at_once() {
    let mut cluster = Cluster::ready(SupervisorConfig { max_running: 1, ..config(2, 0) });
    let [first, second] = [cluster.submit(None), cluster.submit(None)];
    cluster.encode();
    let sent = cluster.take_sent();
    let reported = |wanted: &dyn Fn(&HostCommand) -> bool| sent.iter().any(|(_, command)| wanted(command));
    assert!(
        reported(&|command| matches!(command, HostCommand::Generate(generate) if generate.job == first)),
        "{sent:?}"
    );
    assert!(reported(&|command| matches!(command, HostCommand::Encode(order) if order.context == second)), "{sent:?}");
}

#[test]
fn what_only_a_dead_host_can_take_lets_others_go_first() {
    let mut config = config(2, 0);
    config.hosts[1].labels = BTreeMap::from([("disk".to_string(), "fast".to_string())]);
    let mut cluster = Cluster::ready(config);
    let exited = HostMessage::Exited { host: "c1".into(), start: 1, cause: "signal 9".into(), restarting: true };
    cluster.deliver(NODE, exited);
    let mut wanting = prepared(&cluster.state.config().method.clone(), 2);
    wanting.placement.labels = BTreeMap::from([("disk".to_string(), "fast".to_string())]);
    let blocked = cluster.ask(Source::Context(wanting.clone()), None);
    let free = cluster.submit(None);
    assert_eq!(cluster.status(free).phase, Some(JobPhase::Encoding));
    assert_eq!(cluster.status(blocked).phase, Some(JobPhase::Queued));
    let waits = cluster.status(blocked).waiting.expect("for its host").to_string();
    assert_eq!(waits, "waiting for c1: dead (signal 9)");
    cluster.encode();
    cluster.join(1, 2);
    cluster.tick(0.5, &[connection(0, 1), connection(1, 2), connection(2, 1)]);
    assert_eq!(cluster.status(blocked).phase, Some(JobPhase::Encoding), "its host is back");
}

#[test]
fn what_nobody_comes_to_take_is_given_up_in_time() {
    let mut config = SupervisorConfig { patience: seconds(5.0), ..config(2, 0) };
    config.hosts[1].labels = BTreeMap::from([("disk".to_string(), "fast".to_string())]);
    let mut cluster = Cluster::ready(config);
    cluster.deliver(NODE, HostMessage::Exited { host: "c1".into(), start: 1, cause: "off".into(), restarting: false });
    let mut wanting = prepared(&cluster.state.config().method.clone(), 2);
    wanting.placement.labels = BTreeMap::from([("disk".to_string(), "fast".to_string())]);
    let jobs = [0; 3].map(|_| cluster.ask(Source::Context(wanting.clone()), None));
    let mut now = 0.0;
    while now < 6.0 {
        now += 0.5;
        cluster.tick(now, &[1, 3]);
    }
    for job in jobs {
        assert_eq!(cluster.status(job).error.expect("given up").code, "placement_impossible");
    }
}
