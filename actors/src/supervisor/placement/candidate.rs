//! What a placement is found for and among: shards, and hosts that could take them. Chooses none.

use std::collections::BTreeMap;

/// A host that could take shards.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// Its index, as the answer names it.
    pub host: usize,
    /// Machine it runs on.
    pub node: &'a str,
    /// Its labels.
    pub labels: &'a BTreeMap<String, String>,
    /// Hosts of a higher rank, such as spares, get shards only when those of the lower ones have no room.
    pub rank: u8,
    /// Bytes of KV it may still take; none: unlimited.
    pub free_bytes: Option<u64>,
    /// Shards it has of jobs that run.
    pub busy: usize,
    /// What decides the bits of its results; none: not known yet.
    pub numerics: Option<&'a str>,
}

/// A shard to place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Shard, by its place in the context.
    pub block: usize,
    /// Logical host of the plan; shards of one go to one host when they fit.
    pub logical: usize,
    /// Bytes of KV it keeps.
    pub kv_bytes: u64,
}

impl Candidate<'_> {
    /// Whether it has all of these labels.
    pub fn carries(&self, labels: &BTreeMap<String, String>) -> bool {
        labels.iter().all(|(key, value)| self.labels.get(key).is_some_and(|has| has == value))
    }
}
