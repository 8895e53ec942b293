//! The model that a cluster file names: whether it can be opened here, and its digest, to compare machines by. Computes nothing with it.

use asterism_models::{ModelDigest, ModelError};

use super::Judgment;
use crate::{
    cluster::{Cluster, Model},
    processes::checkpoint,
};

/// Opens and hashes it; quick where that was done before.
pub fn look(cluster: &Cluster) -> Judgment {
    let hashed = |model: &Model| {
        let checkpoint = checkpoint::checkpoint_of(model)?;
        let weights = checkpoint::weights_digest(&checkpoint, model, &cluster.data_dir)?;
        let digest = ModelDigest { front: checkpoint.front_digest(), weights };
        Ok(format!("{}, digest {}", model.name.as_deref().unwrap_or(checkpoint.name()), digest.id()))
    };
    match cluster.models().map(hashed).collect::<Result<Vec<_>, ModelError>>() {
        Ok(found) => Judgment::ok("model", found.join("; ")),
        Err(error) => Judgment::error("model", error.to_string(), "correct [model] in the cluster file"),
    }
}
