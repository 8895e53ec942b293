//! Whom a query host asks for a context, and who merges before it answers: the plan's tree over the places of shards. Pure.
//!
//! Where all partials are no more than are merged at a time, every holder is asked. Where they are more, each partial that the
//! query host is to have is merged by one of its holders, which asks the others in its turn, and so on down the tree. Whoever
//! merges, the tree says what: bits do not depend on it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use asterism_plan::{HiddenKeys, MergeTree};
use asterism_transport::Endpoint;

use crate::{
    api::TraceContext,
    messages::{Attach, ChannelOpening, RelayChild, RelayOrder, ShardHolder, WireMessage, unmerged},
    ticket::Ticket,
};

/// A context as its hosts are asked about it.
#[derive(Clone, Debug)]
pub struct AskedContext {
    /// Its number.
    pub context: u64,
    /// What opens it.
    pub ticket: Ticket,
    /// Keys of its shards that are not to be seen; ascending by shard.
    pub hidden: Vec<HiddenKeys>,
    /// The job's span, where hosts are to tell theirs.
    pub trace: Option<TraceContext>,
}

/// What is asked of a host.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// The host, and all shards that it answers for, ascending.
    pub holder: ShardHolder,
    /// Its own shards. Those of a list are one partial.
    pub groups: Vec<Vec<u32>>,
    /// Hosts that it asks in its turn.
    pub below: Vec<Route>,
    /// As of [`RelayOrder`].
    pub merges: Vec<Vec<u32>>,
}

impl Route {
    /// Whether the host answers for its own shards only, each group by itself.
    pub fn is_plain(&self) -> bool {
        self.below.is_empty() && self.merges.is_empty()
    }

    /// Whether a channel for what `other` says serves for it, or for some of it.
    pub fn covers(&self, other: &Self) -> bool {
        fn of(route: &Route) -> (&str, &[Endpoint]) {
            (&route.holder.host, &route.holder.endpoints)
        }
        let some = || other.holder.blocks.iter().all(|block| self.holder.blocks.contains(block));
        self == other || (self.is_plain() && other.is_plain() && of(self) == of(other) && some())
    }

    /// What there is a channel for already is not asked again.
    pub fn leave_to(&mut self, other: &Self) {
        self.holder.blocks.retain(|block| !other.holder.blocks.contains(block));
        let left = |group: Vec<u32>| match group.iter().any(|block| other.holder.blocks.contains(block)) {
            false => vec![group],
            true => {
                group.into_iter().filter(|block| self.holder.blocks.contains(block)).map(|block| vec![block]).collect()
            }
        };
        self.groups = std::mem::take(&mut self.groups).into_iter().flat_map(left).collect();
    }

    /// Whether a host has to do with it.
    pub fn leads_to(&self, host: &str) -> bool {
        self.holder.host == host || self.below.iter().any(|below| below.leads_to(host))
    }

    /// As the host is told.
    pub fn attach(&self, attachment: u64, asked: &AskedContext) -> Attach {
        let below = self.below.iter().map(|route| RelayChild {
            host: route.holder.host.clone(),
            endpoints: route.holder.endpoints.clone(),
            answers: route.answers(),
            opening: ChannelOpening::Attach(Attach { hands_over: false, ..route.attach(attachment, asked) })
                .archive()
                .to_vec(),
        });
        let relay = RelayOrder { below: below.collect(), merges: self.merges.clone() };
        let blocks: BTreeSet<u32> = self.groups.iter().flatten().copied().collect();
        let own = |hidden: &&HiddenKeys| blocks.contains(&hidden.block);
        let hidden = asked.hidden.iter().filter(own).cloned().collect();
        let AskedContext { context, ticket, .. } = *asked;
        Attach { attachment, context, groups: self.groups.clone(), hidden, relay, hands_over: true, ticket }
    }

    /// The shards of each partial that the host answers with.
    pub fn answers(&self) -> Vec<Vec<u32>> {
        let partials = self.groups.iter().cloned().chain(self.below.iter().flat_map(Self::answers));
        let answers = unmerged(partials, &self.merges).expect("each partial there is is merged once");
        answers.into_iter().map(|(_, shards)| shards).collect()
    }

