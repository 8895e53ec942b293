//! The model that a cluster file names: whether it can be opened here, and its digest, to compare machines by. Computes nothing with it.

use asterism_models::ModelDigest;

use super::Judgment;
use crate::{cluster::Cluster, processes::checkpoint};

/// Opens and hashes it; quick where that was done before.
pub fn look(cluster: &Cluster) -> Judgment {
    let hashed = checkpoint::checkpoint_of(&cluster.model).and_then(|checkpoint| {
        let weights = checkpoint::weights_digest(&checkpoint, &cluster.model, &cluster.data_dir)?;
        let digest = ModelDigest { front: checkpoint.front_digest(), weights };
        Ok(format!("{}, digest {}", checkpoint.name(), digest.id()))
    });
    match hashed {
        Ok(found) => Judgment::ok("model", found),
        Err(error) => Judgment::error("model", error.to_string(), "correct [model] in the cluster file"),
    }
}
