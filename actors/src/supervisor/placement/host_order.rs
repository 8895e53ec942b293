//! The hosts that shards are dealt to, kept in the order in which they come next, so that a shard costs about the logarithm
//! of their number. Decides nothing that the order does not.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use super::candidate::{Candidate, Demand};
use crate::api::Arrangement;

/// A host and what it has been dealt.
struct HostLoad<'a> {
    candidate: Candidate<'a>,
    room: Option<u64>,
    own: usize,
    /// Node and rank.
    class: usize,
}

impl HostLoad<'_> {
    fn fits(&self, bytes: u64) -> bool {
        self.room.is_none_or(|room| bytes <= room)
    }
}

/// Hosts of one rank on one node, which differ only in what they have themselves.
#[derive(Default)]
struct Class {
    rank: u8,
    node: usize,
    /// Those that may still take something, in their order.
    line: BTreeSet<ClassPosition>,
    /// Hosts without a shard of the job.
    unused: usize,
}

/// Where a host stands among those of its class; its index among all hosts is last.
type ClassPosition = (usize, usize, usize, usize);

/// Where a host stands among all: rank, then as the arrangement has it.
type HostSortKey = (u8, usize, usize, usize, usize, usize);

/// What lies on a node and which classes its hosts are of.
#[derive(Default)]
struct Node {
    own: usize,
    classes: Vec<usize>,
}

/// Hosts in the order in which they are dealt shards.
pub(super) struct HostOrder<'a> {
    places: Vec<HostLoad<'a>>,
    classes: Vec<Class>,
    nodes: Vec<Node>,
    /// The first host of each class that has one.
    heads: BTreeSet<(HostSortKey, usize)>,
    arrangement: Arrangement,
    /// Bytes of the smallest shard: a host with less room takes nothing any more.
    least: u64,
}

