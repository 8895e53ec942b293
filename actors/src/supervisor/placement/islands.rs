//! Islands: hosts between which exchanges are fast, by their label. Shards that pass each other something stay within one where
//! one has room. Knows nothing of what is passed.

use std::{cmp::Reverse, collections::BTreeMap};

use super::{
    candidate::{Candidate, Wanted},
    host_order::{HostOrder, deal_tightly},
};

/// Hosts by island; those of none are in no group.
pub(super) fn islands<'a>(matching: &[Candidate<'a>]) -> BTreeMap<&'a str, Vec<Candidate<'a>>> {
    let mut islands: BTreeMap<&str, Vec<Candidate>> = BTreeMap::new();
    for candidate in matching {
        if let Some(island) = candidate.island() {
            islands.entry(island).or_default().push(*candidate);
        }
    }
    islands
}

/// Where shards exchange and no island can have all: those with the most hosts come first, so that as few as can be are used.
pub(super) fn in_turn<'a>(matching: &[Candidate<'a>]) -> BTreeMap<&'a str, usize> {
    let islands = islands(matching);
    let mut names: Vec<(&str, usize)> = islands.iter().map(|(name, hosts)| (*name, hosts.len())).collect();
    names.sort_by_key(|(name, hosts)| (Reverse(*hosts), *name));
    names.into_iter().enumerate().map(|(at, (name, _))| (name, at)).collect()
}

/// All shards on hosts of one island, where one has room: memory for them, and hosts enough that none has more of the plan's
/// parts than it would have among all. Of several, the one with the least to do, then the smallest.
pub(super) fn within_one(wanted: &Wanted, matching: &[Candidate]) -> Option<Vec<usize>> {
    let parts = parts(wanted);
    let each = fair_share(parts, matching);
    let islands = islands(matching);
    let fits = |hosts: &&Vec<Candidate>| parts <= each * lowest(hosts, matching);
    let tried = islands.values().filter(fits).filter_map(|hosts| {
        let order = HostOrder::new(hosts, wanted, &BTreeMap::new());
        let placed = order.deal_groups(wanted.demands).or_else(|| deal_tightly(hosts, wanted.demands))?;
        Some((burden(hosts, &placed), placed))
    });
    tried.min_by(|(one, _), (other, _)| one.cmp(other)).map(|(_, placed)| placed)
}

/// Parts of the plan that are dealt to a host each.
pub(super) fn parts(wanted: &Wanted) -> usize {
    let mut logical: Vec<usize> = wanted.demands.iter().map(|demand| demand.logical).collect();
    logical.sort_unstable();
    logical.dedup();
    logical.len()
}

/// Parts that a host has where all hosts of the lowest rank share them.
pub(super) fn fair_share(parts: usize, matching: &[Candidate]) -> usize {
    parts.div_ceil(lowest(matching, matching).max(1)).max(1)
}

/// How many of these hosts are of the lowest rank that any has.
pub(super) fn lowest(hosts: &[Candidate], any: &[Candidate]) -> usize {
    let rank = any.iter().map(|candidate| candidate.rank).min();
    hosts.iter().filter(|candidate| Some(candidate.rank) == rank).count()
}

/// What using these hosts of an island costs: the last that had to be asked, what the busiest has to do, hosts of the island, and
/// the first of them.
fn burden(hosts: &[Candidate], placed: &[usize]) -> ((u8, u8), usize, usize, usize) {
    let mut own: BTreeMap<usize, usize> = BTreeMap::new();
    placed.iter().for_each(|host| *own.entry(*host).or_default() += 1);
    let used = || hosts.iter().filter(|candidate| own.contains_key(&candidate.host));
    let last = used().map(Candidate::standing).max().unwrap_or_default();
    let busiest = used().map(|candidate| candidate.busy + own[&candidate.host]).max().unwrap_or_default();
    (last, busiest, hosts.len(), hosts.first().map_or(0, |candidate| candidate.host))
}
