//! Islands from measured links, where no label names one. A pure function of what was measured; measures nothing.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use crate::api::LinkSpeed;

/// Rates that differ by less are of one class of links.
const CLASS_FACTOR: f64 = 2.0;

/// A host, and the island that its label names.
#[derive(Clone, Copy, Debug)]
pub struct MeasuredHost<'a> {
    /// Its name.
    pub name: &'a str,
    /// Machine it runs on.
    pub node: &'a str,
    /// Its island, where a label names one.
    pub island: Option<&'a str>,
}

/// Two machines, the first by name before the second.
type NodePair<'a> = (&'a str, &'a str);

/// The islands of hosts that no label gives one, by name, as far as links between machines are of two classes at least: machines each
/// two of which have a link of the better ones are an island. Where a label names the island of some, the others on these machines are
/// of that; else it is called after the first machine.
pub fn measured_islands(links: &[LinkSpeed], hosts: &[MeasuredHost]) -> BTreeMap<String, String> {
    let rates = rates(links, hosts);
    let Some(least) = least_of_better(rates.values().copied().collect()) else { return BTreeMap::new() };
    let fast: BTreeMap<NodePair, f64> = rates.into_iter().filter(|(_, rate)| *rate >= least).collect();
    let mut islands = BTreeMap::new();
    for group in groups(&fast) {
        let own = || hosts.iter().filter(|host| group.contains(host.node));
        let labelled: BTreeSet<&str> = own().filter_map(|host| host.island).collect();
        let name = match (labelled.len(), labelled.first(), group.first()) {
            (0, _, Some(first)) => format!("near-{first}"),
            (1, Some(label), _) => (*label).to_owned(),
            _ => continue,
        };
        let unlabelled = own().filter(|host| host.island.is_none());
        islands.extend(unlabelled.map(|host| (host.name.to_owned(), name.clone())));
    }
    islands
}

/// Bytes in a second between two machines: the least of what was measured between their hosts, one way and the other.
fn rates<'a>(links: &[LinkSpeed], hosts: &[MeasuredHost<'a>]) -> BTreeMap<NodePair<'a>, f64> {
    let nodes: BTreeMap<&str, &'a str> = hosts.iter().map(|host| (host.name, host.node)).collect();
    let mut rates: BTreeMap<NodePair, f64> = BTreeMap::new();
    for link in links {
        let (Some(from), Some(to)) = (nodes.get(link.from.as_str()), nodes.get(link.to.as_str())) else { continue };
        let Some(rate) = link.bytes_per_s.filter(|rate| from != to && rate.is_finite() && *rate > 0.0) else {
            continue;
        };
        let least = rates.entry((*from.min(to), *from.max(to))).or_insert(rate);
        *least = least.min(rate);
    }
    rates
}

/// The least rate of the better class, where the widest step between two rates parts two.
fn least_of_better(mut rates: Vec<f64>) -> Option<f64> {
    rates.sort_by(f64::total_cmp);
    let steps = rates.windows(2).map(|two| (two[1] / two[0], two[1]));
    let widest = steps.max_by(|(one, _), (other, _)| one.total_cmp(other))?;
    (widest.0 >= CLASS_FACTOR).then_some(widest.1)
}