impl<'a> HostOrder<'a> {
    pub(super) fn new(matching: &[Candidate<'a>], arrangement: Arrangement, demands: &[Demand]) -> Self {
        let least = demands.iter().map(|demand| demand.kv_bytes).min().unwrap_or(0);
        let (places, classes, nodes) = (Vec::with_capacity(matching.len()), Vec::new(), Vec::new());
        let mut order = Self { places, classes, nodes, heads: BTreeSet::new(), arrangement, least };
        let (mut by_node, mut by_class) = (BTreeMap::new(), BTreeMap::new());
        for &candidate in matching {
            let node = *by_node.entry(candidate.node).or_insert(order.nodes.len());
            if node == order.nodes.len() {
                order.nodes.push(Node::default());
            }
            let class = *by_class.entry((node, candidate.rank)).or_insert(order.classes.len());
            if class == order.classes.len() {
                order.classes.push(Class { rank: candidate.rank, node, ..Class::default() });
                order.nodes[node].classes.push(class);
            }
            order.places.push(HostLoad { candidate, room: candidate.free_bytes, own: 0, class });
            order.classes[class].unused += 1;
            order.stand(order.places.len() - 1);
        }
        (0..order.classes.len()).for_each(|class| order.lead(class));
        order
    }

    /// Deals shards of one logical host together where they fit. None: some fit nowhere.
    pub(super) fn deal_groups(mut self, demands: &[Demand]) -> Option<Vec<usize>> {
        let mut groups: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (at, demand) in demands.iter().enumerate() {
            groups.entry(demand.logical).or_default().push(at);
        }
        let ranks: BTreeSet<u8> = self.classes.iter().map(|class| class.rank).collect();
        let mut hosts = vec![0; demands.len()];
        for group in groups.values() {
            let bytes: Vec<u64> = group.iter().map(|&at| demands[at].kv_bytes).collect();
            let dealt = ranks.iter().find_map(|&rank| self.together(&bytes, rank).or_else(|| self.apart(&bytes, rank)));
            for (&at, place) in group.iter().zip(dealt?) {
                hosts[at] = self.places[place].candidate.host;
            }
        }
        Some(hosts)
    }

    /// All of a group on one host up to a rank.
    fn together(&mut self, bytes: &[u64], rank: u8) -> Option<Vec<usize>> {
        let sum = bytes.iter().fold(0u64, |sum, bytes| sum.saturating_add(*bytes));
        let place = self.best(sum, rank)?;
        bytes.iter().for_each(|&bytes| self.take(place, bytes));
        Some(vec![place; bytes.len()])
    }

    /// Each of a group where it fits, on hosts up to a rank; all of them or none.
    fn apart(&mut self, bytes: &[u64], rank: u8) -> Option<Vec<usize>> {
        let mut places = Vec::with_capacity(bytes.len());
        for &wanted in bytes {
            let Some(place) = self.best(wanted, rank) else {
                places.into_iter().zip(bytes).for_each(|(place, &bytes)| self.give_back(place, bytes));
                return None;
            };
            self.take(place, wanted);
            places.push(place);
        }
        Some(places)
    }

    /// The host that comes first of those up to a rank with room for `bytes`.
    fn best(&self, bytes: u64, rank: u8) -> Option<usize> {
        let mut best: Option<(HostSortKey, usize)> = None;
        for &(head, class) in &self.heads {
            // No host of a class comes before its first.
            if head.0 > rank || best.is_some_and(|(key, _)| key < head) {
                break;
            }
            let fitting = self.classes[class].line.iter().find(|(.., place)| self.places[*place].fits(bytes));
            let found = fitting.map(|&host| (self.key(class, host), host.3));
            best = best.into_iter().chain(found).min();
        }
        best.map(|(_, place)| place)
    }

    fn take(&mut self, place: usize, bytes: u64) {
        self.change(place, |place| {
            place.own += 1;
            place.room = place.room.map(|room| room - bytes);
        });
    }

    fn give_back(&mut self, place: usize, bytes: u64) {
        self.change(place, |place| {
            place.own -= 1;
            place.room = place.room.map(|room| room + bytes);
        });
    }

    /// Changes what a host has; what stands on its node and where it comes next follow.
    fn change(&mut self, place: usize, change: impl FnOnce(&mut HostLoad)) {
        let (class, before) = (self.places[place].class, self.places[place].own);
        let node = self.classes[class].node;
        for at in self.nodes[node].classes.clone() {
            self.step_back(at);
        }
        let stood = self.in_class(place);
        self.classes[class].line.remove(&stood);
        change(&mut self.places[place]);
        let own = self.places[place].own;
        self.nodes[node].own = self.nodes[node].own + own - before;
        self.classes[class].unused = self.classes[class].unused + usize::from(own == 0) - usize::from(before == 0);
        self.stand(place);
        for at in self.nodes[node].classes.clone() {
            self.lead(at);
        }
    }

    /// Puts a host in the line of its class, unless it can take nothing.
    fn stand(&mut self, place: usize) {
        if self.places[place].fits(self.least) {
            let host = self.in_class(place);
            self.classes[self.places[place].class].line.insert(host);
        }
    }

    /// Puts the first of a class among the heads.
    fn lead(&mut self, class: usize) {
        if let Some(&first) = self.classes[class].line.first() {
            self.heads.insert((self.key(class, first), class));
        }
    }

    /// Takes the first of a class from among the heads.
    fn step_back(&mut self, class: usize) {
        if let Some(&first) = self.classes[class].line.first() {
            self.heads.remove(&(self.key(class, first), class));
        }
    }

    fn in_class(&self, place: usize) -> ClassPosition {
        let HostLoad { candidate, own, .. } = &self.places[place];
        match self.arrangement {
            Arrangement::Spread => (candidate.busy + own, 0, candidate.host, place),
            Arrangement::Pack => (*own, candidate.busy, candidate.host, place),
        }
    }

    /// Spread: idle hosts first, of these the one whose node has the fewest of the job's shards. Pack: hosts without a shard
    /// of the job first, of these those on nodes in use, then those on the node with the most of them.
    fn key(&self, class: usize, (first, second, host, _): ClassPosition) -> HostSortKey {
        let Class { rank, node, unused, .. } = self.classes[class];
        let on_node = self.nodes[node].own;
        match self.arrangement {
            Arrangement::Spread => (rank, first, on_node, 0, 0, host),
            Arrangement::Pack => (rank, first, usize::from(on_node == 0), usize::MAX - unused, second, host),
        }
    }
}

/// The largest shards first, each where the least is left over: for sizes so unequal that order matters.
pub(super) fn deal_tightly(matching: &[Candidate], demands: &[Demand]) -> Option<Vec<usize>> {
    let room = |candidate: &Candidate| (candidate.rank, candidate.free_bytes.unwrap_or(u64::MAX), candidate.host);
    let mut rooms: BTreeSet<(u8, u64, usize)> = matching.iter().map(room).collect();
    let ranks: BTreeSet<u8> = matching.iter().map(|candidate| candidate.rank).collect();
    let unlimited: BTreeSet<usize> =
        matching.iter().filter(|candidate| candidate.free_bytes.is_none()).map(|candidate| candidate.host).collect();
    let mut order: Vec<usize> = (0..demands.len()).collect();
    order.sort_by_key(|&at| Reverse(demands[at].kv_bytes));
    let mut hosts = vec![0; demands.len()];
    for at in order {
        let bytes = demands[at].kv_bytes;
        let in_rank = |rank: &u8| rooms.range((*rank, bytes, 0)..=(*rank, u64::MAX, usize::MAX)).next().copied();
        let found = ranks.iter().find_map(in_rank)?;
        let (rank, room, host) = found;
        if !unlimited.contains(&host) {
            rooms.remove(&found);
            rooms.insert((rank, room - bytes, host));
        }
        hosts[at] = host;
    }
    Some(hosts)
}
