//! The cluster file that comes with this program. Reads no other.

use crate::cluster::file::{self as cluster_file, ClusterFile};

/// What `up` runs as it stands.
pub const SAMPLE: &str = include_str!("../../../../cluster.toml");

/// The same, typed.
pub fn sample() -> ClusterFile {
    cluster_file::parse(SAMPLE, []).expect("the sample is checked by tests")
}
