//! Which hosts may share a job's shards: those whose numerics are equal. Decides by the words that hosts say; compares no result.

use std::{cmp::Reverse, collections::BTreeMap};

use serde::{Deserialize, Serialize};

use super::{
    candidate::{Candidate, Wanted},
    place,
};
use crate::{api::PlacementPolicy, error::PlacementRefusal};

/// What becomes of a job that no hosts of equal numerics can take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MixedNumerics {
    /// It waits for such hosts, and fails when they do not come.
    #[default]
    Refuse,
    /// Others take it, and its result says so.
    Mark,
}

/// The host of each demand, in their order: all of equal numerics, of those of `numerics` where that is said. Otherwise of those
/// that most hosts of the lowest rank have, as far as they have room. A host of which nothing is known is equal to any.
///
/// # Errors
/// That of [`place`] where it would find nothing among all of them; [`PlacementRefusal::UnequalNumerics`] where it would.
pub fn place_among_equals(
    wanted: &Wanted,
    candidates: &[Candidate],
    numerics: Option<&str>,
) -> Result<Vec<usize>, PlacementRefusal> {
    let known = groups(candidates, wanted.policy);
    let groups = match numerics {
        Some(numerics) => vec![numerics],
        None => known.iter().map(|(numerics, _)| *numerics).collect(),
    };
    if groups.is_empty() || candidates.iter().all(|candidate| candidate.numerics == Some(groups[0])) {
        return place(wanted, candidates);
    }
    for group in groups {
        let equal = |candidate: &&Candidate| candidate.numerics.is_none_or(|has| has == group);
        let equals: Vec<Candidate> = candidates.iter().filter(equal).copied().collect();
        if let Ok(hosts) = place(wanted, &equals) {
            return Ok(hosts);
        }
    }
    place(wanted, candidates)?;
    let of = |(numerics, hosts): &(&str, usize)| format!("{hosts} of {numerics}");
    Err(PlacementRefusal::UnequalNumerics {
        shards: wanted.demands.len(),
        wanted: numerics.map(str::to_owned),
        known: known.iter().map(of).collect::<Vec<_>>().join(", "),
    })
}

