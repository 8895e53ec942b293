//! `[security]` resolved: who proves what to whom, and with which files. Reads none of them.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use super::{ClusterError, socket_address};
use crate::cluster::file::{SecurityMode, SecuritySection};

/// Who may join and who may ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Security {
    /// Whether hosts prove who they are.
    pub mode: SecurityMode,
    /// Certificates named by the file; `None`: made in data_dir.
    pub files: Option<CertificateFiles>,
    /// File with the token that admin requests bear.
    pub token_file: Option<PathBuf>,
    /// Where nodes get certificates for a join token; `None`: nowhere.
    pub join_listen: Option<SocketAddr>,
    /// The admin API may listen beyond this machine without a token.
    pub allow_open_admin: bool,
}

impl Security {
    /// Refuses an admin API that anybody on the network could use, where nobody said that it is meant.
    pub fn check_admin(&self, listen: SocketAddr) -> Result<(), ClusterError> {
        if listen.ip().is_loopback() || self.token_file.is_some() || self.allow_open_admin {
            return Ok(());
        }
        Err(ClusterError::OpenAdmin { listen })
    }
}

/// Certificates named by the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The CA's certificate.
    pub ca: PathBuf,
    /// The certificate chain of each process, with its name in the place of `{name}`.
    pub cert: PathBuf,
    /// Its private key, likewise.
    pub key: PathBuf,
}

impl CertificateFiles {
    /// Those of the process called `name`.
    pub fn of(&self, name: &str) -> Self {
        let named = |path: &Path| path.to_str().map_or_else(|| path.into(), |text| text.replace("{name}", name).into());
        Self { ca: named(&self.ca), cert: named(&self.cert), key: named(&self.key) }
    }
}

/// Relative paths are taken from `directory`; hosts reach the supervisor at `listen`.
pub(super) fn resolve(
    section: &SecuritySection,
    directory: &Path,
    listen: SocketAddr,
) -> Result<Security, ClusterError> {
    let (named, missing): (Vec<_>, Vec<_>) = [("ca", &section.ca), ("cert", &section.cert), ("key", &section.key)]
        .into_iter()
        .partition(|(_, path)| path.is_some());
    let files = match (&section.ca, &section.cert, &section.key) {
        (Some(ca), Some(cert), Some(key)) => {
            Some(CertificateFiles { ca: directory.join(ca), cert: directory.join(cert), key: directory.join(key) })
        }
        (None, None, None) => None,
        _ => {
            let join = |keys: Vec<(&str, _)>| keys.into_iter().map(|(key, _)| key).collect::<Vec<_>>().join(", ");
            return Err(ClusterError::PartialCertificates { named: join(named), missing: join(missing) });
        }
    };
    let join_listen = section.join_listen.as_deref().map(|text| join_listen(text, section, listen)).transpose()?;
    let token_file = section.token_file.as_ref().map(|path| directory.join(path));
    Ok(Security { mode: section.mode, files, token_file, join_listen, allow_open_admin: section.allow_open_admin })
}

fn join_listen(text: &str, section: &SecuritySection, listen: SocketAddr) -> Result<SocketAddr, ClusterError> {
    const KEY: &str = "security.join_listen";
    let address = socket_address(KEY, text)?;
    let refused = |expected: &str| {
        Err(ClusterError::Value { key: KEY, got: format!("\"{text}\""), expected: expected.to_owned() })
    };
    if section.mode == SecurityMode::Insecure {
        return refused("nodes join by certificates, and mode = \"insecure\" has none; set mode = \"mtls\"");
    }
    if section.ca.is_some() {
        return refused("tokens need the CA of data_dir; take ca, cert and key out of [security], or this key");
    }
    if address.port() != 0 && address == listen {
        return refused("cluster.listen has this address; choose another port");
    }
    Ok(address)
}
