//! Whether silence of hosts may be the supervisor's own: it was late, or waited for memory. Knows no host.

use std::time::Duration;

/// Who judges the silence of hosts, as far as that may be its own.
#[derive(Debug, Default)]
pub struct LivenessJudge {
    /// When it first judged, and when it did last.
    judged: Option<(Duration, Duration)>,
    /// Whether it has waited for memory or a disk since then.
    pub starved: bool,
}

/// A time in which nobody could be heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SilentPeriod {
    pub time: Duration,
    /// Nobody can have been heard; otherwise somebody may not have been.
    pub sure: bool,
    /// For how long it has judged.
    pub judging: Duration,
}

impl LivenessJudge {
    /// The time since it last judged: where it came much later than it does, it can have heard nobody; where it waited for memory
    /// in between, it may not have.
    pub fn deaf(&mut self, now: Duration, late: Duration) -> SilentPeriod {
        let (first, last) = self.judged.unwrap_or((now, now));
        self.judged = Some((first, now));
        let (passed, starved) = (now.saturating_sub(last), std::mem::take(&mut self.starved));
        let time = if passed > late || starved { passed } else { Duration::ZERO };
        SilentPeriod { time, sure: passed > late, judging: now.saturating_sub(first) }
    }
}
