//! When a process that ended is started again, after how long, and when no more; when one that says nothing is to be
//! ended. Knows no process and no clock.

use std::{collections::VecDeque, time::Duration};

/// Restarts counted against the limit are those of this span.
pub const WINDOW: Duration = Duration::from_secs(300);
/// Wait before the first restart. It doubles with each, until a process works for as long as the next wait would be: faults
/// that are far apart cost the first wait each, and what fails at once costs little. The limit is on how often it may.
pub const FIRST_WAIT: Duration = Duration::from_millis(200);
/// Longest wait.
pub const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// How a process ended, as far as starting it again is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Exit 0: it was told to end.
    Finished,
    /// It refused its configuration: started again, it would do the same.
    Unfit,
    /// Its certificates were refused, by it or by others: it may go on when there are new ones.
    Unauthenticated,
    /// Somebody asked it to end, and it did so in order.
    Terminated,
    /// Anything else: an error, a signal, an order.
    Failed,
}

/// What becomes of a process that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is done.
    Finished,
    /// It is started again.
    Restarting {
        /// After this wait.
        after: Duration,
    },
    /// It is not started again.
    GivenUp {
        /// Why, in one clause.
        reason: String,
    },
}

/// The restarts of one process. Times count from any fixed moment.
#[derive(Clone, Debug)]
pub struct Restarts {
    max: u32,
    recent: VecDeque<Duration>,
    wait: Duration,
    started: Duration,
    reported: Option<Duration>,
    /// Whether any start of it succeeded.
    has_worked: bool,
}

impl Restarts {
    /// At most `max` restarts within [`WINDOW`].
    pub fn new(max: u32) -> Self {
        Self {
            max,
            recent: VecDeque::new(),
            wait: FIRST_WAIT,
            started: Duration::ZERO,
            reported: None,
            has_worked: false,
        }
    }

    /// The process was started.
    pub fn started(&mut self, now: Duration) {
        self.started = now;
        self.reported = None;
    }

    /// The process said that its start succeeded.
    pub fn reported(&mut self, now: Duration) {
        self.reported = Some(now);
        self.has_worked = true;
    }

    /// When the process is to be ended unless it reports: `limit` after its start. `None` once it has reported.
    pub fn report_due(&self, limit: Duration) -> Option<Duration> {
        self.reported.is_none().then_some(self.started + limit)
    }

    /// The process ended.
    pub fn ended(&mut self, now: Duration, ending: Ending) -> Fate {
        match ending {
            Ending::Finished => return Fate::Finished,
            // Its certificates were good once. A try costs little and counts towards no limit.
            Ending::Unauthenticated if self.has_worked => return Fate::Restarting { after: LONGEST_WAIT },
            Ending::Unfit | Ending::Unauthenticated => {
                return Fate::GivenUp { reason: "started again it would end in the same way".into() };
            }
            Ending::Terminated => return Fate::Restarting { after: self.next_wait(now) },
            Ending::Failed => {}
        }
        while self.recent.front().is_some_and(|restart| now.saturating_sub(*restart) >= WINDOW) {
            self.recent.pop_front();
        }
        if self.recent.len() >= self.max as usize {
            let (restarts, seconds) = (self.recent.len(), WINDOW.as_secs());
            return Fate::GivenUp {
                reason: format!("{restarts} restarts within {seconds} s, of at most {}", self.max),
            };
        }
        self.recent.push_back(now);
        Fate::Restarting { after: self.next_wait(now) }
    }

    /// Somebody wants it started who knows that it ended: it begins anew.
    pub fn begin_anew(&mut self) {
        (self.wait, self.has_worked) = (FIRST_WAIT, false);
        self.recent.clear();
    }

