//! The hosts that shards are dealt to, kept in the order in which they come next, so that a shard costs about the logarithm
//! of their number. Decides nothing that the order does not.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use super::candidate::{Candidate, Demand, Wanted};
use crate::api::Arrangement;

/// A host and what it has been dealt.
struct HostLoad<'a> {
    candidate: Candidate<'a>,
    room: Option<u64>,
    own: usize,
    /// Node, standing and island.
    class: usize,
}

impl HostLoad<'_> {
    fn fits(&self, bytes: u64) -> bool {
        self.room.is_none_or(|room| bytes <= room)
    }
}

/// Hosts of one standing and island on one node, which differ only in what they have themselves.
#[derive(Default)]
struct Class {
    standing: (u8, u8),
    /// Which islands come before its own.
    island: usize,
    node: usize,
    /// Those that may still take something, in their order.
    line: BTreeSet<ClassPosition>,
    /// Hosts without a shard of the job.
    unused: usize,
}

/// Where a host stands among those of its class; its index among all hosts is last.
type ClassPosition = (usize, usize, usize, usize);

/// Where a host stands among all: rank and detour, then as the arrangement has it.
type HostSortKey = ((u8, u8), [usize; 6]);

/// Where a host's key has what lies in its failure domain, where shards are spread.
const IN_DOMAIN: usize = 2;

/// What lies on a node of a failure domain and which classes its hosts are of.
#[derive(Default)]
struct Node {
    domain: usize,
    own: usize,
    classes: Vec<usize>,
}

/// What lies in a failure domain, and the first host of each of its classes that has one, in the order among themselves.
#[derive(Default)]
struct Domain {
    own: usize,
    heads: BTreeSet<(HostSortKey, usize)>,
}

/// Hosts in the order in which they are dealt shards.
pub(super) struct HostOrder<'a> {
    places: Vec<HostLoad<'a>>,
    classes: Vec<Class>,
    nodes: Vec<Node>,
    domains: Vec<Domain>,
    /// The first host of each failure domain that has one.
    firsts: BTreeSet<(HostSortKey, usize)>,
    arrangement: Arrangement,
    /// Bytes of the smallest shard: a host with less room takes nothing any more.
    least: u64,
}

