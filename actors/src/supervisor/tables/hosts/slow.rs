//! Who is slow: a host against its equals, hosts of the same model and numerics that did the same kind of work lately, or where there are none,
//! against what it was itself before. Decides nothing about jobs.

use std::time::Duration;

use super::{
    Hosts,
    pace::{Slowness, WorkKind},
};
use crate::{cluster_event::ClusterEventKind, readings::AnswerReading};

/// So many times the time of its equals is slow, and so many is not any more.
const SLOW_TIMES: f64 = 2.5;
const WELL_TIMES: f64 = 1.7;
/// So many times the time that it took before is slow, where nobody is its equal.
const SLOWER_THAN_BEFORE: f64 = 3.0;

impl Hosts {
    /// A host has answered query hosts so much since its process started.
    pub fn note_answered(&mut self, now: Duration, host: usize, answered: AnswerReading) {
        let record = &mut self.records[host];
        let before = record.reported.answered;
        // The first report of a process, or of a predecessor, is nothing to compare with.
        if let Some(operations) = answered.operations.checked_sub(before.operations)
            && before.operations > 0
        {
            let seconds = answered.seconds - before.seconds;
            record.pace.note(now, WorkKind::Answering, (seconds, operations as f64));
        }
    }

    /// Judges every host by what is known now; returns what has changed.
    pub fn judge_paces(&mut self, now: Duration) -> Vec<ClusterEventKind> {
        let found: Vec<Option<Slowness>> = (0..self.records.len()).map(|host| self.slow_at(now, host)).collect();
        let mut events = Vec::new();
        for (record, slow) in self.records.iter_mut().zip(found) {
            let host = record.spec.name.clone();
            match (&record.pace.slow, &slow) {
                (None, Some((kind, times, than))) => {
                    let (work, than, times) = (kind.to_string(), than.clone(), *times);
                    events.push(ClusterEventKind::HostSlow { host, work, times, than });
                }
                (Some(_), None) => events.push(ClusterEventKind::HostNoLongerSlow { host }),
                _ => {}
            }
            record.pace.slow = slow;
        }
        events
    }

    /// The kind of work that a host is slowest at, if it is slow at any.
    fn slow_at(&self, now: Duration, host: usize) -> Option<Slowness> {
        let record = &self.records[host];
        let judged = record.pace.kinds.iter().filter_map(|(kind, evidence)| {
            let pace = evidence.faded(now).pace(now).or_else(|| {
                // What is known fades, and stays known for a while.
                let known = record.pace.slow.as_ref().is_some_and(|(slow, ..)| slow == kind);
                evidence.pace(now).filter(|_| known)
            })?;
            let is_known = record.pace.slow.as_ref().is_some_and(|(slow, ..)| slow == kind);
            let (reference, than, most) = match self.equals_pace(now, host, kind) {
                Some(reference) => (reference, "its equals", SLOW_TIMES),
                None => (evidence.history?, "before", SLOWER_THAN_BEFORE),
            };
            let times = pace / reference;
            let most = if is_known { WELL_TIMES } else { most };
            (times >= most).then(|| (kind.clone(), times, than.to_owned()))
        });
        judged.max_by(|(_, one, _), (_, other, _)| one.total_cmp(other))
    }