    fn next_wait(&mut self, now: Duration) -> Duration {
        if self.reported.is_some_and(|reported| now.saturating_sub(reported) >= self.wait) {
            self.wait = FIRST_WAIT;
        }
        let after = self.wait;
        self.wait = (2 * self.wait).min(LONGEST_WAIT);
        after
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Starts for ten seconds, reports, and works for `life` seconds; moves `now` to the end of the wait.
    fn live(restarts: &mut Restarts, now: &mut f64, life: f64) -> Option<f64> {
        restarts.started(Duration::from_secs_f64(*now));
        restarts.reported(Duration::from_secs_f64(*now + 10.0));
        *now += 10.0 + life;
        match restarts.ended(Duration::from_secs_f64(*now), Ending::Failed) {
            Fate::Restarting { after } => {
                *now += after.as_secs_f64();
                Some(after.as_secs_f64())
            }
            _ => None,
        }
    }

    #[test]
    fn waits_double_up_to_ten_seconds() {
        let (mut restarts, mut now) = (Restarts::new(100), 0.0);
        let waits: Vec<_> = (0..8).map(|_| live(&mut restarts, &mut now, 0.1).unwrap()).collect();
        assert_eq!(waits, [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]);
    }

    #[test]
    fn a_process_that_works_as_long_as_it_would_wait_begins_anew() {
        let (mut restarts, mut now) = (Restarts::new(100), 0.0);
        let lives = [0.1, 0.3, 0.9, 0.3, 0.1, 5.0];
        let waits = lives.map(|life| live(&mut restarts, &mut now, life).unwrap());
        assert_eq!(waits, [0.2, 0.4, 0.2, 0.4, 0.8, 0.2]);
    }

    #[test]
    fn a_start_that_never_succeeds_is_no_work() {
        let (mut restarts, at) = (Restarts::new(100), Duration::from_secs);
        let waits = [100, 200].map(|second| {
            restarts.started(at(second));
            restarts.ended(at(second + 30), Ending::Failed)
        });
        let first = Fate::Restarting { after: FIRST_WAIT };
        assert_eq!(waits, [first, Fate::Restarting { after: 2 * FIRST_WAIT }]);
    }

    #[test]
    fn five_restarts_in_five_minutes_are_the_most() {
        let (mut restarts, mut now) = (Restarts::new(5), 0.0);
        assert!((0..5).all(|_| live(&mut restarts, &mut now, 1.0).is_some()));
        assert_eq!(live(&mut restarts, &mut now, 1.0), None);
        let (mut slow, mut now) = (Restarts::new(5), 0.0);
        assert!((0..50).all(|_| live(&mut slow, &mut now, 61.0).is_some()), "one a minute goes on forever");
    }

    #[test]
    fn each_start_has_its_own_time_to_report() {
        let limit = Duration::from_secs(30);
        let at = Duration::from_secs;
        let mut restarts = Restarts::new(5);
        restarts.started(at(100));
        assert_eq!(restarts.report_due(limit), Some(at(130)));
        restarts.reported(at(120));
        assert_eq!(restarts.report_due(limit), None);
        restarts.ended(at(500), Ending::Failed);
        restarts.started(at(501));
        assert_eq!(restarts.report_due(limit), Some(at(531)));
    }

    #[test]
    fn no_restart_of_what_was_told_to_end_or_cannot_work() {
        let mut restarts = Restarts::new(5);
        assert_eq!(restarts.ended(Duration::ZERO, Ending::Finished), Fate::Finished);
        for ending in [Ending::Unfit, Ending::Unauthenticated] {
            assert!(matches!(restarts.ended(Duration::ZERO, ending), Fate::GivenUp { .. }), "{ending:?}");
        }
        assert!(matches!(Restarts::new(0).ended(Duration::ZERO, Ending::Failed), Fate::GivenUp { .. }));
    }

    #[test]
    fn who_is_asked_to_end_is_started_again_however_often() {
        let (mut restarts, mut now) = (Restarts::new(2), 0);
        for _ in 0..50 {
            restarts.started(Duration::from_secs(now));
            restarts.reported(Duration::from_secs(now + 1));
            now += 20;
            let fate = restarts.ended(Duration::from_secs(now), Ending::Terminated);
            assert_eq!(fate, Fate::Restarting { after: FIRST_WAIT }, "it worked for longer than it would wait");
        }
        restarts.started(Duration::from_secs(now));
        let fate = restarts.ended(Duration::from_secs(now), Ending::Failed);
        assert!(matches!(fate, Fate::Restarting { .. }), "ends in order count towards no limit: {fate:?}");
        let fates = [0, 0].map(|_| restarts.ended(Duration::from_secs(now), Ending::Failed));
        assert!(matches!(fates[1], Fate::GivenUp { .. }), "failures do: {fates:?}");
        restarts.begin_anew();
        let fate = restarts.ended(Duration::from_secs(now), Ending::Failed);
        assert_eq!(fate, Fate::Restarting { after: FIRST_WAIT }, "until somebody has it started");
    }

    #[test]
    fn one_whose_certificates_ended_is_tried_until_it_has_new_ones() {
        let (mut restarts, at) = (Restarts::new(5), Duration::from_secs);
        restarts.started(at(0));
        restarts.reported(at(1));
        for second in 0..100 {
            let fate = restarts.ended(at(2 + second), Ending::Unauthenticated);
            assert_eq!(fate, Fate::Restarting { after: LONGEST_WAIT });
            restarts.started(at(3 + second));
        }
        assert!(matches!(restarts.ended(at(103), Ending::Unfit), Fate::GivenUp { .. }));
        let fate = restarts.ended(at(104), Ending::Failed);
        assert_eq!(fate, Fate::Restarting { after: FIRST_WAIT }, "tries without certificates are no restarts");
    }
}
