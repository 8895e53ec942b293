//! What hosts count and time and report to the supervisor, which serves the numbers of all of them. Takes no time itself.

use std::time::Duration;

use rkyv::{Archive, Deserialize, Serialize};

use crate::cores::GpuMemory;

/// Upper bounds of a [`DurationHistogram`]'s buckets in seconds; longer ones go into one more. From a merge of small partials to a
/// layer that waits for a host's work to move.
pub const SPREAD_SECONDS: [f64; 20] = [
    0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0,
    2.5, 5.0, 10.0, 25.0,
];

/// More layers than any model has.
const MOST_LAYERS: u64 = 4096;
/// Seconds that nothing takes.
const LONGEST_SECONDS: f64 = 1e9;
/// More guesses than a step brings of a job.
const BOUND_OF_GUESSES: u64 = 1024;

const BUCKETS: usize = SPREAD_SECONDS.len() + 1;

/// How often something took how long: count and sum by bucket, so that it costs the same however much was measured.
#[derive(Clone, Debug, Default, PartialEq, Archive, Serialize, Deserialize)]
pub struct DurationHistogram {
    counts: [u32; BUCKETS],
    seconds: [f64; BUCKETS],
}

/// Where the seconds of a generation went on its query host. Steps that it went through again are among them.
#[derive(Clone, Debug, Default, PartialEq, Archive, Serialize, Deserialize)]
pub struct Phase2Times {
    /// Each step: the query or a token through every layer, to the choice of the next token.
    pub step: DurationHistogram,
    /// Each step after the query's: from one token to the next.
    pub token: DurationHistogram,
    /// Each layer of a step: from the end of the query host's own attention until the last shard's partials were there.
    pub layer_wait: DurationHistogram,
    /// Each layer of a step: merging the partials. On a device that works on its own, handing it the work.
    pub merge: DurationHistogram,
    /// Guesses of tokens that steps brought along.
    pub guesses: u64,
    /// Those that were right: tokens beyond one of each step.
    pub right_guesses: u64,
}

/// The links of a host process to others, and what it takes of its machine.
#[derive(Clone, Debug, Default, PartialEq, Archive, Serialize, Deserialize)]
pub struct LinkReport {
    /// Everybody it ever opened a link to, by name.
    pub links: Vec<LinkReading>,
    /// Links opened in the place of one that was lost, since the process started.
    pub reconnects: u64,
    /// Links since then that took another way than the best that either end has.
    pub fallbacks: u64,
    /// What time it was there, in seconds since 1970; 0 where that is not known.
    pub unix_s: f64,
    /// What the process takes.
    pub process: ProcessReading,
    /// What went over its links, and whom it refused.
    pub traffic: Traffic,
    /// What the host answered query hosts.
    pub answered: AnswerReading,
}

/// What a host computed to answer query hosts, since its process started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Archive, Serialize, Deserialize)]
pub struct AnswerReading {
    /// Seconds of computing.
    pub seconds: f64,
    /// Multiply-adds, with what each answer costs beside them.
    pub operations: u64,
}

/// What a process counted since it started.
#[derive(Clone, Debug, Default, PartialEq, Archive, Serialize, Deserialize)]
pub struct Traffic {
    /// By transport.
    pub carried: Vec<Carried>,
    /// Whom it refused; reasons of nobody are left out.
    pub refused: Vec<Refused>,
    /// Spans that no collector took.
    pub spans_dropped: u64,
    /// Unix seconds at which its certificate ends, where it has one.
    pub certificate_ends_s: Option<f64>,
}

/// Bytes of frames that went over one transport.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct Carried {
    /// By name, such as `quic`.
    pub transport: String,
    /// Sent.
    pub sent_bytes: u64,
    /// Received.
    pub received_bytes: u64,
}

/// How many peers were refused for one reason.
#[derive(Clone, Debug, PartialEq, Archive, Serialize, Deserialize)]
pub struct Refused {
    /// From a short list.
    pub reason: String,
    /// How many.
    pub peers: u64,
}

/// What a process takes of its machine; zeros where the system tells nothing, or another host of the process does.
#[derive(Clone, Debug, Default, PartialEq, Archive, Serialize, Deserialize)]
pub struct ProcessReading {
    /// Bytes in memory.
    pub resident_bytes: u64,
    /// Seconds of CPU, since the process started.
    pub cpu_s: f64,
    /// Threads.
    pub threads: u64,
    /// Of these, how many compute; 0 where that is not known.
    pub computing: u64,
    /// Memory of the GPU that it computes on, if it does.
    pub gpu: Option<GpuMemory>,
}

/// One link.
#[derive(Clone, Debug, Default, PartialEq, Archive, Serialize, Deserialize)]
pub struct LinkReading {
    /// `supervisor`, or the host's name as configured.
    pub peer: String,
    /// Transport by name, such as `quic`.
    pub transport: String,
    /// Better ways that it does not take, each with the cause; empty where there is none.
    pub why: String,
    /// Whether it is up.
    pub open: bool,
    /// Smoothed round trip in seconds; none while there is no link, or where the transport measures none.
    pub rtt_s: Option<f64>,
}

