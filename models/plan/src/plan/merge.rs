//! In which order partials of phase 2 are merged: shards of a group, groups, and where these are many, groups of groups. A value
//! of the plan alone: who merges what may change, the bits do not.

// The archived twins that rkyv derives carry no docs of their own.
#![allow(missing_docs)]

use std::collections::BTreeMap;

use rkyv::Archive;

/// Most partials that are merged at a time above the groups, unless a plan says otherwise.
pub const FAN_IN: u32 = 32;

/// What phase 2 finds of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Archive, rkyv::Serialize, rkyv::Deserialize)]
pub struct KeptShard {
    /// Its keys.
    pub keys: u64,
    /// The shards of a group are merged first, then the groups, as [`MergeTree`] says. So a host answers with
    /// one partial a group that it has all shards of, and bits are the plan's whoever merges.
    pub group: u32,
}

/// What is merged with what. Every node has at least two inputs, or is a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergeTree {
    /// Inputs stand before what they are merged to.
    nodes: Vec<MergeNode>,
    /// What the query host merges with its own part, in order.
    top: Vec<usize>,
    /// Nodes by their first shard and number of shards.
    starts: Vec<(u32, usize, usize)>,
}

/// A shard, or what its inputs are merged to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergeNode {
    /// The shards in it, in merge order.
    pub shards: Vec<u32>,
    /// Nodes that are merged to it, in order; none for a shard.
    pub inputs: Vec<usize>,
    /// Merges on the longest way from a shard.
    pub height: usize,
}

impl MergeTree {
    /// Shards of a group are merged first, in order; then the groups in the order of their first shards, neighbours at a time
    /// and evenly, until at most `fan_in` (2 at least) partials are left.
    pub fn new(shards: &[KeptShard], fan_in: u32) -> Self {
        let fan_in = fan_in.max(2) as usize;
        let shard = |block: usize| MergeNode { shards: vec![block as u32], inputs: Vec::new(), height: 0 };
        let mut tree = Self { nodes: (0..shards.len()).map(shard).collect(), top: Vec::new(), starts: Vec::new() };
        let mut groups: Vec<Vec<usize>> = Vec::new();
        let mut places = BTreeMap::new();
        for (block, KeptShard { group, .. }) in shards.iter().enumerate() {
            let place = *places.entry(*group).or_insert(groups.len());
            if place == groups.len() {
                groups.push(Vec::new());
            }
            groups[place].push(block);
        }
        tree.top = groups.into_iter().map(|group| tree.merge(group)).collect();
        while tree.top.len() > fan_in {
            let (all, left) = (std::mem::take(&mut tree.top), &mut 0);
            let nodes = all.len().div_ceil(fan_in);
            for node in 0..nodes {
                let inputs = all[*left..(node + 1) * all.len() / nodes].to_vec();
                *left += inputs.len();
                let merged = tree.merge(inputs);
                tree.top.push(merged);
            }
        }
        let start = |(at, node): (usize, &MergeNode)| Some((*node.shards.first()?, node.shards.len(), at));
        tree.starts = tree.nodes.iter().enumerate().filter_map(start).collect();
        tree.starts.sort_unstable();
        tree
    }

    /// The nodes; inputs stand before what they are merged to.
    pub fn nodes(&self) -> &[MergeNode] {
        &self.nodes
    }

    /// What the query host merges with its own part, in order.
    pub fn top(&self) -> &[usize] {
        &self.top
    }

    /// Shards of the plan.
    pub fn shards(&self) -> usize {
        self.nodes.iter().take_while(|node| node.inputs.is_empty()).count()
    }

    /// The node of these shards, in this order; none where the plan merges them otherwise.
    pub fn find(&self, mut shards: impl ExactSizeIterator<Item = u32>) -> Option<usize> {
        let (count, first) = (shards.len(), shards.next()?);
        let at = self.starts.binary_search_by_key(&(first, count), |(first, count, _)| (*first, *count)).ok()?;
        let node = self.starts[at].2;
        self.nodes[node].shards[1..].iter().copied().eq(shards).then_some(node)
    }

    fn merge(&mut self, inputs: Vec<usize>) -> usize {
        if let [one] = inputs[..] {
            return one;
        }
        let of = |input: &usize| &self.nodes[*input];
        let shards = inputs.iter().flat_map(|input| of(input).shards.iter().copied()).collect();
        let height = 1 + inputs.iter().map(|input| of(input).height).max().unwrap_or(0);
        self.nodes.push(MergeNode { shards, inputs, height });
        self.nodes.len() - 1
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tree(groups: &[u32], fan_in: u32) -> MergeTree {
        let shards: Vec<KeptShard> = groups.iter().map(|&group| KeptShard { keys: 8, group }).collect();
        MergeTree::new(&shards, fan_in)
    }

    /// As shards in brackets.
    fn drawn(tree: &MergeTree, node: usize) -> String {
        let MergeNode { shards, inputs, .. } = &tree.nodes()[node];
        match inputs[..] {
            [] => shards[0].to_string(),
            _ => format!("({})", inputs.iter().map(|input| drawn(tree, *input)).collect::<Vec<_>>().join(" ")),
        }
    }

    fn top(tree: &MergeTree) -> Vec<String> {
        tree.top().iter().map(|node| drawn(tree, *node)).collect()
    }

    #[test]
    fn groups_first_then_neighbours() {
        assert_eq!(top(&tree(&[0, 1, 2, 1, 0], 32)), ["(0 4)", "(1 3)", "2"]);
        assert_eq!(top(&tree(&[0, 1, 2, 3, 4], 2)), ["0", "((1 2) (3 4))"]);
        assert_eq!(top(&tree(&[0, 1, 2, 2, 0], 2)), ["(0 4)", "(1 (2 3))"]);
        assert_eq!(top(&tree(&[], 2)), [""; 0]);
    }

    #[test]
    fn a_thousand_hosts_are_two_levels() {
        let tree = tree(&(0..1024).collect::<Vec<_>>(), FAN_IN);
        assert_eq!(tree.top().len(), 32);
        assert!(tree.top().iter().all(|node| tree.nodes()[*node].inputs.len() == 32));
    }

    proptest! {
        #[test]
        fn every_shard_is_merged_once(groups in prop::collection::vec(0_u32..40, 1..80), fan_in in 0_u32..9) {
            let tree = tree(&groups, fan_in);
            let mut shards: Vec<u32> =
                tree.top().iter().flat_map(|node| tree.nodes()[*node].shards.clone()).collect();
            shards.sort_unstable();
            prop_assert_eq!(shards, (0..groups.len() as u32).collect::<Vec<_>>());
            prop_assert!(tree.top().len() <= fan_in.max(2) as usize);
            prop_assert_eq!(tree.shards(), groups.len());
            for (at, node) in tree.nodes().iter().enumerate() {
                prop_assert_eq!(tree.find(node.shards.iter().copied()), Some(at));
                prop_assert!(node.inputs.iter().all(|input| *input < at) && node.inputs.len() != 1);
                let of_groups = node.height > 0 && node.inputs.iter().any(|input| tree.nodes()[*input].height > 0);
                prop_assert!(!of_groups || node.inputs.len() <= fan_in.max(2) as usize);
            }
        }
    }
}
