//! Which host gets which shard of a plan, or why none can. A pure function of its arguments; it moves nothing.

mod candidate;
mod equals;
mod explained;
mod host_order;
mod islands;
mod measured;
#[cfg(test)]
mod reference;

use std::collections::{BTreeMap, BTreeSet};

pub use candidate::{Candidate, Demand, FailureDomain, ISLAND_LABEL, RACK_LABEL, Wanted, island_of};
pub use equals::{MixedNumerics, place_among_equals};
pub use explained::{NotTaken, explain};
use host_order::{HostOrder, deal_tightly};
pub use measured::{MeasuredHost, measured_islands};

use crate::error::PlacementRefusal;

/// The host of each demand, in their order.
///
/// Shards that pass each other something go to one island where one has room. Otherwise, and within it: lower ranks first, then the
/// least detour, then hosts with fewer shards, then as the policy arranges, then by index. Where shards are of equal size, a
/// placement is found whenever there is one.
pub fn place(wanted: &Wanted, candidates: &[Candidate]) -> Result<Vec<usize>, PlacementRefusal> {
    let Wanted { demands, policy, exchanges } = *wanted;
    let shards = demands.len();
    if candidates.is_empty() {
        return Err(PlacementRefusal::NoHost { shards });
    }
    let matching: Vec<Candidate> =
        candidates.iter().filter(|candidate| candidate.carries(&policy.labels)).copied().collect();
    if matching.is_empty() {
        return Err(no_such_labels(candidates, &policy.labels));
    }
    if let Some(placed) = exchanges.then(|| islands::within_one(wanted, &matching)).flatten() {
        return Ok(placed);
    }
    let order = HostOrder::new(&matching, wanted, &islands_in_turn(wanted, &matching));
    order.deal_groups(demands).or_else(|| deal_tightly(&matching, demands)).ok_or_else(|| {
        PlacementRefusal::NotEnoughMemory {
            shards,
            needed: demands.iter().fold(0, |sum, demand| sum.saturating_add(demand.kv_bytes)),
            largest: demands.iter().map(|demand| demand.kv_bytes).max().unwrap_or(0),
            free: matching.iter().filter_map(|candidate| Some((candidate.host, candidate.free_bytes?))).collect(),
        }
    })
}

/// Which islands come first, where that counts.
fn islands_in_turn<'a>(wanted: &Wanted, matching: &[Candidate<'a>]) -> BTreeMap<&'a str, usize> {
    if wanted.exchanges { islands::in_turn(matching) } else { BTreeMap::new() }
}