    /// Partials that the host receives, and those that each below it does.
    pub fn received<'a>(&'a self, by: &mut BTreeMap<&'a str, usize>) {
        *by.entry(&self.holder.host).or_default() +=
            self.below.iter().map(|below| below.answers().len()).sum::<usize>();
        self.below.iter().for_each(|below| below.received(by));
    }
}

/// Whom to ask for the shards of a context. A shard is asked of the first that is said to hold it, or of nobody.
pub fn routes(tree: &MergeTree, fan_in: u32, holders: &[ShardHolder]) -> Vec<Route> {
    let mut map = Map::new(tree, fan_in, holders);
    let pieces = map.pieces(tree.top());
    let mut hosts: Vec<usize> = pieces.iter().map(|piece| piece.host).collect();
    hosts.sort_unstable();
    hosts.dedup();
    hosts.into_iter().map(|host| map.route(host, pieces.iter().filter(|piece| piece.host == host))).collect()
}

/// Who holds what.
struct Map<'a> {
    tree: &'a MergeTree,
    fan_in: usize,
    holders: &'a [ShardHolder],
    /// By node: the host that holds all of it.
    whole: Vec<Option<usize>>,
    /// By node: whether each of its shards is held by somebody.
    held: Vec<bool>,
    /// Partials that each host receives.
    received: Vec<usize>,
}

/// A partial at a host.
struct HostPartial {
    node: usize,
    host: usize,
    /// What the host merges it from; nothing where it holds all of it.
    from: Vec<HostPartial>,
}

/// A partial as a host sees it before it numbers them.
enum PartialSlot {
    Own(usize),
    Below(usize, usize),
    Merged(usize),
}

/// What a host does, being put together.
#[derive(Default)]
struct HostWork<'p> {
    groups: Vec<Vec<u32>>,
    merges: Vec<Vec<PartialSlot>>,
    /// Pieces of other hosts, by host.
    others: BTreeMap<usize, Vec<&'p HostPartial>>,
}

impl<'a> Map<'a> {
    fn new(tree: &'a MergeTree, fan_in: u32, holders: &'a [ShardHolder]) -> Self {
        let (mut whole, mut held) = (vec![None; tree.nodes().len()], vec![false; tree.nodes().len()]);
        let places =
            holders.iter().enumerate().flat_map(|(host, of)| of.blocks.iter().map(move |block| (*block, host)));
        for (block, host) in places.filter(|(block, _)| (*block as usize) < tree.shards()) {
            let block = block as usize;
            (whole[block], held[block]) = (whole[block].or(Some(host)), true);
        }
        for (node, of) in tree.nodes().iter().enumerate().filter(|(_, node)| !node.inputs.is_empty()) {
            let first = whole[of.inputs[0]];
            whole[node] = first.filter(|_| of.inputs.iter().all(|input| whole[*input] == first));
            held[node] = of.inputs.iter().all(|input| held[*input]);
        }
        Self { tree, fan_in: fan_in.max(2) as usize, holders, whole, held, received: vec![0; holders.len()] }
    }

    /// Partials of these nodes for whoever merges them: as they lie if they are few, else those of a node merged by a host.
    fn pieces(&mut self, nodes: &[usize]) -> Vec<HostPartial> {
        let mut open = Vec::new();
        nodes.iter().for_each(|node| self.open(*node, &mut open));
        if open.len() <= self.fan_in { open } else { nodes.iter().flat_map(|node| self.merged(*node)).collect() }
    }

    /// The largest partials of a node that need no merge of what several hosts have.
    fn open(&self, node: usize, pieces: &mut Vec<HostPartial>) {
        match self.whole[node] {
            Some(host) => pieces.push(HostPartial { node, host, from: Vec::new() }),
            None => self.tree.nodes()[node].inputs.iter().for_each(|input| self.open(*input, pieces)),
        }
    }

    /// A node's partial, merged by the host of those that have some of it which receives least so far.
    fn merged(&mut self, node: usize) -> Vec<HostPartial> {
        if self.whole[node].is_some() || !self.held[node] {
            let mut open = Vec::new();
            self.open(node, &mut open);
            return open;
        }
        let tree = self.tree;
        let from = self.pieces(&tree.nodes()[node].inputs);
        let host = from.iter().map(|piece| piece.host).min_by_key(|host| self.received[*host]);
        let host = host.expect("a node has inputs, and each is held");
        self.received[host] += from.iter().filter(|piece| piece.host != host).count();
        vec![HostPartial { node, host, from }]
    }

