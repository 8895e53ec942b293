//! The models of a cluster: the supervisor's own, and those that the journal was written under. Hashes nothing: weights
//! are told when their digest is there, and until then no host of theirs is ready.

use std::collections::BTreeMap;

use asterism_models::{DigestId, FrontDigest, ModelDigest, WeightsDigest};
use serde::{Deserialize, Serialize};

use crate::supervisor::config::ServedModel;

/// The model that a journal was written under.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelMark {
    front: String,
    /// None where its supervisor ended before it knew.
    pub weights: Option<String>,
}

impl ModelMark {
    /// Whether what was begun under this can go on under `now`.
    pub fn is_compatible_with(&self, now: &Self) -> bool {
        let differ = matches!((&self.weights, &now.weights), (Some(then), Some(now)) if then != now);
        self.front == now.front && !differ
    }
}

/// A host that says that it is ready.
#[derive(Debug)]
pub struct LoadedHost {
    /// The host.
    pub host: usize,
    /// What it computes with.
    pub numerics: String,
    /// What it loaded.
    pub digest: ModelDigest,
}

/// The supervisor's models, by their labels. One that the configuration has no more is known still, for hosts that are on their way out.
#[derive(Debug)]
pub struct ClusterModels(BTreeMap<String, ClusterModel>);

impl ClusterModels {
    /// Of a journal that is empty.
    pub fn new(models: &[ServedModel]) -> Self {
        let mut known = Self(BTreeMap::new());
        models.iter().for_each(|model| known.put(model));
        known
    }

    /// Takes one in, in the place of one of its label that went.
    pub fn put(&mut self, ServedModel { label, digest, weights, .. }: &ServedModel) {
        self.0.insert(label.clone(), ClusterModel::new(digest.clone(), weights.clone()));
    }

    /// Of a journal that was written under `kept`, whose numbers go up to `earlier`.
    pub fn restore(&mut self, mut kept: BTreeMap<String, ModelMark>, earlier: u64) {
        self.0.iter_mut().for_each(|(label, model)| model.restore(kept.remove(label), earlier));
    }

    /// The model of a label.
    pub fn of(&self, label: &str) -> Option<&ClusterModel> {
        self.0.get(label)
    }

    /// The same, to change.
    pub fn of_mut(&mut self, label: &str) -> Option<&mut ClusterModel> {
        self.0.get_mut(label)
    }

    /// All labels.
    pub fn labels(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    /// What the journal has to say of each.
    pub fn marks(&self) -> BTreeMap<String, ModelMark> {
        self.0.iter().map(|(label, model)| (label.clone(), model.mark())).collect()
    }
}

/// One of the supervisor's models.
#[derive(Debug)]
pub struct ClusterModel {
    front: FrontDigest,
    /// Once they are known, or why they are not.
    pub weights: Option<Result<WeightsDigest, String>>,
    /// What the journal says.
    pub kept: Option<ModelMark>,
    /// Contexts and jobs up to this number are an earlier supervisor's.
    pub earlier: u64,
    /// Who waits for the weights to be known, by connection.
    pub waiting: Vec<(u64, LoadedHost)>,
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

    /// What the journal is to say of this model.
    pub fn own(&self) -> ModelMark {
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
    pub fn judge(&self, digest: &ModelDigest) -> Option<Result<(), String>> {
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