/// What hosts with the labels compute with and how many of them do, those first that most of the lowest rank have: of devices
/// that are no CPU before any CPU, which are slower by more than there are of them.
fn groups<'a>(candidates: &[Candidate<'a>], policy: &PlacementPolicy) -> Vec<(&'a str, usize)> {
    let lowest = candidates.iter().map(|candidate| candidate.rank).min();
    let mut counts: BTreeMap<&str, (usize, usize, usize)> = BTreeMap::new();
    for (at, candidate) in candidates.iter().enumerate().filter(|(_, candidate)| candidate.carries(&policy.labels)) {
        let Some(numerics) = candidate.numerics else { continue };
        let (first, own, all) = counts.entry(numerics).or_insert((at, 0, 0));
        (*first, *own, *all) = (*first, *own + usize::from(Some(candidate.rank) == lowest), *all + 1);
    }
    let mut groups: Vec<_> = counts.into_iter().collect();
    let rank = |numerics: &str, own: usize| own > 0 && numerics.split(' ').next() != Some("cpu");
    groups.sort_by_key(|(numerics, (first, own, all))| (Reverse((rank(numerics, *own), *own, *all)), *first));
    groups.into_iter().map(|(numerics, (_, _, all))| (numerics, all)).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::supervisor::placement::Demand;

    const A: &str = "cpu avx2 f32 1";
    const B: &str = "cpu portable f32 1";
    const GPU: &str = "cuda sm_90 bf16 1";

    /// Hosts by what they compute with, their rank and their room.
    fn placed(
        hosts: &[(Option<&str>, u8, u64)],
        shards: usize,
        wanted: Option<&str>,
    ) -> Result<Vec<usize>, PlacementRefusal> {
        let labels = BTreeMap::new();
        let candidate = |(host, &(numerics, rank, free)): (usize, &(Option<&'static str>, u8, u64))| Candidate {
            host,
            node: "a",
            labels: &labels,
            rank,
            detour: 0,
            free_bytes: Some(free),
            busy: 0,
            numerics,
        };
        let hosts: Vec<(Option<&'static str>, u8, u64)> = hosts
            .iter()
            .map(|(numerics, rank, free)| {
                (
                    numerics.map(|of| [A, B, GPU].into_iter().find(|known| *known == of).expect("one of these")),
                    *rank,
                    *free,
                )
            })
            .collect();
        let candidates: Vec<Candidate> = hosts.iter().enumerate().map(candidate).collect();
        let demands: Vec<Demand> = (0..shards).map(|at| Demand { block: at, logical: at, kv_bytes: 1 }).collect();
        let policy = &PlacementPolicy::default();
        place_among_equals(&Wanted { demands: &demands, policy, exchanges: false }, &candidates, wanted)
    }

    #[test]
    fn shards_go_to_the_larger_group_that_has_room() {
        let hosts = [(Some(B), 0, 9), (Some(A), 0, 2), (Some(A), 0, 2)];
        assert_eq!(placed(&hosts, 4, None), Ok(vec![1, 2, 1, 2]));
        assert_eq!(placed(&hosts, 5, None), Ok(vec![0; 5]), "the larger group is full");
        assert_eq!(placed(&hosts, 2, Some(B)), Ok(vec![0, 0]));
        let spares = [(Some(A), 1, 9), (Some(A), 1, 9), (Some(B), 0, 9)];
        assert_eq!(placed(&spares, 1, None), Ok(vec![2]), "spares come after all others");
    }

    #[test]
    fn one_gpu_is_taken_before_three_cpus() {
        let hosts = [(Some(A), 0, 9), (Some(A), 0, 9), (Some(GPU), 0, 9), (Some(A), 0, 9)];
        assert_eq!(placed(&hosts, 2, None), Ok(vec![2, 2]));
        assert_eq!(placed(&hosts, 12, None).map(|hosts| hosts.contains(&2)), Ok(false), "it has no room for as many");
        let spare = [(Some(A), 0, 9), (Some(GPU), 1, 9)];
        assert_eq!(placed(&spare, 1, None), Ok(vec![0]), "a spare waits until it is needed");
    }

    #[test]
    fn what_only_unequal_hosts_could_share_is_refused_in_words() {
        let hosts = [(Some(A), 0, 2), (Some(B), 0, 2)];
        let refused = placed(&hosts, 3, None).unwrap_err().to_string();
        assert!(refused.contains("1 of cpu avx2 f32 1, 1 of cpu portable f32 1"), "{refused}");
        assert!(matches!(placed(&hosts, 5, None), Err(PlacementRefusal::NotEnoughMemory { .. })));
        let refused = placed(&hosts[1..], 1, Some(A)).unwrap_err().to_string();
        assert!(refused.contains("began on cpu avx2 f32 1"), "{refused}");
        assert!(matches!(placed(&[], 1, Some(A)), Err(PlacementRefusal::NoHost { .. })));
        assert_eq!(placed(&[(None, 0, 1), (Some(A), 0, 1)], 2, None), Ok(vec![0, 1]), "it may be equal");
    }

    proptest! {
        #[test]
        fn placed_shards_are_on_equal_hosts(
            hosts in prop::collection::vec((prop_oneof![Just(Some(A)), Just(Some(B))], 0..2u8, 0u64..6), 0..6),
            shards in 1..8usize,
            wanted in prop_oneof![Just(None), Just(Some(A))],
        ) {
            let Ok(placement) = placed(&hosts, shards, wanted) else {
                for one in [A, B].into_iter().filter(|one| wanted.is_none_or(|wanted| wanted == *one)) {
                    let room: u64 = hosts.iter().filter(|host| host.0 == Some(one)).map(|host| host.2).sum();
                    prop_assert!(room < shards as u64, "{} had room", one);
                }
                return Ok(());
            };
            let used: BTreeSet<_> = placement.iter().map(|host| hosts[*host].0).collect();
            prop_assert_eq!(used.len(), 1);
            prop_assert!(wanted.is_none() || used.contains(&wanted));
        }
    }
}
