//! Which query hosts said of which hosts that they answer what cannot be right, and when. Judges nobody.

use std::{collections::BTreeMap, time::Duration};

/// An accusation is forgotten after so long: a query host that meets two bad hosts in a month is no liar.
const ACCUSATION_KEPT: Duration = Duration::from_secs(3600);

/// The first host that each query host accused lately.
#[derive(Debug, Default)]
pub struct AccusationRecord(BTreeMap<usize, (usize, Duration)>);

impl AccusationRecord {
    /// Notes that `accuser` accuses `host`; returns the first that it accused lately, which may be this one.
    pub fn first_of(&mut self, accuser: usize, host: usize, now: Duration) -> usize {
        let first = self.0.entry(accuser).or_insert((host, now));
        if now.saturating_sub(first.1) > ACCUSATION_KEPT {
            *first = (host, now);
        }
        first.0
    }

    /// A host is trusted again: what it said and what was said of it is forgotten.
    pub fn pardon(&mut self, host: usize) {
        self.0.retain(|accuser, (accused, _)| *accuser != host && *accused != host);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accusations_are_forgotten_after_a_time_and_when_a_host_is_trusted_again() {
        let (mut record, at) = (AccusationRecord::default(), Duration::from_secs);
        assert_eq!([(1, 0), (2, 100), (1, 200)].map(|(host, now)| record.first_of(9, host, at(now))), [1, 1, 1]);
        assert_eq!(record.first_of(9, 2, at(3700)), 2, "an hour later it begins anew");
        assert_eq!(record.first_of(9, 3, at(3800)), 2);
        record.pardon(2);
        assert_eq!(record.first_of(9, 3, at(3900)), 3);
        record.pardon(9);
        assert_eq!(record.first_of(9, 4, at(4000)), 4);
    }
}
