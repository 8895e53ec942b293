//! `[standby]` as typed: where several supervisors share their journal.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// `[standby]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StandbySection {
    /// Client addresses of etcd's members, such as `http://10.0.0.7:2379`. None: there is one supervisor, with its journal in data_dir.
    pub etcd: Vec<String>,
    /// The authority of etcd's certificates (PEM), with addresses that begin with `https://`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// The certificate (PEM) that this supervisor shows etcd.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cert: Option<PathBuf>,
    /// Its key (PEM).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
    /// The user of etcd as whom it asks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// A file whose first line is that user's password.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password_file: Option<PathBuf>,
    /// A folder that the machines of all supervisors see, relative to the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared_dir: Option<PathBuf>,
    /// Seconds after which a leader that does not renew its lead has lost it.
    pub lease_s: u64,
}

impl Default for StandbySection {
    fn default() -> Self {
        let (ca, cert, key, user, password_file) = (None, None, None, None, None);
        Self { etcd: Vec::new(), ca, cert, key, user, password_file, shared_dir: None, lease_s: 5 }
    }
}