    /// What a host is asked that is to have these pieces.
    fn route<'p>(&self, host: usize, pieces: impl Iterator<Item = &'p HostPartial>) -> Route {
        let mut work = HostWork::default();
        for piece in pieces {
            self.place(host, piece, &mut work);
        }
        let HostWork { groups, merges, others } = work;
        let below: Vec<Route> =
            others.iter().map(|(other, pieces)| self.route(*other, pieces.iter().copied())).collect();
        let (mut places, mut next) = (HashMap::new(), groups.len());
        for (route, other) in below.iter().zip(others.keys()) {
            for shards in route.answers() {
                let node = self.tree.find(shards.into_iter()).expect("it is a node of the tree");
                places.insert((*other, node), next);
                next += 1;
            }
        }
        let number = |slot: PartialSlot| match slot {
            PartialSlot::Own(at) => at as u32,
            PartialSlot::Below(other, node) => places[&(other, node)] as u32,
            PartialSlot::Merged(at) => (next + at) as u32,
        };
        let merges = merges.into_iter().map(|inputs| inputs.into_iter().map(number).collect()).collect();
        let ShardHolder { host, endpoints, .. } = &self.holders[host];
        let holder = ShardHolder { host: host.clone(), endpoints: endpoints.clone(), blocks: Vec::new() };
        let mut route = Route { holder, groups, below, merges };
        route.holder.blocks = route.answers().concat();
        route.holder.blocks.sort_unstable();
        route
    }

    fn place<'p>(&self, host: usize, piece: &'p HostPartial, work: &mut HostWork<'p>) -> PartialSlot {
        if piece.host != host {
            work.others.entry(piece.host).or_default().push(piece);
            return PartialSlot::Below(piece.host, piece.node);
        }
        match &piece.from[..] {
            [] => self.own(piece.node, work),
            from => {
                let from = from.iter().map(|piece| (piece.node, piece)).collect();
                self.merge(host, piece.node, &from, work)
            }
        }
    }

    fn own(&self, node: usize, work: &mut HostWork<'_>) -> PartialSlot {
        let of = &self.tree.nodes()[node];
        if of.height <= 1 {
            work.groups.push(of.shards.clone());
            return PartialSlot::Own(work.groups.len() - 1);
        }
        let inputs = of.inputs.iter().map(|input| self.own(*input, work)).collect();
        work.merges.push(inputs);
        PartialSlot::Merged(work.merges.len() - 1)
    }

    fn merge<'p>(
        &self,
        host: usize,
        node: usize,
        from: &HashMap<usize, &'p HostPartial>,
        work: &mut HostWork<'p>,
    ) -> PartialSlot {
        if let Some(piece) = from.get(&node) {
            return self.place(host, piece, work);
        }
        let inputs = &self.tree.nodes()[node].inputs;
        let inputs = inputs.iter().map(|input| self.merge(host, *input, from, work)).collect();
        work.merges.push(inputs);
        PartialSlot::Merged(work.merges.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use asterism_plan::{FAN_IN, KeptShard};
    use proptest::prelude::*;

    use super::*;

    fn tree(groups: impl Iterator<Item = u32>, fan_in: u32) -> MergeTree {
        let shards: Vec<KeptShard> = groups.map(|group| KeptShard { keys: 8, group }).collect();
        MergeTree::new(&shards, fan_in)
    }

    fn holder(host: usize, blocks: Vec<u32>) -> ShardHolder {
        ShardHolder { host: format!("c{host}"), endpoints: Vec::new(), blocks }
    }

    /// Partials that the query host receives, and the most that any other does.
    fn received(routes: &[Route]) -> (usize, usize) {
        let mut by = BTreeMap::new();
        routes.iter().for_each(|route| route.received(&mut by));
        (routes.iter().map(|route| route.answers().len()).sum(), by.into_values().max().unwrap_or(0))
    }

    #[test]
    fn a_holder_merges_the_groups_that_it_has_all_of() {
        let tree = tree([0, 0, 1, 2, 1].into_iter(), FAN_IN);
        let groups = |blocks: &[u32]| routes(&tree, FAN_IN, &[holder(0, blocks.to_vec())])[0].groups.clone();
        assert_eq!(groups(&[0, 1, 2, 3, 4]), [vec![0, 1], vec![2, 4], vec![3]]);
        assert_eq!(groups(&[0, 2, 3]), [vec![0], vec![2], vec![3]]);
        assert_eq!(groups(&[1, 2, 4]), [vec![1], vec![2, 4]]);
    }

    #[test]
    fn no_host_of_a_thousand_receives_more_than_32_partials() {
        let (hosts, each) = (1024, 8);
        let tree = tree((0..hosts * each).map(|block| block / each), FAN_IN);
        let blocks = |host: u32| (host * each..(host + 1) * each).collect::<Vec<_>>();
        let mut holders: Vec<ShardHolder> = (0..hosts).map(|host| holder(host as usize, blocks(host))).collect();
        let whole = routes(&tree, FAN_IN, &holders);
        assert_eq!((whole.len(), received(&whole)), (32, (32, 31)));
        // A host is lost, and its shards are dealt to others.
        let lost = holders.remove(70).blocks;
        lost.into_iter().for_each(|block| holders[block as usize % 1000].blocks.push(block));
        let repaired = routes(&tree, FAN_IN, &holders);
        let (query, others) = received(&repaired);
        assert!(query <= 32 && others <= 32, "{query} {others}");
        let same = repaired.iter().filter(|route| whole.contains(route)).count();
        assert!(same >= 31, "what has nothing to do with it stays: {same}");
        // And now lies with nobody: what can be asked is asked.
        holders.iter_mut().for_each(|holder| holder.blocks.retain(|block| *block != 560));
        let answered: usize = routes(&tree, FAN_IN, &holders).iter().map(|route| route.holder.blocks.len()).sum();
        assert_eq!(answered, (hosts * each) as usize - 1);
    }

    #[test]
    fn five_hosts_in_twos() {
        let tree = tree(0..5, 2);
        let holders: Vec<ShardHolder> = (0..5).map(|host| holder(host as usize, vec![host])).collect();
        let routes = routes(&tree, 2, &holders);
        let hosts: Vec<(&str, &[u32])> =
            routes.iter().map(|route| (&route.holder.host[..], &route.holder.blocks[..])).collect();
        assert_eq!(hosts, [("c0", &[0][..]), ("c1", &[1, 2, 3, 4][..])]);
        assert_eq!(received(&routes), (2, 2));
        assert!(routes[1].leads_to("c4") && !routes[1].leads_to("c0"));
    }

    proptest! {
        /// Wherever shards lie, each is asked once, by merges of the tree.
        #[test]
        fn every_shard_is_asked_once(
            groups in prop::collection::vec(0_u32..12, 1..40),
            hosts in prop::collection::vec(prop::option::weighted(0.95, 0_usize..9), 40),
            fan_in in 2_u32..6,
        ) {
            let tree = tree(groups.iter().copied(), fan_in);
            let held = |host: usize| (0..groups.len()).filter(|block| hosts[*block] == Some(host)).collect::<Vec<_>>();
            let holders: Vec<ShardHolder> =
                (0..9).map(|host| holder(host, held(host).into_iter().map(|block| block as u32).collect())).collect();
            let routes = routes(&tree, fan_in, &holders);
            let mut asked: Vec<u32> = routes.iter().flat_map(|route| route.holder.blocks.clone()).collect();
            asked.sort_unstable();
            let expected: Vec<u32> = (0..groups.len() as u32).filter(|block| hosts[*block as usize].is_some()).collect();
            prop_assert_eq!(&asked, &expected);
            let partials: Vec<Vec<u32>> = routes.iter().flat_map(Route::answers).collect();
            prop_assert!(partials.iter().all(|shards| tree.find(shards.iter().copied()).is_some()));
            prop_assert!(asked.len() < groups.len() || partials.len() <= fan_in as usize);
            let asked_context = AskedContext { context: 2, ticket: Ticket::default(), hidden: Vec::new(), trace: None };
            let mut open = routes.iter().collect::<Vec<_>>();
            while let Some(route) = open.pop() {
                let reported = route.attach(1, &asked_context);
                let answers = reported.relay.answers(&reported.groups).expect("it can be merged");
                prop_assert!(answers.into_iter().map(|(_, shards)| shards).eq(route.answers()));
                open.extend(&route.below);
            }
        }
    }
}
