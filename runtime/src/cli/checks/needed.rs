//! What a cluster needs of this machine before its processes start: a model, certificates, a token. Starts nothing.

use crate::{
    api::secrets,
    certificates::{credentials, members},
    cluster::{Cluster, Model},
    error::CliError,
    processes::{checkpoint, device, local_hosts, wiring},
};

/// Models that hosts can compute as they are to, and whose weights have room there.
pub fn model(cluster: &Cluster) -> Result<(), CliError> {
    cluster.models().try_for_each(|model| {
        let front = checkpoint::model_front(model).map_err(|error| of_model(model, error))?;
        let cluster = cluster.of_model(model);
        device::attention_fits(&cluster, &front.config)?;
        device::weights_fit(&cluster, &front.config)
    })
}

/// An error about one of several models, which it names.
fn of_model(model: &Model, error: CliError) -> CliError {
    match &model.name {
        Some(name) => CliError { message: format!("model '{name}': {}", error.message), ..error },
        None => error,
    }
}

/// Devices that can share the model of their host. What is wrong with the model itself is told by others.
pub fn devices(cluster: &Cluster) -> Result<(), CliError> {
    cluster.models().try_for_each(|model| {
        let checkpoint = checkpoint::checkpoint_of(model);
        let Ok(checkpoint) = checkpoint else { return Ok(()) };
        let cluster = cluster.of_model(model);
        device::share_heads(&cluster, checkpoint.config())?;
        device::has_operations(&cluster, checkpoint.config())
    })
}

/// The certificates that the cluster file names.
pub fn certificates(cluster: &Cluster) -> Result<(), CliError> {
    match &cluster.security.files {
        Some(_) => credentials::load(cluster, members::SUPERVISOR).map(drop),
        None => Ok(()),
    }
}

/// The admin API's token.
pub fn token(cluster: &Cluster) -> Result<(), CliError> {
    secrets::admin_token(cluster).map(drop)
}

/// The keys of OpenAI's API.
pub fn keys(cluster: &Cluster) -> Result<(), CliError> {
    secrets::api_keys(cluster).map(drop)
}

/// A transport for tensors that this build has.
pub fn known_transport(cluster: &Cluster) -> Result<(), CliError> {
    wiring::known(&cluster.data)
}

/// The same, and that it can be used between the hosts of this machine.
pub fn transport(cluster: &Cluster) -> Result<(), CliError> {
    known_transport(cluster).and_then(|()| wiring::usable(cluster, &local_hosts(cluster)))
}

/// What OpenAI's API proves itself with.
pub fn api_tls(cluster: &Cluster) -> Result<(), CliError> {
    secrets::api_tls(cluster).map(drop)
}

/// What the admin API proves itself with.
pub fn admin_tls(cluster: &Cluster) -> Result<(), CliError> {
    secrets::admin_tls(cluster).map(drop)
}

/// What it and every member of etcd that answers know each other by.
pub fn standby(cluster: &Cluster) -> Result<(), CliError> {
    wiring::shared_journal(cluster)?.map_or(Ok(()), |shared| wiring::known_to_etcd(&shared, true))
}

/// Weights that no host of this machine would refuse when it loads them.
pub fn weights(cluster: &Cluster) -> Result<(), CliError> {
    // Random weights are as they should be, and long to draw.
    cluster.models().filter(|model| model.random.is_none()).try_for_each(|model| {
        let weights = checkpoint::checkpoint_of(model).and_then(|checkpoint| checkpoint.verify());
        weights.map_err(|error| of_model(model, checkpoint::model_refusal(&error)))
    })
}
