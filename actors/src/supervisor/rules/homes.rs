//! Where a context's shards are at home: hosts that encoded the same lately and may hold them still. A wrong guess costs an
//! encode, no answer.

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::supervisor::{
    placement::{Candidate, PlacementRefusal, place},
    rules::host_selection,
    state::SupervisorState,
    tables::context::Context,
};

/// Shards that are remembered.
const REMEMBERED: usize = 1 << 16;

/// Which host encoded a shard last, by the checksum of what it read.
#[derive(Debug, Default)]
pub struct Lately {
    hosts: HashMap<u64, usize>,
    order: VecDeque<u64>,
}

impl Lately {
    /// A host holds a shard.
    pub fn note(&mut self, digest: u64, host: usize) {
        if self.hosts.insert(digest, host).is_none() {
            self.order.push_back(digest);
        }
        while self.order.len() > REMEMBERED {
            let oldest = self.order.pop_front().expect("there are many");
            self.hosts.remove(&oldest);
        }
    }

    fn find(&self, digest: u64) -> Option<usize> {
        self.hosts.get(&digest).copied()
    }
}

impl SupervisorState {
    /// Hosts for all shards of a context whose turn has come: those that hold the same already where they can take it, and what
    /// belongs to the same part of the plan beside it; the rest where there is room.
    pub(in crate::supervisor) fn find_homes(&self, context: &Context) -> Result<Vec<usize>, PlacementRefusal> {
        let known = self.known_homes(context);
        let beside = beside(context, &known);
        let kept = [beside, known].into_iter().filter(|homes| !homes.is_empty());
        let found = kept.into_iter().find_map(|homes| self.place_around(context, &homes));
        let all = || (0..context.plan().shards.len()).collect::<Vec<_>>();
        found.map_or_else(|| self.find_hosts(context, &all()), Ok)
    }

    /// Hosts that encoded some of its shards lately, all of equal numerics.
    fn known_homes(&self, context: &Context) -> BTreeMap<usize, usize> {
        let digests = context.prepared.digests.iter().enumerate().take(context.plan().shards.len());
        let takes = |host: &usize| self.hosts.at(*host).takes_work() && !context.avoid.contains(host);
        let home = |(block, digest): (usize, &u64)| Some((block, self.lately.find(*digest).filter(takes)?));
        let mut homes: BTreeMap<usize, usize> = digests.filter_map(home).collect();
        let numerics = homes.values().next().map(|host| self.hosts.at(*host).numerics.clone());
        homes.retain(|_, host| numerics.as_ref() == Some(&self.hosts.at(*host).numerics));
        homes
    }

    /// Hosts for all shards where some have theirs; none where that does not fit.
    fn place_around(&self, context: &Context, homes: &BTreeMap<usize, usize>) -> Option<Vec<usize>> {
        let (prepared, shards) = (&context.prepared, context.plan().shards.len());
        let numerics = &self.hosts.at(*homes.values().next()?).numerics;
        let fit = |host: usize| {
            let record = self.hosts.at(host);
            record.takes_work() && record.numerics == *numerics && !context.avoid.contains(&host)
        };
        let mut candidates: Vec<Candidate> = self.candidates(|load| load.kv_bytes, fit);
        for (block, host) in homes {
            let home = candidates.iter_mut().find(|candidate| candidate.host == *host)?;
            let admitted = prepared.placement.admits(home);
            let left = home.free_bytes.map(|free| free.checked_sub(context.kv_bytes(*block)));
            home.free_bytes = match left {
                _ if !admitted => return None,
                Some(None) => return None,
                Some(left) => left,
                None => None,
            };
        }
        let rest: Vec<usize> = (0..shards).filter(|block| !homes.contains_key(block)).collect();
        let demands = host_selection::demands(prepared, &context.lent, &rest);
        let placed = place(&demands, &candidates, &prepared.placement).ok()?;
        let rest: BTreeMap<usize, usize> = rest.into_iter().zip(placed).collect();
        (0..shards).map(|block| homes.get(&block).or_else(|| rest.get(&block)).copied()).collect()
    }
}

/// The same homes, and for what the plan deals to one host with a shard that has one the same.
fn beside(context: &Context, homes: &BTreeMap<usize, usize>) -> BTreeMap<usize, usize> {
    let mut of_logical: BTreeMap<usize, usize> = BTreeMap::new();
    let shards = &context.plan().shards;
    for (block, host) in homes {
        of_logical.entry(shards[*block].host).or_insert(*host);
    }
    let home = |block: usize| {
        let sibling = || of_logical.get(&shards[block].host).copied();
        Some((block, homes.get(&block).copied().or_else(sibling)?))
    };
    (0..shards.len()).filter_map(home).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_longest_ago_is_forgotten() {
        let mut lately = Lately::default();
        (0..REMEMBERED as u64 + 2).for_each(|digest| lately.note(digest, digest as usize % 3));
        lately.note(7, 5);
        assert_eq!([0, 1, 2, 7].map(|digest| lately.find(digest)), [None, None, Some(2), Some(5)]);
        assert_eq!((lately.order.len(), lately.hosts.len()), (REMEMBERED, REMEMBERED));
    }
}
