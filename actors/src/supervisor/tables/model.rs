//! The one model of a cluster: the supervisor's own. A host that loaded another is refused in words, and what the journal has of
//! another comes to nothing, as its token ids, keys and values mean something else now. Hashes nothing: weights are told when their
//! digest is there, and until then no host is ready.

use std::time::Duration;

use asterism_models::{DigestId, FrontDigest, ModelDigest, WeightsDigest};
use serde::{Deserialize, Serialize};

use crate::{
    api::HostHealth,
    messages::{HostCommand, SaidModel},
    metric::Observation,
    news::News,
    supervisor::{
        codes,
        journal::record,
        rules::host_selection,
        state::{Command, SupervisorState},
    },
};

/// The model that a journal was written under.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelMark {
    front: String,
    /// None where its supervisor ended before it knew.
    weights: Option<String>,
}

impl ModelMark {
    /// Whether what was begun under this can go on under `now`.
    fn goes_on(&self, now: &Self) -> bool {
        let differ = matches!((&self.weights, &now.weights), (Some(then), Some(now)) if then != now);
        self.front == now.front && !differ
    }
}

/// A host that says that it is ready.
#[derive(Debug)]
struct Candidate {
    host: usize,
    numerics: String,
    digest: ModelDigest,
}

/// The supervisor's model.
#[derive(Debug)]
pub struct ClusterModel {
    front: FrontDigest,
    /// Once they are known, or why they are not.
    weights: Option<Result<WeightsDigest, String>>,
    /// What the journal says.
    kept: Option<ModelMark>,
    /// Contexts and jobs up to this number are an earlier supervisor's.
    earlier: u64,
    /// Who waits for the weights to be known, by connection.
    waiting: Vec<(u64, Candidate)>,
}

impl ClusterModel {
    /// Of a journal that is empty.
    pub fn new(front: FrontDigest, weights: Option<WeightsDigest>) -> Self {
        let mut model = Self { front, weights: weights.map(Ok), kept: None, earlier: 0, waiting: Vec::new() };
        model.kept = Some(model.own());
        model
    }

    /// Of a journal that was written under `kept`, whose numbers go up to `earlier`.
    pub fn restore(&mut self, kept: Option<ModelMark>, earlier: u64) {
        (self.kept, self.earlier) = (kept, earlier);
    }

    /// What the journal has to say: of weights that are not known yet, what it said.
    pub fn mark(&self) -> ModelMark {
        self.kept.clone().unwrap_or_else(|| self.own())
    }

    fn own(&self) -> ModelMark {
        let weights = self.known().map(|weights| weights.id().to_string());
        ModelMark { front: self.front.id().to_string(), weights }
    }

    /// Its id, once its weights are known.
    pub fn id(&self) -> Option<DigestId> {
        Some(DigestId::of_model(self.front.id(), self.known()?.id()))
    }

    fn known(&self) -> Option<&WeightsDigest> {
        self.weights.as_ref()?.as_ref().ok()
    }

    /// Why a host with this model is refused; none where that cannot be told yet.
    fn judge(&self, digest: &ModelDigest) -> Option<Result<(), String>> {
        let front = self.front.difference(&digest.front);
        match (&self.weights, front) {
            (None, None) => None,
            (None, Some(front)) => Some(Err(front)),
            (Some(Err(cause)), _) => Some(Err(format!("the supervisor cannot read its own weights: {cause}"))),
            (Some(Ok(weights)), front) => {
                let words: Vec<String> = front.into_iter().chain(weights.difference(&digest.weights)).collect();
                Some(if words.is_empty() { Ok(()) } else { Err(words.join("; ")) })
            }
        }
    }
}

