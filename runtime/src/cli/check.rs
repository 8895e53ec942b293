//! What a cluster needs of this machine before its processes start: a model, certificates, a token. `validate`, `up` and the
//! supervisor ask the same here. Starts nothing.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use rustls::ServerConfig;

use crate::{
    api::{
        http::tls::{self, TlsFiles},
        openai::Keys,
    },
    certificates::credentials,
    cli::checks,
    cluster::Cluster,
    error::CliError,
    globals,
    processes::{device, node::local_hosts, wiring},
};

/// Refuses a cluster that could not start here, with everything that is wrong at once.
pub fn cluster(cluster: &Cluster) -> Result<(), CliError> {
    let model = wiring::model_front(&cluster.model).and_then(|model| device::weights_fit(cluster, &model.config));
    let certificates = match &cluster.security.files {
        Some(_) => credentials::load(cluster, credentials::SUPERVISOR).map(drop),
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
        let weights = wiring::checkpoint_of(&cluster.model).and_then(|checkpoint| checkpoint.verify());
        weights.map_err(|error| wiring::model_refusal(&error))?;
    }
    checks::ports_are_free(cluster)
}

/// The token that admin requests bear, if any: of a file that nobody else can read or write.
pub fn admin_token(cluster: &Cluster) -> Result<Option<String>, CliError> {
    let Some(path) = &cluster.security.token_file else { return Ok(None) };
    let token = globals::read_token(path)?;
    refuse_exposed("token", path)?;
    Ok(Some(token))
}

/// The keys that requests to OpenAI's API bear, if any. Their hashes are no secret; who could write there could add a key.
pub fn api_keys(cluster: &Cluster) -> Result<Option<Keys>, CliError> {
    let Some(path) = cluster.api.as_ref().and_then(|api| api.key_file.as_ref()) else { return Ok(None) };
    let keys = Keys::read(path)?;
    let mode = mode_of(path)?;
    match mode & 0o022 {
        0 => Ok(Some(keys)),
        _ => Err(CliError::usage(format!(
            "the key file {0} has mode {mode:04o}, so that others on this machine can add keys; expected 0644: `chmod 644 {0}`",
            path.display()
        ))),
    }
}

/// What OpenAI's API proves itself with, if it does.
pub fn api_tls(cluster: &Cluster) -> Result<Option<ServerConfig>, CliError> {
    let Some(files) = cluster.api.as_ref().and_then(|api| api.tls.as_ref()) else { return Ok(None) };
    loaded(files, tls::API).map(Some)
}

/// What the admin API proves itself with, if it does.
pub fn admin_tls(cluster: &Cluster) -> Result<Option<ServerConfig>, CliError> {
    cluster.admin_tls.as_ref().map(|files| loaded(files, tls::ADMIN)).transpose()
}

fn loaded(files: &TlsFiles, keys: tls::Keys) -> Result<ServerConfig, CliError> {
    let config = tls::load(files, keys)?;
    refuse_exposed("key", &files.key)?;
    Ok(config)
}

fn mode_of(path: &Path) -> Result<u32, CliError> {
    let metadata =
        fs::metadata(path).map_err(|error| CliError::usage(format!("cannot look at {}: {error}", path.display())))?;
    Ok(metadata.permissions().mode() & 0o777)
}

/// A group may read a secret, as service managers hand them out, and nobody else.
fn refuse_exposed(what: &str, path: &Path) -> Result<(), CliError> {
    let mode = mode_of(path)?;
    if mode & 0o027 == 0 {
        return Ok(());
    }
    Err(CliError::usage(format!(
        "the {what} file {0} has mode {mode:04o}, so that others on this machine can use it; expected 0600: `chmod 600 {0}`",
        path.display()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_its_owners_or_their_groups() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for (mode, fits) in
            [(0o600, true), (0o400, true), (0o640, true), (0o644, false), (0o660, false), (0o602, false)]
        {
            fs::set_permissions(file.path(), fs::Permissions::from_mode(mode)).unwrap();
            let refused = refuse_exposed("token", file.path());
            assert_eq!(refused.is_ok(), fits, "{mode:o}: {refused:?}");
        }
    }
}
