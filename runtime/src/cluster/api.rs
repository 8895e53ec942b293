//! `[api]` resolved, as far as it is about OpenAI's API: where it listens, and who may ask. Reads no key.

use std::{
    net::SocketAddr,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use asterism_actors::api::bounds;

use super::{ClusterError, socket_address};
use crate::cluster::{file::ClusterFile, size::Bytes};

/// What keys of `[api]` name a listener's certificate and key.
pub type TlsKeys = [&'static str; 2];
/// Those of OpenAI's API.
pub const API: TlsKeys = ["tls_cert", "tls_key"];
/// Those of the admin API.
pub const ADMIN: TlsKeys = ["admin_tls_cert", "admin_tls_key"];

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
    /// Time that a connection is kept between its requests.
    pub kept_idle: Duration,
}

/// Bounds of `keep_alive_s`, in seconds.
const KEPT_S: RangeInclusive<u64> = 1..=3600;

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
    let tls = tls(directory, (&file.api.tls_cert, &file.api.tls_key), API)?;
    let (Bytes(bytes), Bytes(bytes_per_key)) = (file.api.max_stored_bytes, file.api.max_stored_bytes_per_key);
    if bytes_per_key > bytes {
        return Err(ClusterError::StoredPerKey { all: bytes, of_key: bytes_per_key });
    }
    let origins = Origins::read(&file.api.allow_origins).map_err(|got| ClusterError::NoOrigin { got })?;
    let kept_s = file.api.keep_alive_s;
    if !KEPT_S.contains(&kept_s) {
        let expected = format!("expected {} to {} seconds", KEPT_S.start(), KEPT_S.end());
        return Err(ClusterError::Value { key: "api.keep_alive_s", got: kept_s.to_string(), expected });
    }
    let (limits, kept_idle) = (Limits { bytes, bytes_per_key }, Duration::from_secs(kept_s));
    let api = Api { listen, key_file, tls, limits, origins, kept_idle };
    api.check(listen, allow_open)?;
    Ok(Some(api))
}

/// The admin API's certificate and key, if it has them.
pub(super) fn admin_tls(file: &ClusterFile, directory: &Path) -> Result<Option<TlsFiles>, ClusterError> {
    tls(directory, (&file.api.admin_tls_cert, &file.api.admin_tls_key), ADMIN)
}

fn tls(
    directory: &Path,
    given: (&Option<PathBuf>, &Option<PathBuf>),
    [cert_key, key_key]: TlsKeys,
) -> Result<Option<TlsFiles>, ClusterError> {
    let at = |path: &PathBuf| directory.join(path);
    match given {
        (Some(cert), Some(key)) => Ok(Some(TlsFiles { cert: at(cert), key: at(key) })),
        (None, None) => Ok(None),
        (Some(_), None) => Err(ClusterError::PartialTls { named: cert_key, missing: key_key }),
        (None, Some(_)) => Err(ClusterError::PartialTls { named: key_key, missing: cert_key }),
    }
}

/// Where a listener's certificate and key are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate, and those between it and its authority.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// Most origins of a cluster file.
const MOST_ORIGINS: usize = 64;

/// Origins whose pages may ask in a browser. Copies are the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origins(Arc<[String]>);

impl Origins {
    /// Of a cluster file: each as browsers write them, or `*` for any.
    ///
    /// # Errors
    /// The one that is none.
    pub fn read(given: &[String]) -> Result<Self, String> {
        let is_one = |origin: &str| {
            let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
            let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-._:[]".contains(&byte);
            origin == "*" || authority.is_some_and(|host| !host.is_empty() && host.bytes().all(plain))
        };
        match given.iter().find(|origin| !is_one(origin)) {
            Some(wrong) => Err(bounds::shown(wrong)),
            None if given.len() > MOST_ORIGINS => Err(format!("{} origins", given.len())),
            None => Ok(Self(given.into())),
        }
    }

    /// Whether pages of an origin may ask.
    pub fn allows(&self, origin: &str) -> bool {
        self.0.iter().any(|allowed| allowed == "*" || allowed == origin)
    }
}

/// How much may be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of all.
    pub bytes: u64,
    /// Bytes of each key.
    pub bytes_per_key: u64,
}
