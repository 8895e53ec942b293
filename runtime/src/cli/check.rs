//! What a cluster needs of this machine before its processes start: a model, certificates, a token. `validate`, `up` and the
//! supervisor ask the same here. Starts nothing.

use crate::{
    api::secrets::{admin_tls, admin_token, api_keys, api_tls},
    certificates::{credentials, members},
    cli::checks,
    cluster::Cluster,
    error::CliError,
    processes::{checkpoint, device, local_hosts, wiring},
};

/// Refuses a cluster that could not start here, with everything that is wrong at once.
pub fn cluster(cluster: &Cluster) -> Result<(), CliError> {
    let model = checkpoint::model_front(&cluster.model).and_then(|model| device::weights_fit(cluster, &model.config));
    let certificates = match &cluster.security.files {
        Some(_) => credentials::load(cluster, members::SUPERVISOR).map(drop),
        None => Ok(()),
    };
    let token = admin_token(cluster).map(drop);
    let keys = api_keys(cluster).map(drop);
    let tls = [api_tls(cluster).map(drop), admin_tls(cluster).map(drop)];
    let data = wiring::known(&cluster.data).and_then(|()| wiring::usable(cluster, &local_hosts(cluster)));
    let problems = [model, certificates, token, keys, device::known(cluster), data].into_iter().chain(tls);
    let mut problems = problems.filter_map(Result::err);
    let Some(first) = problems.next() else { return Ok(()) };
    Err(problems
        .fold(first, |all, next| CliError { message: format!("{}\nerror: {}", all.message, next.message), ..all }))
}

/// Refuses weights that hosts of this machine would refuse when they load them, and ports that another process has.
pub fn whole(cluster: &Cluster) -> Result<(), CliError> {
    self::cluster(cluster)?;
    // Random weights are as they should be, and long to draw.
    if cluster.model.random.is_none() {
        let weights = checkpoint::checkpoint_of(&cluster.model).and_then(|checkpoint| checkpoint.verify());
        weights.map_err(|error| checkpoint::model_refusal(&error))?;
    }
    checks::ports_are_free(cluster)
}
