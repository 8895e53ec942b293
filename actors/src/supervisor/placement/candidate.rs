//! What a placement is found for and among: shards, and hosts that could take them. Chooses none.

use std::collections::BTreeMap;

use crate::api::PlacementPolicy;

/// The label that names the island of a host: those between which exchanges are fast.
pub const ISLAND_LABEL: &str = "island";
/// The label that names what may fail at once with a host's node.
pub const RACK_LABEL: &str = "rack";

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
    /// How far from where it would lie best; the same as for a rank holds, among hosts of one.
    pub detour: u8,
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

/// What is to be placed, and how.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The shards.
    pub demands: &'a [Demand],
    /// What the request asks of hosts.
    pub policy: &'a PlacementPolicy,
    /// Whether shards pass each other something: they then stay within an island, as far as one has room.
    pub exchanges: bool,
}

/// What fails at once: a rack, or a node where no rack is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FailureDomain<'a> {
    Rack(&'a str),
    Node(&'a str),
}

impl<'a> FailureDomain<'a> {
    /// That of a host of these labels on this node.
    pub fn of(labels: &'a BTreeMap<String, String>, node: &'a str) -> Self {
        labels.get(RACK_LABEL).map_or(Self::Node(node), |rack| Self::Rack(rack))
    }
}

/// The island that labels name.
pub fn island_of(labels: &BTreeMap<String, String>) -> Option<&str> {
    labels.get(ISLAND_LABEL).map(String::as_str)
}

impl<'a> Candidate<'a> {
    /// The island it is of, where one is named.
    pub fn island(&self) -> Option<&'a str> {
        island_of(self.labels)
    }

    /// What fails with it.
    pub fn domain(&self) -> FailureDomain<'a> {
        FailureDomain::of(self.labels, self.node)
    }

    /// Which others get shards before it, and after it, however much these have.
    pub(super) fn standing(&self) -> (u8, u8) {
        (self.rank, self.detour)
    }

    /// Whether it has all of these labels.
    pub fn carries(&self, labels: &BTreeMap<String, String>) -> bool {
        labels.iter().all(|(key, value)| self.labels.get(key).is_some_and(|has| has == value))
    }
}
