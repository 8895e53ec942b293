//! Why no placement is possible. Places nothing.

use thiserror::Error;

/// No placement is possible.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PlacementRefusal {
    /// There is no host at all.
    #[error("no context host or spare is there to take {shards} shards. Start one, or uncordon one")]
    NoHost {
        /// Shards to place.
        shards: usize,
    },
    /// No host carries the labels.
    #[error("none of {hosts} hosts has all labels asked for ({wanted}); {known}. Ask for labels that one host has")]
    NoSuchLabels {
        /// Hosts looked at.
        hosts: usize,
        /// Labels asked for, as `key=value, ...`.
        wanted: String,
        /// What hosts have under these keys.
        known: String,
    },
    /// Only hosts of different numerics have room together.
    #[error(
        "{}{} on no hosts that compute the same bits; there are {known}. Hosts of more than one kind take them \
         where mixed_numerics of [cluster] is \"mark\"; or add hosts of one kind",
        if *shards == 1 { "1 shard fits".into() } else { format!("{shards} shards fit") },
        wanted.as_ref().map_or(String::new(), |wanted| format!(", of a context that began on {wanted},"))
    )]
    UnequalNumerics {
        /// Shards to place.
        shards: usize,
        /// What they are to be encoded with, where others of the context are already.
        wanted: Option<String>,
        /// How many hosts compute with what.
        known: String,
    },
    /// The hosts have not enough memory.
    #[error(
        "{} {} of KV, the largest {}, and the hosts have free: {}. Raise memory_limit, add hosts, or shorten the context",
        if *shards == 1 { "1 shard needs".into() } else { format!("{shards} shards need") },
        mebibytes(*needed), mebibytes(*largest), rooms(free)
    )]
    NotEnoughMemory {
        /// Shards to place.
        shards: usize,
        /// Bytes they need together.
        needed: u64,
        /// Bytes of the largest.
        largest: u64,
        /// Bytes free of each host that has the labels, by its index.
        free: Vec<(usize, u64)>,
    },
}

impl PlacementRefusal {
    /// A stable code.
    pub fn code(&self) -> &'static str {
        "placement_impossible"
    }
}

/// Bytes in words.
pub(crate) fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

fn rooms(free: &[(usize, u64)]) -> String {
    free.iter().map(|(host, bytes)| format!("host {host} {}", mebibytes(*bytes))).collect::<Vec<_>>().join(", ")
}