/// Machines each two of which have such a link, at least two: the fastest links are looked at first.
fn groups<'a>(fast: &BTreeMap<NodePair<'a>, f64>) -> Vec<BTreeSet<&'a str>> {
    let mut groups: Vec<BTreeSet<&str>> = fast
        .keys()
        .flat_map(|(one, other)| [*one, *other])
        .collect::<BTreeSet<_>>()
        .into_iter()
        .map(|node| [node].into())
        .collect();
    let mut pairs: Vec<(NodePair, f64)> = fast.iter().map(|(pair, rate)| (*pair, *rate)).collect();
    pairs.sort_by_key(|(pair, rate)| (Reverse(rate.to_bits()), *pair));
    for ((one, other), _) in pairs {
        let at = |node: &str| groups.iter().position(|group| group.contains(node)).expect("each is in one");
        let (first, second) = (at(one).min(at(other)), at(one).max(at(other)));
        let near = |a: &&str| groups[second].iter().all(|b| fast.contains_key(&(*a.min(b), *a.max(b))));
        if first != second && groups[first].iter().all(near) {
            let joined = groups.remove(second);
            groups[first].extend(joined);
        }
    }
    groups.retain(|group| group.len() > 1);
    groups
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn link(from: &str, to: &str, bytes_per_s: f64) -> LinkSpeed {
        LinkSpeed { from: from.into(), to: to.into(), bytes_per_s: Some(bytes_per_s), ..LinkSpeed::default() }
    }

    /// A host `c` on each node, with its label.
    fn hosts<'a>(of: &[(&'a str, &'a str, Option<&'a str>)]) -> Vec<MeasuredHost<'a>> {
        of.iter().map(|&(name, node, island)| MeasuredHost { name, node, island }).collect()
    }

    fn said(links: &[LinkSpeed], hosts: &[MeasuredHost]) -> String {
        let said = measured_islands(links, hosts).into_iter().map(|(host, island)| format!("{host}:{island}"));
        said.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn machines_behind_one_switch_are_an_island() {
        let four = hosts(&[
            ("c0", "m0", None),
            ("c1", "m1", None),
            ("c2", "m2", None),
            ("c3", "m3", None),
            ("c4", "m0", None),
        ]);
        let between = |near: f64, far: f64| {
            [
                link("c0", "c1", near),
                link("c1", "c0", 1.3 * near),
                link("c2", "c3", 1.1 * near),
                link("c0", "c2", far),
                link("c0", "c3", far),
                link("c1", "c2", 0.9 * far),
                link("c1", "c3", far),
            ]
        };
        assert_eq!(said(&between(12e9, 3e9), &four), "c0:near-m0 c1:near-m0 c2:near-m2 c3:near-m2 c4:near-m0");
        assert_eq!(said(&between(12e9, 8e9), &four), "", "they are of one class");
        // One way is slow, and then so is the link; of another nothing is known.
        let mut slow = between(12e9, 3e9).to_vec();
        slow.push(link("c3", "c2", 3e9));
        assert_eq!(said(&slow, &four), "c0:near-m0 c1:near-m0 c4:near-m0");
        assert_eq!(said(&[], &four), "");
        assert_eq!(said(&[link("c0", "c1", 1e9)], &four), "", "one link says nothing of another");
    }

    #[test]
    fn labels_stand_and_name_what_was_measured_beside_them() {
        let links = [link("c0", "c1", 9e9), link("c1", "c2", 1e9), link("c0", "c2", 1e9)];
        let labelled = |island| hosts(&[("c0", "m0", island), ("c1", "m1", None), ("c2", "m2", Some("far"))]);
        assert_eq!(said(&links, &labelled(Some("leaf-7"))), "c1:leaf-7");
        assert_eq!(said(&links, &labelled(None)), "c0:near-m0 c1:near-m0");
        let two = hosts(&[("c0", "m0", Some("a")), ("c1", "m1", Some("b")), ("c2", "m2", None), ("c3", "m1", None)]);
        assert_eq!(said(&links, &two), "", "labels say otherwise than the links");
    }

    #[test]
    fn a_machine_near_to_two_that_are_far_from_each_other_joins_one() {
        let three = hosts(&[("c0", "m0", None), ("c1", "m1", None), ("c2", "m2", None)]);
        let links = [link("c0", "c1", 9e9), link("c1", "c2", 8e9), link("c0", "c2", 1e9)];
        assert_eq!(said(&links, &three), "c0:near-m0 c1:near-m0");
        let failed = LinkSpeed { bytes_per_s: None, error: Some("gone".into()), ..links[2].clone() };
        assert_eq!(
            said(&[links[0].clone(), links[1].clone(), failed], &three),
            "",
            "of one class is what was measured"
        );
    }

    proptest! {
        #[test]
        fn each_two_machines_of_an_island_have_a_better_link_than_any_other_class(
            rates in prop::collection::vec(prop_oneof![1e9..1.5e9, 8e9..12e9], 15),
        ) {
            let names: Vec<(String, String)> = (0..6).map(|at| (format!("c{at}"), format!("m{at}"))).collect();
            let hosts: Vec<MeasuredHost> =
                names.iter().map(|(name, node)| MeasuredHost { name, node, island: None }).collect();
            let pairs = (0..6).flat_map(|one| (one + 1..6).map(move |other| (one, other)));
            let links: Vec<LinkSpeed> =
                pairs.zip(&rates).map(|((one, other), rate)| link(&names[one].0, &names[other].0, *rate)).collect();
            let islands = measured_islands(&links, &hosts);
            for link in &links {
                let same = islands.get(&link.from).is_some_and(|island| islands.get(&link.to) == Some(island));
                prop_assert!(!same || link.bytes_per_s > Some(7e9), "{link:?} {islands:?}");
            }
            let alike = rates.iter().all(|rate| *rate > 7e9) || rates.iter().all(|rate| *rate < 7e9);
            prop_assert_eq!(islands.is_empty(), alike);
        }
    }
}