    /// Seconds for an operation that the equals of a host take, at the median; none where there are none.
    fn equals_pace(&self, now: Duration, host: usize, kind: &WorkKind) -> Option<f64> {
        let own = &self.records[host];
        let equal = |other: usize| {
            let record = &self.records[other];
            let alike = record.numerics == own.numerics && record.spec.model() == own.spec.model();
            (other != host && record.numerics.is_some() && alike).then_some(record)
        };
        // The pace of who has done nothing lately is what it was last.
        let pace = |other| equal(other)?.pace.kinds.get(kind)?.pace(now);
        let mut paces: Vec<f64> = (0..self.records.len()).filter_map(pace).collect();
        paces.sort_by(f64::total_cmp);
        // The lower of two in the middle: one of them may be slow itself.
        paces.get(paces.len().checked_sub(1)? / 2).copied()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::{
        api::Role,
        supervisor::{HostSpec, tables::hosts::Hosts},
    };

    fn hosts(count: usize) -> Hosts {
        let spec = |at| HostSpec {
            name: format!("c{at}"),
            role: Role::Context,
            device: "cpu".into(),
            node: "here".into(),
            memory_limit: None,
            weight_bytes: 0,
            labels: BTreeMap::new(),
        };
        let mut hosts = Hosts::new(&(0..count).map(spec).collect::<Vec<_>>(), Duration::ZERO);
        (0..count).for_each(|at| hosts.at_mut(at).numerics = Some("cpu avx2".into()));
        hosts
    }

    /// Every second each host does a piece of work that takes it so many seconds; returns when who was named first.
    fn named(
        hosts: &mut Hosts,
        seconds: std::ops::Range<u64>,
        takes: impl Fn(usize, u64) -> f64,
    ) -> Option<(u64, String)> {
        for second in seconds {
            let now = Duration::from_secs(second);
            for at in 0..hosts.records.len() {
                let kind = WorkKind::Encoding("ring".into());
                hosts.at_mut(at).pace.note(now, kind, (takes(at, second), 1e9));
            }
            for event in hosts.judge_paces(now) {
                if let ClusterEventKind::HostSlow { host, .. } = event {
                    return Some((second, host));
                }
            }
        }
        None
    }

    #[test]
    fn of_two_hosts_the_slow_one_is_named_and_soon() {
        let mut two = hosts(2);
        assert_eq!(named(&mut two, 0..100, |_, _| 0.3), None);
        let (at, host) = named(&mut two, 100..220, |at, _| if at == 1 { 4.0 } else { 0.3 }).expect("named");
        assert!(host == "c1" && at < 110, "{host} after {at} s");
        assert!(two.at(1).pace.slow().expect("a clause").contains("phase 1 of ring"));
        // It recovers, and is slow no longer.
        assert_eq!(named(&mut two, 220..400, |_, _| 0.3), None);
        assert!(!two.at(1).pace.is_slow() && two.at(1).pace.slowdown() == 1.0);
    }

    #[test]
    fn all_of_them_slower_than_before_is_load_and_no_straggler() {
        let mut three = hosts(3);
        assert_eq!(named(&mut three, 0..100, |_, _| 0.3), None);
        assert_eq!(named(&mut three, 100..200, |_, _| 3.0), None);
        assert_eq!(
            named(&mut three, 200..300, |at, second| 0.3 + 0.2 * ((second as usize + at) % 3) as f64),
            None,
            "noise"
        );
    }

    #[test]
    fn one_without_equals_is_held_to_what_it_was() {
        let mut one = hosts(1);
        assert_eq!(named(&mut one, 0..200, |_, _| 0.3), None);
        let (at, _) = named(&mut one, 200..320, |_, _| 4.0).expect("named");
        assert!(at < 220, "after {at} s");
        let than = one.at(0).pace.slow().expect("a clause");
        assert!(than.ends_with("as long as before"), "{than}");
    }

    #[test]
    fn who_is_given_nothing_is_not_slow_for_ever() {
        let mut two = hosts(2);
        named(&mut two, 0..20, |at, _| if at == 1 { 4.0 } else { 0.3 }).expect("named");
        assert!(two.judge_paces(Duration::from_secs(200)).is_empty(), "it stays so for a while");
        let events = two.judge_paces(Duration::from_secs(400));
        assert_eq!(events, [ClusterEventKind::HostNoLongerSlow { host: "c1".into() }]);
    }

    #[test]
    fn what_cannot_be_is_not_believed() {
        let mut two = hosts(2);
        for seconds in [f64::NAN, f64::INFINITY, -1.0] {
            assert_eq!(named(&mut two, 0..20, |at, _| if at == 1 { seconds } else { 0.3 }), None);
        }
    }
}
