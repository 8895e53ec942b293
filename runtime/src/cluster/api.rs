//! `[api]` resolved, as far as it is about OpenAI's API: where it listens, and who may ask. Reads no key.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use super::{ClusterError, socket_address};
use crate::cluster_file::ClusterFile;

/// OpenAI's API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Api {
    /// Where it listens.
    pub listen: SocketAddr,
    /// The file of its keys; none: everybody may ask.
    pub key_file: Option<PathBuf>,
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
    let api = Api { listen, key_file };
    api.check(listen, allow_open)?;
    Ok(Some(api))
}
