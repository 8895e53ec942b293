//! Whether a host loaded the cluster's model of its name, and what becomes of what the journal has of another one. Hashes nothing.

use asterism_models::WeightsDigest;

use crate::{
    api::HostHealth,
    cluster_event::ClusterEventKind,
    error::codes,
    messages::{HostCommand, ModelReport},
    metric::Observation,
    supervisor::{
        command::SupervisorCommand,
        config::ServedModel,
        journal::record,
        rules::{host_selection::check_numerics, recovery::HostLoss},
        tables::{
            model::{ClusterModels, LoadedHost},
            numbers::Numbers,
        },
    },
};

/// Compares models with the cluster's.
pub struct ModelCheck<'a> {
    pub loss: HostLoss<'a>,
    pub models: &'a mut ClusterModels,
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
        let record = self.loss.hosts.at(host);
        let Some(model) = self.models.of_mut(record.spec.model()) else { return };
        match model.judge(&candidate.digest) {
            None => {
                let connection = record.connection;
                model.waiting.retain(|(other, _)| Some(*other) != connection);
                model.waiting.extend(connection.map(|connection| (connection, candidate)));
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

    /// The digest of the supervisor's own weights of a model is there, or why it cannot be had.
    pub fn on_weights(&mut self, label: &str, weights: Result<WeightsDigest, String>) {
        let Some(model) = self.models.of_mut(label) else { return };
        model.weights = Some(weights);
        let waiting = std::mem::take(&mut model.waiting);
        self.settle(label);
        for (connection, candidate) in waiting {
            if self.loss.hosts.by_connection(connection) == Some(candidate.host) {
                self.admit_ready(candidate);
            }
        }
    }

    /// Models come, maybe in the place of one of their name that went: what that had comes to nothing.
    pub fn take_in(&mut self, models: &[ServedModel]) {
        for model in models {
            if self.models.of(&model.label).is_some() {
                self.fail_earlier(&model.label, u64::MAX);
            }
            self.models.put(model);
        }
    }

    /// Has the journal be of the cluster's models: what it has of others comes to nothing.
    pub fn settle_all(&mut self) {
        let labels = self.models.labels();
        labels.iter().for_each(|label| self.settle(label));
        let unknown = |number: &u64| !labels.iter().any(|label| label == self.loss.contexts[*number].prepared.model());
        for number in self.loss.contexts.numbers().into_iter().filter(unknown).collect::<Vec<_>>() {
            let name = match self.loss.contexts[number].prepared.model() {
                "" => "the one without a name".to_owned(),
                name => name.to_owned(),
            };
            let message = format!(
                "it was accepted for a model that the cluster has no more: {name}. Send it again, to a model that GET /v1/models lists"
            );
            self.loss.teardown().fail_context(number, codes::MODEL_CHANGED, message);
        }
    }

    fn settle(&mut self, label: &str) {
        let Some(model) = self.models.of_mut(label) else { return };
        let (mut mark, kept, earlier) = (model.own(), model.kept.take(), model.earlier);
        let is_same = kept.as_ref().is_some_and(|kept| kept.is_compatible_with(&mark));
        if let Some(kept) = kept.as_ref().filter(|_| is_same) {
            mark.weights = mark.weights.or(kept.weights.clone());
        }
        let is_new = kept.as_ref() != Some(&mark);
        model.kept = Some(mark);
        if !is_same {
            self.fail_earlier(label, earlier);
        }
        if is_new {
            let stated = record::cluster(&self.numbers.origin, self.numbers.last, self.models);
            self.loss.out.push(SupervisorCommand::Persist(stated));
        }
    }

    fn fail_earlier(&mut self, label: &str, earlier: u64) {
        let model = self.loss.config.model(label).map_or(label, |model| &model.name);
        let message = format!(
            "it was accepted when {model} had another configuration, tokenizer or other weights than the cluster has now, and its tokens \
             are of that model. Send it again"
        );
        let is_earlier = |number: &u64| *number <= earlier && self.loss.contexts[*number].prepared.model() == label;
        for number in self.loss.contexts.numbers().into_iter().filter(is_earlier).collect::<Vec<_>>() {
            self.loss.teardown().fail_context(number, codes::MODEL_CHANGED, message.clone());
        }
    }
}