fn no_such_labels(candidates: &[Candidate], wanted: &BTreeMap<String, String>) -> PlacementRefusal {
    let known = |key: &String| {
        let values: BTreeSet<&str> =
            candidates.iter().filter_map(|candidate| candidate.labels.get(key)).map(String::as_str).collect();
        match values.is_empty() {
            true => format!("no host has a label {key}"),
            false => format!("{key} is {}", values.into_iter().collect::<Vec<_>>().join(" or ")),
        }
    };
    PlacementRefusal::NoSuchLabels {
        hosts: candidates.len(),
        wanted: wanted.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(", "),
        known: wanted.keys().map(known).collect::<Vec<_>>().join(", "),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::api::{Arrangement, PlacementPolicy};

    /// A host of a test: node, labels, rank, detour, room, shards it has.
    #[derive(Clone, Debug)]
    struct Host {
        node: String,
        labels: BTreeMap<String, String>,
        rank: u8,
        detour: u8,
        free: Option<u64>,
        busy: usize,
    }

    fn labels(of: &[(&str, &str)]) -> BTreeMap<String, String> {
        of.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
    }

    /// Hosts on these nodes, with unlimited memory and nothing to do.
    fn hosts(nodes: &[&str]) -> Vec<Host> {
        let host = |node: &&str| {
            let (node, labels) = (node.to_string(), labels(&[]));
            Host { node, labels, rank: 0, detour: 0, free: None, busy: 0 }
        };
        nodes.iter().map(host).collect()
    }

    fn limited(free: &[u64]) -> Vec<Host> {
        let mut hosts = hosts(&vec!["a"; free.len()]);
        hosts.iter_mut().zip(free).for_each(|(host, &free)| host.free = Some(free));
        hosts
    }

    fn candidates(hosts: &[Host]) -> Vec<Candidate<'_>> {
        let candidate = |(host, of): (usize, &Host)| Candidate {
            host,
            node: hosts[host].node.as_str(),
            labels: &hosts[host].labels,
            rank: of.rank,
            detour: of.detour,
            free_bytes: of.free,
            busy: of.busy,
            numerics: None,
        };
        hosts.iter().enumerate().map(candidate).collect()
    }

    fn placed(hosts: &[Host], demands: &[Demand], policy: &PlacementPolicy) -> Result<Vec<usize>, PlacementRefusal> {
        place(&Wanted { demands, policy, exchanges: false }, &candidates(hosts))
    }

    /// The same of shards that pass each other something.
    fn placed_near(hosts: &[Host], demands: &[Demand]) -> Option<Vec<usize>> {
        let policy = &PlacementPolicy::default();
        place(&Wanted { demands, policy, exchanges: true }, &candidates(hosts)).ok()
    }

    /// The same by looking at every host for every shard.
    fn looked_up(hosts: &[Host], wanted: &Wanted) -> Option<Vec<usize>> {
        let (candidates, demands) = (candidates(hosts), wanted.demands);
        let islands = islands_in_turn(wanted, &candidates);
        let order = reference::ReferenceHostOrder::new(candidates, wanted.policy.arrangement, islands);
        order.clone().deal_groups(demands).or_else(|| order.deal_tightly(demands))
    }

    /// One shard for each logical host.
    fn each(count: usize, kv_bytes: u64) -> Vec<Demand> {
        (0..count).map(|at| Demand { block: at, logical: at, kv_bytes }).collect()
    }

    fn pack() -> PlacementPolicy {
        PlacementPolicy { arrangement: Arrangement::Pack, ..PlacementPolicy::default() }
    }

    #[test]
    fn one_device_is_dealt_in_order_and_wraps_around() {
        let policy = PlacementPolicy::default();
        assert_eq!(placed(&hosts(&["a"; 4]), &each(4, 9), &policy), Ok(vec![0, 1, 2, 3]));
        assert_eq!(placed(&hosts(&["a"; 2]), &each(5, 9), &policy), Ok(vec![0, 1, 0, 1, 0]));
        assert_eq!(placed(&hosts(&["a"; 2]), &[], &policy), Ok(vec![]));
        let mut some_busy = hosts(&["a"; 3]);
        some_busy[0].busy = 2;
        assert_eq!(placed(&some_busy, &each(4, 9), &policy), Ok(vec![1, 2, 1, 2]));
    }

    #[test]
    fn nodes_are_taken_in_turn_or_filled() {
        let nodes = hosts(&["a", "a", "b", "b", "b"]);
        assert_eq!(placed(&nodes, &each(5, 9), &PlacementPolicy::default()), Ok(vec![0, 2, 1, 3, 4]));
        assert_eq!(placed(&nodes, &each(3, 9), &pack()), Ok(vec![2, 3, 4]));
        assert_eq!(placed(&nodes, &each(6, 9), &pack()), Ok(vec![2, 3, 4, 0, 1, 0]));
    }

    #[test]
    fn shards_of_one_logical_host_stay_together_when_they_fit() {
        let shard = |block, logical| Demand { block, logical, kv_bytes: 10 };
        let zigzag = [shard(0, 0), shard(1, 1), shard(2, 1), shard(3, 0)];
        let policy = PlacementPolicy::default();
        assert_eq!(placed(&limited(&[20, 20]), &zigzag, &policy), Ok(vec![0, 1, 1, 0]));
        assert_eq!(placed(&limited(&[10, 20, 10]), &zigzag, &policy), Ok(vec![1, 0, 2, 1]));
        assert_eq!(placed(&limited(&[15, 19, 19, 19]), &zigzag, &policy), Ok(vec![0, 2, 3, 1]));
    }

    #[test]
    fn spares_are_last() {
        let mut with_spare = limited(&[100, 20, 20]);
        with_spare[0].rank = 1;
        let policy = PlacementPolicy::default();
        assert_eq!(placed(&with_spare, &each(4, 10), &policy), Ok(vec![1, 2, 1, 2]));
        assert_eq!(placed(&with_spare, &each(5, 10), &policy), Ok(vec![1, 2, 1, 2, 0]));
        assert_eq!(placed(&with_spare[..1], &each(1, 10), &policy), Ok(vec![0]));
    }

    #[test]
    fn unequal_shards_are_packed_when_dealing_in_order_fails() {
        let demands = [2, 2, 6, 6].iter().enumerate();
        let demands: Vec<_> = demands.map(|(at, &kv_bytes)| Demand { block: at, logical: at, kv_bytes }).collect();
        assert_eq!(placed(&limited(&[6, 10]), &demands, &PlacementPolicy::default()), Ok(vec![1, 1, 0, 1]));
    }

    #[test]
    fn refusals_say_what_there_is() {
        let policy =
            PlacementPolicy { labels: labels(&[("rack", "c"), ("disk", "fast")]), ..PlacementPolicy::default() };
        assert_eq!(placed(&[], &each(2, 1), &policy), Err(PlacementRefusal::NoHost { shards: 2 }));
        let mut racks = hosts(&["n", "n"]);
        racks[0].labels = labels(&[("rack", "a")]);
        racks[1].labels = labels(&[("rack", "b")]);
        let refused = placed(&racks, &each(2, 1), &policy).unwrap_err().to_string();
        assert_eq!(
            refused,
            "none of 2 hosts has all labels asked for (disk=fast, rack=c); no host has a label disk, rack is a or b. \
             Ask for labels that one host has"
        );
        let refused =
            placed(&limited(&[1 << 20, 3 << 19]), &each(3, 1 << 20), &PlacementPolicy::default()).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "3 shards need 3.0 MiB of KV, the largest 1.0 MiB, and the hosts have free: host 0 1.0 MiB, host 1 1.5 MiB. \
             Raise memory_limit, add hosts, or shorten the context"
        );
    }

    /// Whether any assignment at all respects memory and labels.
    fn possible(hosts: &[Host], demands: &[Demand], policy: &PlacementPolicy, rooms: &mut [u64]) -> bool {
        let Some((first, rest)) = demands.split_first() else { return true };
        (0..hosts.len()).any(|host| {
            let matches = policy.labels.iter().all(|(key, value)| hosts[host].labels.get(key) == Some(value));
            if !matches || rooms[host] < first.kv_bytes {
                return false;
            }
            rooms[host] -= first.kv_bytes;
            let found = possible(hosts, rest, policy, rooms);
            rooms[host] += first.kv_bytes;
            found
        })
    }

    fn any_host() -> impl Strategy<Value = Host> {
        let free = prop_oneof![1 => Just(None), 5 => (0u64..40).prop_map(Some)];
        let island = prop_oneof![Just(None), Just(Some("i")), Just(Some("j"))];
        let place = ("[abc]", prop_oneof!["x", "y"], island);
        (place, 0..2u8, 0..3u8, free, 0..3usize).prop_map(|((node, rack, island), rank, detour, free, busy)| Host {
            node,
            labels: labels(
                &[("rack", rack.as_str())].into_iter().chain(island.map(|one| ("island", one))).collect::<Vec<_>>(),
            ),
            rank,
            detour,
            free,
            busy,
        })
    }

    fn any_policy() -> impl Strategy<Value = PlacementPolicy> {
        let arrangement = prop_oneof![Just(Arrangement::Spread), Just(Arrangement::Pack)];
        (arrangement, prop_oneof![Just(vec![]), Just(vec![("rack", "x")])])
            .prop_map(|(arrangement, of)| PlacementPolicy { arrangement, labels: labels(&of), query_host: None })
    }

    proptest! {
        #[test]
        fn placements_respect_memory_and_labels(
            hosts in prop::collection::vec(any_host(), 0..6),
            sizes in prop::collection::vec((0..4usize, 0u64..20), 0..9),
            policy in any_policy(),
        ) {
            let demand = |(block, &(logical, kv_bytes)): (usize, &(usize, u64))| Demand { block, logical, kv_bytes };
            let demands: Vec<Demand> = sizes.iter().enumerate().map(demand).collect();
            let placement = placed(&hosts, &demands, &policy);
            prop_assert_eq!(&placement, &placed(&hosts, &demands, &policy));
            let Ok(placement) = placement else { return Ok(()) };
            prop_assert_eq!(placement.len(), demands.len());
            for (at, host) in hosts.iter().enumerate() {
                let own = || demands.iter().zip(&placement).filter(|(_, placed)| **placed == at);
                let taken: u64 = own().map(|(demand, _)| demand.kv_bytes).sum();
                prop_assert!(host.free.is_none_or(|free| taken <= free));
                let matches = policy.labels.iter().all(|(key, value)| host.labels.get(key) == Some(value));
                prop_assert!(matches || own().count() == 0);
            }
        }

        #[test]
        fn the_order_is_kept_that_looking_at_every_host_gives(
            hosts in prop::collection::vec(any_host(), 1..12),
            sizes in prop::collection::vec((0..6usize, prop_oneof![Just(7u64), 0u64..20]), 0..20),
            arrangement in prop_oneof![Just(Arrangement::Spread), Just(Arrangement::Pack)],
            exchanges in any::<bool>(),
        ) {
            let demand = |(block, &(logical, kv_bytes)): (usize, &(usize, u64))| Demand { block, logical, kv_bytes };
            let demands: Vec<Demand> = sizes.iter().enumerate().map(demand).collect();
            let policy = PlacementPolicy { arrangement, ..PlacementPolicy::default() };
            let wanted = Wanted { demands: &demands, policy: &policy, exchanges };
            let candidates = candidates(&hosts);
            let order = HostOrder::new(&candidates, &wanted, &islands_in_turn(&wanted, &candidates));
            let found = order.deal_groups(&demands).or_else(|| deal_tightly(&candidates, &demands));
            prop_assert_eq!(found, looked_up(&hosts, &wanted));
        }

        #[test]
        fn exchanges_stay_in_one_island_where_one_has_a_host_for_each_part(
            islands in prop::collection::vec((1..6usize, 0..3usize), 1..5),
            parts in 1..8usize,
        ) {
            let island = |(at, &(hosts, busy)): (usize, &(usize, usize))| (0..hosts).map(move |host| Host {
                node: format!("{at}-{host}"),
                labels: labels(&[("island", &at.to_string())]),
                rank: 0,
                detour: 0,
                free: Some(1),
                busy,
            });
            let hosts: Vec<Host> = islands.iter().enumerate().flat_map(island).collect();
            let found = placed_near(&hosts, &each(parts, 1));
            prop_assert_eq!(found.is_some(), parts <= hosts.len());
            let Some(found) = found else { return Ok(()) };
            let used: BTreeSet<&str> = found.iter().map(|host| hosts[*host].labels["island"].as_str()).collect();
            match islands.iter().filter(|(hosts, _)| *hosts >= parts).map(|(_, busy)| *busy).min() {
                Some(least) => {
                    prop_assert_eq!(used.len(), 1, "one island has room");
                    prop_assert_eq!(hosts[found[0]].busy, least, "that of the least to do");
                }
                None => prop_assert!(used.len() > 1),
            }
        }

        #[test]
        fn independent_shards_lie_evenly_over_failure_domains(
            racks in 2..5usize, nodes in 1..3usize, each_node in 1..3usize, shards in 1..12usize,
        ) {
            let host = |at: usize| Host {
                node: format!("n{}", at / each_node),
                labels: labels(&[("rack", &(at / each_node / nodes).to_string())]),
                rank: 0,
                detour: 0,
                free: None,
                busy: 0,
            };
            let hosts: Vec<Host> = (0..racks * nodes * each_node).map(host).collect();
            let found = placed(&hosts, &each(shards, 1), &PlacementPolicy::default()).unwrap();
            let mut own = vec![0; racks];
            found.iter().for_each(|host| own[host / (nodes * each_node)] += 1);
            prop_assert!(own.iter().max().unwrap() - own.iter().min().unwrap() <= 1, "{own:?}");
        }

        #[test]
        fn a_detour_is_taken_only_where_nothing_else_has_room(
            hosts in prop::collection::vec(any_host(), 1..6), parts in 1..6usize,
        ) {
            let demands = each(parts, 5);
            let Ok(found) = placed(&hosts, &demands, &PlacementPolicy::default()) else { return Ok(()) };
            for host in found.iter().map(|host| &hosts[*host]) {
                let better = |other: &(usize, &Host)| (other.1.rank, other.1.detour) < (host.rank, host.detour);
                for (at, other) in hosts.iter().enumerate().filter(better) {
                    let own = found.iter().filter(|host| **host == at).count() as u64;
                    prop_assert!(other.free.is_some_and(|free| free < 5 * (own + 1)), "host {} had room", at);
                }
            }
        }

        #[test]
        fn equal_shards_are_placed_whenever_they_can_be(
            hosts in prop::collection::vec(any_host(), 1..4),
            (shards, logical, kv_bytes) in (0..6usize, 1..5usize, 0u64..20),
            policy in any_policy(),
        ) {
            let demand = |block| Demand { block, logical: block % logical, kv_bytes };
            let demands: Vec<Demand> = (0..shards).map(demand).collect();
            let mut rooms: Vec<u64> = hosts.iter().map(|host| host.free.unwrap_or(u64::MAX)).collect();
            let matching = hosts.iter().any(|host| policy.labels.iter().all(|(k, v)| host.labels.get(k) == Some(v)));
            let expected = matching && possible(&hosts, &demands, &policy, &mut rooms);
            prop_assert_eq!(placed(&hosts, &demands, &policy).is_ok(), expected);
        }
    }
}