impl<'a> HostOrder<'a> {
    /// `islands` has those that come before others, by name; hosts of none come last.
    pub(super) fn new(matching: &[Candidate<'a>], wanted: &Wanted, islands: &BTreeMap<&str, usize>) -> Self {
        let mut order = Self {
            places: Vec::with_capacity(matching.len()),
            classes: Vec::new(),
            nodes: Vec::new(),
            domains: Vec::new(),
            firsts: BTreeSet::new(),
            arrangement: wanted.policy.arrangement,
            least: wanted.demands.iter().map(|demand| demand.kv_bytes).min().unwrap_or(0),
        };
        let (mut by_domain, mut by_node, mut by_class) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        for &candidate in matching {
            let domain = *by_domain.entry(candidate.domain()).or_insert(order.domains.len());
            if domain == order.domains.len() {
                order.domains.push(Domain::default());
            }
            let node = *by_node.entry((domain, candidate.node)).or_insert(order.nodes.len());
            if node == order.nodes.len() {
                order.nodes.push(Node { domain, ..Node::default() });
            }
            let island = candidate.island().and_then(|island| islands.get(island).copied()).unwrap_or(islands.len());
            let standing = candidate.standing();
            let class = *by_class.entry((node, standing, island)).or_insert(order.classes.len());
            if class == order.classes.len() {
                order.classes.push(Class { standing, island, node, ..Class::default() });
                order.nodes[node].classes.push(class);
            }
            order.places.push(HostLoad { candidate, room: candidate.free_bytes, own: 0, class });
            order.classes[class].unused += 1;
            order.stand(order.places.len() - 1);
        }
        (0..order.classes.len()).for_each(|class| order.lead(class));
        (0..order.domains.len()).for_each(|domain| order.lead_all(domain));
        order
    }

    /// Deals shards of one logical host together where they fit. None: some fit nowhere.
    pub(super) fn deal_groups(mut self, demands: &[Demand]) -> Option<Vec<usize>> {
        let mut groups: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (at, demand) in demands.iter().enumerate() {
            groups.entry(demand.logical).or_default().push(at);
        }
        let standings: BTreeSet<(u8, u8)> = self.classes.iter().map(|class| class.standing).collect();
        let mut hosts = vec![0; demands.len()];
        for group in groups.values() {
            let bytes: Vec<u64> = group.iter().map(|&at| demands[at].kv_bytes).collect();
            let mut deal = |&upto: &(u8, u8)| self.together(&bytes, upto).or_else(|| self.apart(&bytes, upto));
            let dealt = standings.iter().find_map(&mut deal);
            for (&at, place) in group.iter().zip(dealt?) {
                hosts[at] = self.places[place].candidate.host;
            }
        }
        Some(hosts)
    }

    /// All of a group on one host up to a standing.
    fn together(&mut self, bytes: &[u64], upto: (u8, u8)) -> Option<Vec<usize>> {
        let sum = bytes.iter().fold(0u64, |sum, bytes| sum.saturating_add(*bytes));
        let place = self.best(sum, upto)?;
        bytes.iter().for_each(|&bytes| self.take(place, bytes));
        Some(vec![place; bytes.len()])
    }

    /// Each of a group where it fits, on hosts up to a standing; all of them or none.
    fn apart(&mut self, bytes: &[u64], upto: (u8, u8)) -> Option<Vec<usize>> {
        let mut places = Vec::with_capacity(bytes.len());
        for &wanted in bytes {
            let Some(place) = self.best(wanted, upto) else {
                places.into_iter().zip(bytes).for_each(|(place, &bytes)| self.give_back(place, bytes));
                return None;
            };
            self.take(place, wanted);
            places.push(place);
        }
        Some(places)
    }

    /// The host that comes first of those up to a standing with room for `bytes`.
    fn best(&self, bytes: u64, upto: (u8, u8)) -> Option<usize> {
        let mut best: Option<(HostSortKey, usize)> = None;
        // No host of a domain comes before its first, and none of a class before its own.
        let is_over = |best: &Option<(HostSortKey, usize)>, head: HostSortKey| {
            head.0 > upto || best.is_some_and(|(key, _)| key < head)
        };
        for &(first, domain) in &self.firsts {
            if is_over(&best, first) {
                break;
            }
            for &(head, class) in &self.domains[domain].heads {
                if is_over(&best, self.among_all(domain, head)) {
                    break;
                }
                let fitting = self.classes[class].line.iter().find(|(.., place)| self.places[*place].fits(bytes));
                let key = |&host| (self.among_all(domain, self.key(class, host)), host.3);
                best = best.into_iter().chain(fitting.map(key)).min();
            }
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
        let domain = self.nodes[node].domain;
        self.step_back_all(domain);
        for at in self.nodes[node].classes.clone() {
            self.step_back(at);
        }
        let stood = self.in_class(place);
        self.classes[class].line.remove(&stood);
        change(&mut self.places[place]);
        let own = self.places[place].own;
        self.nodes[node].own = self.nodes[node].own + own - before;
        self.domains[domain].own = self.domains[domain].own + own - before;
        self.classes[class].unused = self.classes[class].unused + usize::from(own == 0) - usize::from(before == 0);
        self.stand(place);
        for at in self.nodes[node].classes.clone() {
            self.lead(at);
        }
        self.lead_all(domain);
    }

    /// Puts a host in the line of its class, unless it can take nothing.
    fn stand(&mut self, place: usize) {
        if self.places[place].fits(self.least) {
            let host = self.in_class(place);
            self.classes[self.places[place].class].line.insert(host);
        }
    }

    /// Puts the first of a class among the heads of its failure domain.
    fn lead(&mut self, class: usize) {
        if let Some(&first) = self.classes[class].line.first() {
            let (key, domain) = (self.key(class, first), self.nodes[self.classes[class].node].domain);
            self.domains[domain].heads.insert((key, class));
        }
    }

    /// Takes the first of a class from among the heads.
    fn step_back(&mut self, class: usize) {
        if let Some(&first) = self.classes[class].line.first() {
            let (key, domain) = (self.key(class, first), self.nodes[self.classes[class].node].domain);
            self.domains[domain].heads.remove(&(key, class));
        }
    }

    /// Puts the first of a failure domain among those of all.
    fn lead_all(&mut self, domain: usize) {
        if let Some(&(head, _)) = self.domains[domain].heads.first() {
            self.firsts.insert((self.among_all(domain, head), domain));
        }
    }

    /// Takes the first of a failure domain from among them.
    fn step_back_all(&mut self, domain: usize) {
        if let Some(&(head, _)) = self.domains[domain].heads.first() {
            self.firsts.remove(&(self.among_all(domain, head), domain));
        }
    }

    fn in_class(&self, place: usize) -> ClassPosition {
        let HostLoad { candidate, own, .. } = &self.places[place];
        match self.arrangement {
            Arrangement::Spread => (candidate.busy + own, 0, candidate.host, place),
            Arrangement::Pack => (*own, candidate.busy, candidate.host, place),
        }
    }

    /// Spread: idle hosts first, of these the one of the island that comes first, then the one whose failure domain and node have
    /// the fewest of the job's shards. Pack: hosts without a shard of the job first, of these those of the island that comes first,
    /// then those on nodes in use, then those on the node with the most of them. What lies in the domain, `among_all` adds.
    fn key(&self, class: usize, (first, second, host, _): ClassPosition) -> HostSortKey {
        let Class { standing, island, node, unused, .. } = self.classes[class];
        let on_node = self.nodes[node].own;
        let rest = match self.arrangement {
            Arrangement::Spread => [first, island, 0, on_node, host, 0],
            Arrangement::Pack => [first, island, usize::from(on_node == 0), usize::MAX - unused, second, host],
        };
        (standing, rest)
    }

    /// A key of a host of a failure domain, as it stands among those of others.
    fn among_all(&self, domain: usize, (standing, mut rest): HostSortKey) -> HostSortKey {
        if self.arrangement == Arrangement::Spread {
            rest[IN_DOMAIN] = self.domains[domain].own;
        }
        (standing, rest)
    }
}

/// The largest shards first, each where the least is left over: for sizes so unequal that order matters.
pub(super) fn deal_tightly(matching: &[Candidate], demands: &[Demand]) -> Option<Vec<usize>> {
    let room = |candidate: &Candidate| (candidate.standing(), candidate.free_bytes.unwrap_or(u64::MAX), candidate.host);
    let mut rooms: BTreeSet<((u8, u8), u64, usize)> = matching.iter().map(room).collect();
    let standings: BTreeSet<(u8, u8)> = matching.iter().map(Candidate::standing).collect();
    let unlimited: BTreeSet<usize> =
        matching.iter().filter(|candidate| candidate.free_bytes.is_none()).map(|candidate| candidate.host).collect();
    let mut order: Vec<usize> = (0..demands.len()).collect();
    order.sort_by_key(|&at| Reverse(demands[at].kv_bytes));
    let mut hosts = vec![0; demands.len()];
    for at in order {
        let bytes = demands[at].kv_bytes;
        let of = |standing: &(u8, u8)| {
            rooms.range((*standing, bytes, 0)..=(*standing, u64::MAX, usize::MAX)).next().copied()
        };
        let found = standings.iter().find_map(of)?;
        let (standing, room, host) = found;
        if !unlimited.contains(&host) {
            rooms.remove(&found);
            rooms.insert((standing, room - bytes, host));
        }
        hosts[at] = host;
    }
    Some(hosts)
}
