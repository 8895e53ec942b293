//! Whether a host loaded the cluster's model, and what becomes of what the journal has of another one. Hashes nothing.

use asterism_models::WeightsDigest;

use crate::{
    api::HostHealth,
    cluster_event::ClusterEventKind,
    error::codes,
    messages::{HostCommand, ModelReport},
    metric::Observation,
    supervisor::{
        command::SupervisorCommand,
        journal::record,
        rules::{host_selection::check_numerics, recovery::HostLoss},
        tables::{
            model::{ClusterModel, LoadedHost},
            numbers::Numbers,
        },
    },
};

/// Compares models with the cluster's.
pub struct ModelCheck<'a> {
    pub loss: HostLoss<'a>,
    pub model: &'a mut ClusterModel,
    pub numbers: &'a Numbers,
}

impl ModelCheck<'_> {
    /// A host has loaded its model. It is ready if that is the cluster's.
    pub fn on_loaded(&mut self, host: usize, (numerics, stated): (String, ModelReport)) {
        let checked = check_numerics(&numerics).and_then(|()| stated.check());
        match checked {
            Ok(digest) => self.admit_ready(LoadedHost { host, numerics, digest }),
            Err(cause) => self.loss.lose(host, ("unfit", cause)),
        }
    }

    fn admit_ready(&mut self, candidate: LoadedHost) {
        let host = candidate.host;
        match self.model.judge(&candidate.digest) {
            None => {
                let connection = self.loss.hosts.at(host).connection;
                self.model.waiting.retain(|(other, _)| Some(*other) != connection);
                self.model.waiting.extend(connection.map(|connection| (connection, candidate)));
            }
            Some(Err(difference)) => self.refuse_model(host, difference),
            Some(Ok(())) => {
                let record = self.loss.hosts.at_mut(host);
                record.numerics = Some(candidate.numerics);
                if record.health != HostHealth::Ready {
                    record.health = HostHealth::Ready;
                    record.coming_since = None;
                    record.ready_since = self.loss.now;
                    self.loss.hosts.dealt_at = self.loss.now;
                    let record = self.loss.hosts.at(host);
                    self.loss.out.push(SupervisorCommand::Notify(ClusterEventKind::HostReady {
                        host: record.spec.name.clone(),
                    }));
                }
                self.loss.orders().remind(host);
            }
        }
    }

    /// A host has another model: it is told so, and ends.
    fn refuse_model(&mut self, host: usize, difference: String) {
        let record = self.loss.hosts.at(host);
        let who = record.spec.name.clone();
        let reason = format!(
            "host {who}: {difference}. Give its machine the model folder that the supervisor has, then start the host again"
        );
        let refuse = |connection| SupervisorCommand::Send {
            connection,
            command: HostCommand::Refuse { reason: reason.clone() },
        };
        self.loss.out.extend(record.connection.map(refuse));
        let refused = Observation::Refused { reason: "model", who, cause: reason.clone() };
        self.loss.out.push(SupervisorCommand::Observe(refused));
        // It closes the link itself, once it has read that.
        let closes = |command: &SupervisorCommand| matches!(command, SupervisorCommand::Disconnect { .. });
        let before = self.loss.out.len();
        self.loss.lose(host, ("unfit", reason));
        let lost = self.loss.out.split_off(before);
        self.loss.out.extend(lost.into_iter().filter(|command| !closes(command)));
    }

    /// The digest of the supervisor's own weights is there, or why it cannot be had.
    pub fn on_weights(&mut self, weights: Result<WeightsDigest, String>) {
        self.model.weights = Some(weights);
        self.settle_model();
        for (connection, candidate) in std::mem::take(&mut self.model.waiting) {
            if self.loss.hosts.by_connection(connection) == Some(candidate.host) {
                self.admit_ready(candidate);
            }
        }
    }

    /// Has the journal be of this model: what it has of another comes to nothing.
    pub fn settle_model(&mut self) {
        let mut mark = self.model.own();
        let kept = self.model.kept.take();
        match &kept {
            Some(kept) if kept.is_compatible_with(&mark) => mark.weights = mark.weights.or(kept.weights.clone()),
            _ => self.fail_earlier(),
        }
        if kept.as_ref() != Some(&mark) {
            self.loss.out.push(SupervisorCommand::Persist(record::cluster(
                &self.numbers.origin,
                self.numbers.last,
                &mark,
            )));
        }
        self.model.kept = Some(mark);
    }

    fn fail_earlier(&mut self) {
        let (model, earlier) = (&self.loss.config.model, self.model.earlier);
        let message = format!(
            "it was accepted when {model} had another configuration, tokenizer or other weights than the cluster has now, and its tokens \
             are of that model. Send it again"
        );
        let contexts: Vec<u64> = self.loss.contexts.numbers().into_iter().filter(|number| *number <= earlier).collect();
        for number in contexts {
            self.loss.teardown().fail_context(number, codes::MODEL_CHANGED, message.clone());
        }
    }
}
