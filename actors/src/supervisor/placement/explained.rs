//! Why hosts got no shard of a placement: for whoever asks. Decides nothing.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    candidate::{Candidate, Wanted},
    islands::{fair_share, islands, lowest, parts},
};
use crate::error::mebibytes;

/// Hosts that got no shard, for one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotTaken {
    /// Which, as candidates name them.
    pub hosts: Vec<usize>,
    /// Why not.
    pub why: String,
}

/// The candidates that `placed` has not, by reason.
pub fn explain(wanted: &Wanted, candidates: &[Candidate], placed: &[usize]) -> Vec<NotTaken> {
    let used: BTreeSet<usize> = placed.iter().copied().collect();
    let seen = Seen::new(wanted, candidates, &used);
    let mut reasons: Vec<NotTaken> = Vec::new();
    for candidate in candidates.iter().filter(|candidate| !used.contains(&candidate.host)) {
        let why = seen.why(candidate);
        match reasons.iter_mut().find(|reason| reason.why == why) {
            Some(reason) => reason.hosts.push(candidate.host),
            None => reasons.push(NotTaken { hosts: vec![candidate.host], why }),
        }
    }
    reasons
}

/// A placement as those see it that have nothing of it.
struct Seen<'a> {
    wanted: &'a Wanted<'a>,
    islands: BTreeMap<&'a str, Vec<Candidate<'a>>>,
    /// Hosts with the labels.
    matching: Vec<Candidate<'a>>,
    /// Islands that have shards.
    used: BTreeSet<Option<&'a str>>,
    /// The last that had to be asked.
    last: (u8, u8),
    smallest: u64,
}

impl<'a> Seen<'a> {
    fn new(wanted: &'a Wanted, candidates: &[Candidate<'a>], used: &BTreeSet<usize>) -> Self {
        let matching: Vec<Candidate> =
            candidates.iter().filter(|candidate| candidate.carries(&wanted.policy.labels)).copied().collect();
        let taken = || candidates.iter().filter(|candidate| used.contains(&candidate.host));
        Self {
            wanted,
            islands: islands(&matching),
            used: taken().map(Candidate::island).collect(),
            last: taken().map(Candidate::standing).max().unwrap_or_default(),
            smallest: wanted.demands.iter().map(|demand| demand.kv_bytes).min().unwrap_or(0),
            matching,
        }
    }

    fn why(&self, candidate: &Candidate) -> String {
        let labels = &self.wanted.policy.labels;
        if let Some((key, value)) = labels.iter().find(|(key, value)| candidate.labels.get(*key) != Some(value)) {
            return format!("no label {key}={value}");
        }
        if let Some(free) = candidate.free_bytes.filter(|free| *free < self.smallest) {
            return format!("{} free, the smallest shard needs {}", mebibytes(free), mebibytes(self.smallest));
        }
        self.of_islands(candidate).unwrap_or_else(|| match candidate.standing() > self.last {
            true if candidate.rank > 0 => "a spare or slow host: it gets shards only where others have no room".into(),
            true => "in the failure domain of what was lost, or far from the other shards".into(),
            false => {
                "as good as those taken: of these, hosts that do less come first, then those before it in the file"
                    .into()
            }
        })
    }

    /// Why its island, where that is what counts.
    fn of_islands(&self, candidate: &Candidate) -> Option<String> {
        let own = candidate.island();
        if !self.wanted.exchanges || self.islands.is_empty() || self.used.contains(&own) {
            return None;
        }
        let Some(own) = own else {
            return Some("of no island: shards that pass each other something stay in one".into());
        };
        let taken = self.used.iter().map(|island| island.unwrap_or("none")).collect::<Vec<_>>().join(", ");
        let parts = parts(self.wanted);
        let hosts = lowest(&self.islands[own], &self.matching);
        Some(match parts <= fair_share(parts, &self.matching) * hosts {
            true => format!(
                "island {own}: all shards are in island {taken}, which had less to do, fewer hosts, or came first"
            ),
            false => format!("island {own} has {hosts} hosts for {parts} parts: shards are in island {taken}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        api::PlacementPolicy,
        supervisor::placement::{Demand, place},
    };

    #[test]
    fn losers_know_why() {
        let of =
            |labels: &[(&str, &str)]| labels.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        let labels: [BTreeMap<String, String>; 4] = [
            of(&[("island", "a"), ("disk", "fast")]),
            of(&[("island", "b"), ("disk", "fast")]),
            of(&[("disk", "fast")]),
            of(&[("island", "a")]),
        ];
        let candidate = |(host, (at, rank, free)): (usize, &(usize, u8, u64))| Candidate {
            host,
            node: "n",
            labels: &labels[*at],
            rank: *rank,
            detour: 0,
            free_bytes: Some(*free),
            busy: 0,
            numerics: None,
        };
        let hosts = [
            (0, 0, 9 << 20),
            (0, 0, 9 << 20),
            (0, 0, 9 << 20),
            (0, 1, 9 << 20),
            (1, 0, 9 << 20),
            (2, 0, 9 << 20),
            (3, 0, 9 << 20),
            (0, 0, 1 << 20),
        ];
        let candidates: Vec<Candidate> = hosts.iter().enumerate().map(candidate).collect();
        let demands: Vec<Demand> = (0..2).map(|at| Demand { block: at, logical: at, kv_bytes: 2 << 20 }).collect();
        let policy = PlacementPolicy { labels: of(&[("disk", "fast")]), ..PlacementPolicy::default() };
        let wanted = Wanted { demands: &demands, policy: &policy, exchanges: true };
        let placed = place(&wanted, &candidates).unwrap();
        assert_eq!(placed, [0, 1]);
        let said: Vec<String> =
            explain(&wanted, &candidates, &placed).iter().map(|one| format!("{:?} {}", one.hosts, one.why)).collect();
        assert_eq!(
            said,
            [
                "[2] as good as those taken: of these, hosts that do less come first, then those before it in the file",
                "[3] a spare or slow host: it gets shards only where others have no room",
                "[4] island b has 1 hosts for 2 parts: shards are in island a",
                "[5] of no island: shards that pass each other something stay in one",
                "[6] no label disk=fast",
                "[7] 1.0 MiB free, the smallest shard needs 2.0 MiB",
            ]
        );
    }
}