impl Phase2Times {
    /// A step took so long: the first is the query's, each later one a token's.
    pub fn stepped(&mut self, took: Duration) {
        if self.step.count() > 0 {
            self.token.add(took);
        }
        self.step.add(took);
    }

    /// A step brought so many guesses, of which the first ones were right: tokens that came with the one before them.
    pub fn guessed(&mut self, guesses: u64, right: u64) {
        (0..right).for_each(|_| self.token.add(Duration::ZERO));
        self.guesses = self.guesses.saturating_add(guesses);
        self.right_guesses = self.right_guesses.saturating_add(right);
    }

    /// Whether they can be those of an answer of so many tokens: a step or a guess for each, and a step for an end of sequence.
    pub fn are_of(&self, tokens: u32) -> bool {
        let (steps, layers) = (self.step.count(), self.layer_wait.count());
        let spreads = [&self.step, &self.token, &self.layer_wait, &self.merge];
        let seconds = spreads.iter().all(|spread| spread.is_of(u64::MAX));
        let guessed = self.right_guesses <= self.guesses && self.guesses <= steps * BOUND_OF_GUESSES;
        let chosen = steps.saturating_add(self.right_guesses);
        let counts = self.token.count() <= chosen.saturating_sub(1)
            && layers == self.merge.count()
            && layers <= steps * MOST_LAYERS;
        seconds && guessed && counts && (u64::from(tokens)..=u64::from(tokens) + 1).contains(&chosen)
    }
}

impl DurationHistogram {
    /// Takes one in.
    pub fn add(&mut self, took: Duration) {
        let seconds = took.as_secs_f64();
        let at = SPREAD_SECONDS.partition_point(|bound| *bound < seconds);
        self.counts[at] = self.counts[at].saturating_add(1);
        self.seconds[at] += seconds;
    }

    /// Whether it can be of at most so many.
    pub fn is_of(&self, most: u64) -> bool {
        self.seconds.iter().all(|seconds| (0.0..LONGEST_SECONDS).contains(seconds)) && self.count() <= most
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.counts.iter().map(|count| u64::from(*count)).sum()
    }

    /// Seconds of all together.
    pub fn sum(&self) -> f64 {
        self.seconds.iter().sum()
    }

    /// The buckets that are not empty: how many took how many seconds on average, which is within the bucket.
    pub fn buckets(&self) -> impl Iterator<Item = (usize, f64)> {
        let bounds = SPREAD_SECONDS.iter().copied().chain([f64::INFINITY]);
        let filled = self.counts.iter().zip(self.seconds).zip(bounds).filter(|((count, _), _)| **count > 0);
        filled.map(|((count, seconds), bound)| (*count as usize, (seconds / f64::from(*count)).min(bound)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_is_found_in_its_bucket() {
        let mut spread = DurationHistogram::default();
        let times = [0, 10, 11, 1_000, 900_000, 1_000_000, 60_000_000].map(Duration::from_micros);
        times.into_iter().for_each(|took| spread.add(took));
        assert_eq!(spread.count(), 7);
        assert!((spread.sum() - times.iter().sum::<Duration>().as_secs_f64()).abs() < 1e-9);
        let buckets: Vec<_> = spread.buckets().collect();
        let mean = |a: f64, b: f64| (a + b) / 2.0;
        assert_eq!(buckets, [(2, mean(0.0, 1e-5)), (1, 1.1e-5), (1, 1e-3), (2, mean(0.9, 1.0)), (1, 60.0)]);
    }

    #[test]
    fn times_that_are_not_of_the_answer_are_told() {
        let millisecond = Duration::from_millis(1);
        let mut times = Phase2Times::default();
        for _ in 0..3 {
            times.step.add(4 * millisecond);
            times.layer_wait.add(2 * millisecond);
            times.merge.add(millisecond);
        }
        assert!(times.are_of(3) && times.are_of(2) && !times.are_of(1) && !times.are_of(4));
        let mut more = times.clone();
        (0..3).for_each(|_| more.token.add(millisecond));
        assert!(!more.are_of(3), "a token more than steps after the first");
        let mut guessed = times.clone();
        guessed.guessed(7, 2);
        assert!(guessed.are_of(5) && guessed.are_of(4) && !guessed.are_of(3), "three steps and two guesses");
        guessed.right_guesses = 8;
        assert!(!guessed.are_of(11), "more that are right than there were");
        let mut damaged = times.clone();
        damaged.step.seconds[0] = f64::NAN;
        assert!(!damaged.step.is_of(9) && times.step.is_of(3) && !times.step.is_of(2));
        assert!(!damaged.are_of(3));
        times.merge.counts[0] = u32::MAX;
        times.layer_wait.counts[0] = u32::MAX;
        assert!(!times.are_of(3));
    }

    #[test]
    fn an_average_never_leaves_its_bucket() {
        let mut spread = DurationHistogram::default();
        (0..1_000_003).for_each(|_| spread.add(Duration::from_millis(100)));
        let (count, mean) = spread.buckets().next().expect("a bucket");
        assert!(count == 1_000_003 && mean <= 0.1, "{count} {mean}");
    }
}