impl SupervisorState {
    /// A host has loaded its model. It is ready if that is the cluster's.
    pub(in crate::supervisor) fn on_loaded(
        &mut self,
        now: Duration,
        host: usize,
        (numerics, said): (String, SaidModel),
        commands: &mut Vec<Command>,
    ) {
        let checked = host_selection::check_numerics(&numerics).and_then(|()| said.check());
        match checked {
            Ok(digest) => self.admit_ready(now, Candidate { host, numerics, digest }, commands),
            Err(cause) => self.lose(now, host, ("unfit", cause), commands),
        }
    }

    fn admit_ready(&mut self, now: Duration, candidate: Candidate, commands: &mut Vec<Command>) {
        let host = candidate.host;
        match self.model.judge(&candidate.digest) {
            None => {
                let connection = self.hosts.at(host).connection;
                self.model.waiting.retain(|(other, _)| Some(*other) != connection);
                self.model.waiting.extend(connection.map(|connection| (connection, candidate)));
            }
            Some(Err(difference)) => self.refuse_model(now, host, difference, commands),
            Some(Ok(())) => {
                let record = self.hosts.at_mut(host);
                record.numerics = Some(candidate.numerics);
                if record.health != HostHealth::Ready {
                    record.health = HostHealth::Ready;
                    commands.push(Command::Tell(News::HostReady { host: record.spec.name.clone() }));
                }
                self.remind(host, commands);
            }
        }
    }

    /// A host has another model: it is told so, and ends.
    fn refuse_model(&mut self, now: Duration, host: usize, difference: String, commands: &mut Vec<Command>) {
        let record = self.hosts.at(host);
        let who = record.spec.name.clone();
        let reason = format!(
            "host {who}: {difference}. Give its machine the model folder that the supervisor has, then start the host again"
        );
        let refuse = |connection| Command::Send { connection, command: HostCommand::Refuse { reason: reason.clone() } };
        commands.extend(record.connection.map(refuse));
        commands.push(Command::Observe(Observation::Refused { reason: "model", who, cause: reason.clone() }));
        // It closes the link itself, once it has read that.
        let closes = |command: &Command| matches!(command, Command::Disconnect { .. });
        let mut lost = Vec::new();
        self.lose(now, host, ("unfit", reason), &mut lost);
        lost.retain(|command| !closes(command));
        commands.append(&mut lost);
    }

    /// The digest of the supervisor's own weights is there, or why it cannot be had.
    pub(in crate::supervisor) fn on_weights(
        &mut self,
        now: Duration,
        weights: Result<WeightsDigest, String>,
        commands: &mut Vec<Command>,
    ) {
        self.model.weights = Some(weights);
        self.settle_model(now, commands);
        for (connection, candidate) in std::mem::take(&mut self.model.waiting) {
            if self.hosts.by_connection(connection) == Some(candidate.host) {
                self.admit_ready(now, candidate, commands);
            }
        }
    }

    /// Has the journal be of this model: what it has of another comes to nothing.
    pub(in crate::supervisor) fn settle_model(&mut self, now: Duration, commands: &mut Vec<Command>) {
        let mut mark = self.model.own();
        let kept = self.model.kept.take();
        match &kept {
            Some(kept) if kept.goes_on(&mark) => mark.weights = mark.weights.or(kept.weights.clone()),
            _ => self.fail_earlier(now, commands),
        }
        if kept.as_ref() != Some(&mark) {
            commands.push(Command::Persist(record::cluster(&self.origin, self.last_number, &mark)));
        }
        self.model.kept = Some(mark);
    }

    fn fail_earlier(&mut self, now: Duration, commands: &mut Vec<Command>) {
        let (model, earlier) = (&self.config.model, self.model.earlier);
        let message = format!(
            "it was accepted when {model} had another configuration, tokenizer or other weights than the cluster has now, and its tokens \
             are of that model. Send it again"
        );
        let contexts: Vec<u64> = self.contexts.numbers().into_iter().filter(|number| *number <= earlier).collect();
        for number in contexts {
            self.fail_context(now, number, (codes::MODEL_CHANGED, message.clone()), commands);
        }
    }
}
