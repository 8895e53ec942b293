//! How fast a host computes: seconds of its own work, by phase and method, for what that work is. Time in which it waits for
//! another is not among them, so that who waits is never taken for slow. Judges nobody.

use std::{collections::BTreeMap, time::Duration};

/// Evidence counts half as much after so long.
const HALF_LIFE: Duration = Duration::from_secs(40);
/// And not at all after so long: a host that was given nothing since is not slow any more, for all that is known.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(300);
/// A host is judged by at least so many pieces of work, and so many seconds.
const LEAST_SAMPLES: f64 = 2.5;
const LEAST_SECONDS: f64 = 0.2;
/// In so long half of what a host was before is forgotten for what it is.
const HISTORY_HALF_LIFE: Duration = Duration::from_secs(3600);

/// What work is compared: phase 1 by method, or the answers of phase 2.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WorkKind {
    /// Shards encoded with a method.
    Encoding(String),
    /// Attention over shards for query hosts.
    Answering,
}

impl std::fmt::Display for WorkKind {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Encoding(method) => write!(formatter, "phase 1 of {method}"),
            Self::Answering => formatter.write_str("answers of phase 2"),
        }
    }
}

/// Work of one kind that a host did lately.
#[derive(Clone, Copy, Debug, Default)]
pub struct Evidence {
    seconds: f64,
    operations: f64,
    samples: f64,
    at: Duration,
    /// Seconds for an operation in the long run.
    pub history: Option<f64>,
}

/// What a host is slow at, how many times longer that takes it, and than what.
pub type Slowness = (WorkKind, f64, String);

/// How fast one host computes.
#[derive(Debug, Default)]
pub struct Pace {
    pub kinds: BTreeMap<WorkKind, Evidence>,
    /// What it is slow at, and how many times slower than it should be.
    pub slow: Option<Slowness>,
}

impl Evidence {
    /// What is left of it now.
    pub fn faded(&self, now: Duration) -> Self {
        let age = now.saturating_sub(self.at).as_secs_f64() / HALF_LIFE.as_secs_f64();
        let left = 0.5_f64.powf(age);
        let [seconds, operations, samples] = [self.seconds, self.operations, self.samples].map(|sum| sum * left);
        Self { seconds, operations, samples, ..*self }
    }

    /// Seconds for an operation, where enough is known of it.
    pub fn pace(&self, now: Duration) -> Option<f64> {
        let known = now.saturating_sub(self.at) < FORGOTTEN_AFTER
            && self.samples >= LEAST_SAMPLES
            && self.seconds >= LEAST_SECONDS
            && self.operations > 0.0;
        known.then(|| self.seconds / self.operations)
    }
}

impl Pace {
    /// Work that took so many seconds of computing, with its operations.
    pub fn note(&mut self, now: Duration, kind: WorkKind, (seconds, operations): (f64, f64)) {
        let possible = |value: f64| value.is_finite() && value >= 0.0;
        if !possible(seconds) || !possible(operations) || operations <= 0.0 {
            return;
        }
        let is_slow = self.slow.as_ref().is_some_and(|(slow, ..)| *slow == kind);
        let evidence = self.kinds.entry(kind).or_default();
        let passed = now.saturating_sub(evidence.at).as_secs_f64() / HISTORY_HALF_LIFE.as_secs_f64();
        *evidence = evidence.faded(now);
        (evidence.seconds, evidence.operations) = (evidence.seconds + seconds, evidence.operations + operations);
        (evidence.samples, evidence.at) = (evidence.samples + 1.0, now);
        // What it was stays what it was while it is slow.
        if let Some(pace) = evidence.pace(now).filter(|_| !is_slow) {
            let history = evidence.history.get_or_insert(pace);
            *history += (1.0 - 0.5_f64.powf(passed)) * (pace - *history);
        }
    }

    /// What it is slow at and against what, in one clause, while it is.
    pub fn slow(&self) -> Option<String> {
        let (kind, times, than) = self.slow.as_ref()?;
        Some(format!("slow: {kind} takes it {times:.1} times as long as {than}"))
    }

    /// How many times slower than it should be; 1 where it is not.
    pub fn slowdown(&self) -> f64 {
        self.slow.as_ref().map_or(1.0, |(_, times, _)| *times)
    }

    /// Whether it is slow.
    pub fn is_slow(&self) -> bool {
        self.slow.is_some()
    }

    /// A process that starts has done nothing yet; what the one before it was is still known.
    pub fn begin_anew(&mut self) {
        self.slow = None;
        for evidence in self.kinds.values_mut() {
            *evidence = Evidence { history: evidence.history, ..Evidence::default() };
        }
    }
}
