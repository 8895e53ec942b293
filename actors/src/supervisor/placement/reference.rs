//! Placements as their order is defined: every host is looked at for every shard. What the other way is held to.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use super::candidate::{Candidate, Demand};
use crate::api::Arrangement;

/// A host and what it has been dealt.
#[derive(Clone)]
struct ReferenceHostLoad<'a> {
    candidate: Candidate<'a>,
    room: Option<u64>,
    own: usize,
}

impl ReferenceHostLoad<'_> {
    fn fits(&self, bytes: u64) -> bool {
        self.room.is_none_or(|room| bytes <= room)
    }

    fn take(&mut self, bytes: u64) {
        self.own += 1;
        self.room = self.room.map(|room| room - bytes);
    }
}

#[derive(Clone)]
pub(super) struct ReferenceHostOrder<'a> {
    hosts: Vec<ReferenceHostLoad<'a>>,
    arrangement: Arrangement,
    /// Which islands come first.
    islands: BTreeMap<&'a str, usize>,
}

impl<'a> ReferenceHostOrder<'a> {
    pub(super) fn new(
        matching: Vec<Candidate<'a>>,
        arrangement: Arrangement,
        islands: BTreeMap<&'a str, usize>,
    ) -> Self {
        let place = |candidate: Candidate<'a>| ReferenceHostLoad { candidate, room: candidate.free_bytes, own: 0 };
        Self { hosts: matching.into_iter().map(place).collect(), arrangement, islands }
    }

    /// Deals shards of one logical host together where they fit.
    pub(super) fn deal_groups(mut self, demands: &[Demand]) -> Option<Vec<usize>> {
        let mut groups: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (at, demand) in demands.iter().enumerate() {
            groups.entry(demand.logical).or_default().push(at);
        }
        let standings: BTreeSet<(u8, u8)> = self.hosts.iter().map(|host| host.candidate.standing()).collect();
        let mut hosts = vec![0; demands.len()];
        for group in groups.values() {
            let bytes: Vec<u64> = group.iter().map(|&at| demands[at].kv_bytes).collect();
            let mut deal = |&upto: &(u8, u8)| self.together(&bytes, upto).or_else(|| self.apart(&bytes, upto));
            let dealt = standings.iter().find_map(&mut deal);
            for (&at, place) in group.iter().zip(dealt?) {
                hosts[at] = self.hosts[place].candidate.host;
            }
        }
        Some(hosts)
    }

    /// All of a group on one host up to a standing.
    fn together(&mut self, bytes: &[u64], upto: (u8, u8)) -> Option<Vec<usize>> {
        let sum = bytes.iter().fold(0u64, |sum, bytes| sum.saturating_add(*bytes));
        let place = self.best(sum, upto)?;
        bytes.iter().for_each(|&bytes| self.hosts[place].take(bytes));
        Some(vec![place; bytes.len()])
    }

    /// Each of a group where it fits, on hosts up to a standing.
    fn apart(&mut self, bytes: &[u64], upto: (u8, u8)) -> Option<Vec<usize>> {
        let mut tried = self.clone();
        let mut take = |&bytes: &u64| {
            let place = tried.best(bytes, upto)?;
            tried.hosts[place].take(bytes);
            Some(place)
        };
        let places = bytes.iter().map(&mut take).collect::<Option<_>>()?;
        *self = tried;
        Some(places)
    }

    /// The largest shards first, each where the least is left over: for sizes so unequal that order matters.
    pub(super) fn deal_tightly(mut self, demands: &[Demand]) -> Option<Vec<usize>> {
        let mut order: Vec<usize> = (0..demands.len()).collect();
        order.sort_by_key(|&at| Reverse(demands[at].kv_bytes));
        let mut hosts = vec![0; demands.len()];
        for at in order {
            let bytes = demands[at].kv_bytes;
            let fitting = self.hosts.iter_mut().filter(|host| host.fits(bytes));
            let key = |host: &&mut ReferenceHostLoad| {
                (host.candidate.standing(), host.room.unwrap_or(u64::MAX), host.candidate.host)
            };
            let place = fitting.min_by_key(key)?;
            place.take(bytes);
            hosts[at] = place.candidate.host;
        }
        Some(hosts)
    }

    /// The host that comes first of those up to a standing with room for `bytes`.
    fn best(&self, bytes: u64, upto: (u8, u8)) -> Option<usize> {
        let allowed = |place: &usize| self.hosts[*place].candidate.standing() <= upto && self.hosts[*place].fits(bytes);
        let places = 0..self.hosts.len();
        match self.arrangement {
            Arrangement::Spread => places.filter(allowed).min_by_key(|&place| self.spread_key(place)),
            Arrangement::Pack => places.filter(allowed).min_by_key(|&place| self.pack_key(place)),
        }
    }

    /// Idle hosts first, of these the one of the island that comes first, then the one whose failure domain and node have the fewest
    /// of the job's shards.
    fn spread_key(&self, place: usize) -> impl Ord + use<> {
        let ReferenceHostLoad { candidate, own, .. } = &self.hosts[place];
        let in_domain = self.hosts.iter().filter(|host| host.candidate.domain() == candidate.domain());
        let in_domain: usize = in_domain.map(|host| host.own).sum();
        let on_node: usize = self.of_node(candidate).map(|host| host.own).sum();
        (candidate.standing(), candidate.busy + own, self.island(candidate), in_domain, on_node, candidate.host)
    }

    /// Hosts without a shard of the job first, of these those of the island that comes first, then those on nodes in use, then
    /// those on the node with the most of them.
    fn pack_key(&self, place: usize) -> impl Ord + use<> {
        let ReferenceHostLoad { candidate, own, .. } = &self.hosts[place];
        let in_use = self.of_node(candidate).any(|host| host.own > 0);
        let alike = |host: &&ReferenceHostLoad| {
            host.candidate.standing() == candidate.standing()
                && self.island(&host.candidate) == self.island(candidate)
                && host.own == 0
        };
        let unused = self.of_node(candidate).filter(alike).count();
        let (standing, island) = (candidate.standing(), self.island(candidate));
        (standing, *own, island, !in_use, Reverse(unused), candidate.busy, candidate.host)
    }

    fn island(&self, candidate: &Candidate<'a>) -> usize {
        candidate.island().and_then(|island| self.islands.get(island).copied()).unwrap_or(self.islands.len())
    }

    fn of_node<'b>(&'b self, of: &'b Candidate<'a>) -> impl Iterator<Item = &'b ReferenceHostLoad<'a>> {
        self.hosts.iter().filter(|host| host.candidate.node == of.node && host.candidate.domain() == of.domain())
    }
}
