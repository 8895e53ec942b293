//! Tokens, keys and certificates of the listeners, out of files that nobody else may read. Listens nowhere.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use rustls::ServerConfig;

use crate::{
    api::{http::tls, openai::ApiKeys},
    cluster::{ADMIN, API, Cluster, TlsFiles, TlsKeys},
    error::CliError,
    globals,
};

/// The token that admin requests bear, if any: of a file that nobody else can read or write.
pub fn admin_token(cluster: &Cluster) -> Result<Option<String>, CliError> {
    let Some(path) = &cluster.security.token_file else { return Ok(None) };
    let token = globals::read_token(path)?;
    refuse_exposed("token", path)?;
    Ok(Some(token))
}

/// The keys that requests to OpenAI's API bear, if any. Their hashes are no secret; who could write there could add a key.
pub fn api_keys(cluster: &Cluster) -> Result<Option<ApiKeys>, CliError> {
    let Some(path) = cluster.api.as_ref().and_then(|api| api.key_file.as_ref()) else { return Ok(None) };
    let keys = ApiKeys::read(path)?;
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
    loaded(files, API).map(Some)
}

/// What the admin API proves itself with, if it does.
pub fn admin_tls(cluster: &Cluster) -> Result<Option<ServerConfig>, CliError> {
    cluster.admin_tls.as_ref().map(|files| loaded(files, ADMIN)).transpose()
}

fn loaded(files: &TlsFiles, keys: TlsKeys) -> Result<ServerConfig, CliError> {
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
pub fn refuse_exposed(what: &str, path: &Path) -> Result<(), CliError> {
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
