//! `[api]` resolved, as far as it is about OpenAI's API: where it listens, and who may ask. Reads no key.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use super::{ClusterError, socket_address};
use crate::{
    api::{
        http::{
            origin::Origins,
            tls::{self, TlsFiles},
        },
        openai::Limits,
    },
    cluster::{file::ClusterFile, size::Bytes},
};

/// OpenAI's API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Api {
    /// Where it listens.
    pub listen: SocketAddr,
    /// The file of its keys; none: everybody may ask.
    pub key_file: Option<PathBuf>,
    /// Its certificate and key; none: it speaks plain HTTP.
    pub tls: Option<TlsFiles>,
    /// How much its clients may keep.
    pub limits: Limits,
    /// Whose pages may ask it in a browser.
    pub origins: Origins,
}

impl Api {
    /// Refuses one that anybody on the network could use, where nobody said that it is meant.
    pub fn check(&self, listen: SocketAddr, allow_open: bool) -> Result<(), ClusterError> {
        match listen.ip().is_loopback() || self.key_file.is_some() || allow_open {
            true => Ok(()),
            false => Err(ClusterError::OpenApi { listen }),
        }
    }
}

/// Relative paths are taken from `directory`.
pub(super) fn resolve(file: &ClusterFile, directory: &Path, allow_open: bool) -> Result<Option<Api>, ClusterError> {
    let key_file = file.api.api_key_file.as_ref().map(|path| directory.join(path));
    let listen = file.api.listen.as_deref().map(|text| socket_address("api.listen", text)).transpose()?;
    let Some(listen) = listen else { return Ok(None) };
    let tls = tls(directory, (&file.api.tls_cert, &file.api.tls_key), tls::API)?;
    let (Bytes(bytes), Bytes(bytes_per_key)) = (file.api.max_stored_bytes, file.api.max_stored_bytes_per_key);
    if bytes_per_key > bytes {
        return Err(ClusterError::StoredPerKey { all: bytes, of_key: bytes_per_key });
    }
    let origins = Origins::read(&file.api.allow_origins).map_err(|got| ClusterError::NoOrigin { got })?;
    let api = Api { listen, key_file, tls, limits: Limits { bytes, bytes_per_key }, origins };
    api.check(listen, allow_open)?;
    Ok(Some(api))
}

/// The admin API's certificate and key, if it has them.
pub(super) fn admin_tls(file: &ClusterFile, directory: &Path) -> Result<Option<TlsFiles>, ClusterError> {
    tls(directory, (&file.api.admin_tls_cert, &file.api.admin_tls_key), tls::ADMIN)
}

fn tls(
    directory: &Path,
    given: (&Option<PathBuf>, &Option<PathBuf>),
    [cert_key, key_key]: tls::Keys,
) -> Result<Option<TlsFiles>, ClusterError> {
    let at = |path: &PathBuf| directory.join(path);
    match given {
        (Some(cert), Some(key)) => Ok(Some(TlsFiles { cert: at(cert), key: at(key) })),
        (None, None) => Ok(None),
        (Some(_), None) => Err(ClusterError::PartialTls { named: cert_key, missing: key_key }),
        (None, Some(_)) => Err(ClusterError::PartialTls { named: key_key, missing: cert_key }),
    }
}
