//! Hosts and journals of another model than the supervisor's.

mod named;

use asterism_models::{FrontDigest, ModelDigest, WeightsDigest};

use super::*;

fn weights(byte: u8) -> WeightsDigest {
    WeightsDigest { tensors: vec![("a".into(), [1; 32]), ("b".into(), [byte; 32])] }
}

fn front(theta: &str) -> FrontDigest {
    FrontDigest { configuration: vec![("rope_theta".into(), theta.into())], ..FrontDigest::default() }
}

/// The weights of the model without a name.
fn known(weights: Result<WeightsDigest, String>) -> SupervisorEvent {
    SupervisorEvent::Weights { model: String::new(), weights }
}

/// Of weights that are known, or not yet.
fn model(known: Option<u8>) -> SupervisorConfig {
    of_front("1", known)
}

fn of_front(theta: &str, known: Option<u8>) -> SupervisorConfig {
    let mut config = config(2, 0);
    (config.models[0].digest, config.models[0].weights) = (front(theta), known.map(weights));
    config
}

impl Cluster {
    /// The first process of host `at` joins with this model.
    fn joins_with(&mut self, at: usize, theta: &str, byte: u8) {
        self.hello(at, 1, 0, (&[], &[]));
        let digest = ModelDigest { front: front(theta), weights: weights(byte) };
        let ready = HostMessage::Ready { numerics: "cpu".into(), model: Box::new(digest.into()) };
        self.deliver(connection(at, 1), ready);
    }

    fn refusals(&self) -> Vec<(u64, String)> {
        let refusal = |(to, command): &(u64, HostCommand)| match command {
            HostCommand::Refuse { reason } => Some((*to, reason.clone())),
            _ => None,
        };
        self.sent.iter().filter_map(refusal).collect()
    }

    /// The supervisor starts again, under another model.
    fn restart_with(&mut self, config: SupervisorConfig) {
        self.state =
            SupervisorState::restore(config, seconds(self.now), origin(1), &self.journal).expect("a good journal");
        self.sent.clear();
        let commands = self.state.reconcile(seconds(self.now));
        self.note(commands);
    }

    fn failure(&self, job: u64) -> Option<String> {
        self.status(job).error.map(|error| error.code)
    }
}

#[test]
fn a_host_of_another_model_is_refused_with_the_difference() {
    let mut cluster = Cluster::starting(model(Some(2)));
    cluster.joins_with(0, "1", 3);
    cluster.joins_with(1, "7", 2);
    cluster.joins_with(2, "1", 2);
    let refusals = cluster.refusals();
    assert_eq!(refusals.iter().map(|(to, _)| *to).collect::<Vec<_>>(), [connection(0, 1), connection(1, 1)]);
    assert!(refusals[0].1.starts_with("host c0: weights differ in 1 tensor, first b. "), "{refusals:?}");
    assert!(refusals[1].1.starts_with("host c1: configuration differs: rope_theta 7 vs 1 at "), "{refusals:?}");
    assert_eq!([0, 1, 2].map(|at| cluster.health(at)), [HostHealth::Dead, HostHealth::Dead, HostHealth::Ready]);
    // It ends itself, once it has read why; nothing it says is heard any more.
    assert!(cluster.closed.is_empty());
    cluster.deliver(connection(0, 1), HostMessage::Heartbeat { kv_bytes: 0, idle_bytes: 0 });
    assert_eq!(cluster.closed, [connection(0, 1)]);
    let hosts = cluster.state.cluster_status(seconds(0.0), "").hosts;
    assert_eq!(hosts[0].cause.as_ref(), Some(&refusals[0].1));
}

#[test]
fn a_digest_that_no_model_has_is_unfit() {
    let mut cluster = Cluster::starting(model(Some(2)));
    cluster.hello(0, 1, 0, (&[], &[]));
    let digest = ModelDigest { weights: WeightsDigest { tensors: vec![("\n".into(), [0; 32])] }, front: front("1") };
    let ready = HostMessage::Ready { numerics: "cpu".into(), model: Box::new(digest.into()) };
    cluster.deliver(connection(0, 1), ready);
    assert_eq!(cluster.health(0), HostHealth::Dead);
}

#[test]
fn nobody_is_ready_before_the_supervisor_knows_its_own_weights() {
    let mut cluster = Cluster::starting(model(None));
    (0..3).for_each(|at| cluster.joins_with(at, "1", if at == 1 { 3 } else { 2 }));
    assert_eq!([0, 1, 2].map(|at| cluster.health(at)), [HostHealth::Loading; 3]);
    assert_eq!(cluster.state.cluster_status(seconds(0.0), "").model_digest, None);
    // One is gone before it is judged, and its next process has not said anything yet.
    cluster.event(SupervisorEvent::Disconnected { connection: connection(2, 1), cause: "gone".into() });
    cluster.hello(2, 2, 0, (&[], &[]));
    cluster.event(known(Ok(weights(2))));
    let expected = [HostHealth::Ready, HostHealth::Dead, HostHealth::Loading];
    assert_eq!([0, 1, 2].map(|at| cluster.health(at)), expected);
    assert!(cluster.state.cluster_status(seconds(0.0), "").model_digest.is_some());
}

#[test]
fn a_supervisor_that_cannot_read_its_weights_admits_nobody() {
    let mut cluster = Cluster::starting(model(None));
    cluster.joins_with(0, "1", 2);
    cluster.event(known(Err("a damaged disk".into())));
    assert!(cluster.refusals()[0].1.contains("cannot read its own weights: a damaged disk"));
}

#[test]
fn what_a_journal_has_of_another_model_fails() {
    for (changed, late) in [(model(Some(3)), None), (model(None), Some(3))] {
        let mut cluster = Cluster::starting(model(Some(2)));
        let job = cluster.submit(None);
        cluster.restart_with(model(Some(2)));
        assert_eq!(cluster.failure(job), None, "it is the same model");
        cluster.restart_with(changed);
        if let Some(byte) = late {
            assert_eq!(cluster.failure(job), None, "nobody knows yet");
            cluster.event(known(Ok(weights(byte))));
        }
        assert_eq!(cluster.failure(job).as_deref(), Some("model_changed"));
        let new = cluster.submit(None);
        cluster.restart_with(model(Some(3)));
        assert_eq!(cluster.failure(new), None, "it is of the new model");
    }
}

#[test]
fn a_supervisor_that_ends_before_it_knows_its_weights_forgets_nothing() {
    let mut cluster = Cluster::starting(model(Some(2)));
    let job = cluster.submit(None);
    cluster.restart_with(model(None));
    // The journal is written meanwhile.
    cluster.hello(0, 1, 0, (&[], &[]));
    cluster.restart_with(model(Some(3)));
    assert_eq!(cluster.failure(job).as_deref(), Some("model_changed"));
}

#[test]
fn another_configuration_or_tokenizer_is_seen_before_any_weight() {
    let mut cluster = Cluster::starting(model(Some(2)));
    let job = cluster.submit(None);
    cluster.restart_with(of_front("7", None));
    assert_eq!(cluster.failure(job).as_deref(), Some("model_changed"));
    // What comes in meanwhile is of this model, whatever its weights are.
    let new = cluster.submit(None);
    cluster.event(known(Ok(weights(2))));
    assert_eq!(cluster.failure(new), None);
}

#[test]
fn what_came_before_the_weights_were_known_goes_on_under_the_same_configuration() {
    let mut cluster = Cluster::starting(model(None));
    let job = cluster.submit(None);
    cluster.restart_with(model(Some(2)));
    assert_eq!(cluster.failure(job), None, "nothing was computed of it");
}
