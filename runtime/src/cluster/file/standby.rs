//! `[standby]` as typed: where several supervisors share their journal.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// `[standby]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StandbySection {
    /// Client addresses of etcd's members, such as `http://10.0.0.7:2379`. None: there is one supervisor, with its journal in data_dir.
    pub etcd: Vec<String>,
    /// A folder that the machines of all supervisors see, relative to the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared_dir: Option<PathBuf>,
    /// Seconds after which a leader that does not renew its lead has lost it.
    pub lease_s: u64,
}

impl Default for StandbySection {
    fn default() -> Self {
        Self { etcd: Vec::new(), shared_dir: None, lease_s: 5 }
    }
}
