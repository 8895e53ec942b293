//! Work that somebody waits for goes ahead of long work on a device that works off a queue: long work is queued a quantum at a
//! time, and waits between two while what goes ahead of it, a step, is under way. Behind a step that it waited for, long work has
//! its turn before the next one begins. Knows no device.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

/// Longest that steps hold up a quantum: nobody hears the end of a step whose asker is gone, and long work goes on whoever asks.
const STEP_TIMEOUT: Duration = Duration::from_millis(250);

/// How long after the last sign of a step that is under way its end is expected: longer than an answer waits for what was queued
/// before it.
const STEP_EXPECTED: Duration = Duration::from_secs(3);

/// How long after the end of a step another one is expected.
const NEXT_STEP_EXPECTED: Duration = Duration::from_millis(300);

/// How many times as long as a device had nothing to do for it work then goes on that others go ahead of.
const SHARE: u32 = 2;

/// What goes ahead of what: the first of all, and all of long work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// A step of few rows: the next token of an answer.
    Token,
    /// A short context that is encoded.
    Short,
}

/// How much of what a step took beyond the least becomes part of what steps take, since whatever is beside one holds it up.
const LONGER_SHARE: u32 = 16;

/// The steps that are under way on a device.
#[derive(Default)]
pub struct Steps {
    under_way: Mutex<StepsUnderWay>,
    /// There are fewer steps, or nothing has its turn any more.
    fewer: Condvar,
}

#[derive(Default)]
struct StepsUnderWay {
    begun: u64,
    steps: Vec<Step>,
    /// When the last one ended.
    ended: Option<Instant>,
    /// Threads that wait until steps have ended.
    held_up: usize,
    /// Since when those have their turn that the last token's step held up.
    turn: Option<Instant>,
    /// What a token's step takes that nothing holds up, about.
    takes: Option<Duration>,
}

struct Step {
    number: u64,
    rank: Rank,
    thread: ThreadId,
    began: Instant,
    /// When it no longer counts.
    until: Instant,
}

/// Work of many rows that is queued quantum by quantum: long work, and short contexts.
pub struct Quanta {
    steps: Arc<Steps>,
    /// Of long work, then of short contexts.
    waited: [Mutex<Option<Wait>>; 2],
}

/// The last time that work of many rows had waited.
#[derive(Clone, Copy)]
struct Wait {
    ended: Instant,
    /// Of which the device had nothing to do for it.
    lost: Duration,
    /// Whether that is known: before, it is how long it waited.
    known: bool,
}

/// Operations of the quantum that is being queued.
#[derive(Default)]
pub struct Quantum(f64);

/// A step is under way until this is dropped.
#[derive(Default)]
pub struct PriorityGuard(Vec<(Arc<Steps>, u64)>);

impl Drop for PriorityGuard {
    fn drop(&mut self) {
        for (steps, number) in self.0.drain(..) {
            let mut under_way = steps.lock();
            under_way.end(number, Instant::now());
            drop(under_way);
            steps.fewer.notify_all();
        }
    }
}

impl PriorityGuard {
    /// Of a step on several devices.
    pub(crate) fn joined(guards: impl Iterator<Item = Self>) -> Self {
        Self(guards.flat_map(|mut guard| std::mem::take(&mut guard.0)).collect())
    }

    /// It is still under way.
    pub fn renew(&self) {
        for (steps, number) in &self.0 {
            let (mut under_way, now) = (steps.lock(), Instant::now());
            let own = under_way.steps.iter_mut().filter(|step| step.number == *number);
            own.for_each(|step| step.until = now + STEP_TIMEOUT);
        }
    }
}

impl Steps {
    /// A step of this thread begins.
    pub fn begin(self: &Arc<Self>, rank: Rank) -> PriorityGuard {
        let (mut under_way, now) = (self.lock(), Instant::now());
        under_way.begun += 1;
        let number = under_way.begun;
        let (thread, until) = (thread::current().id(), now + STEP_TIMEOUT);
        under_way.steps.push(Step { number, rank, thread, began: now, until });
        PriorityGuard(vec![(Arc::clone(self), number)])
    }

    /// Waits until those have had their turn that the last token's step held up: as long as it takes [`SHARE`] times over, while the time
    /// from step to step is no longer than `interval`.
    pub fn await_turn(&self, interval: Duration) {
        let mut under_way = self.lock();
        while let Some(left) = under_way.turn_left(interval, Instant::now()) {
            let waited = self.fewer.wait_timeout(under_way, left);
            under_way = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        under_way.turn = None;
    }

    /// Nobody needs the turn any more.
    fn end_turn(&self) {
        self.lock().turn = None;
        self.fewer.notify_all();
    }

    /// Waits until the steps that go ahead of this thread and are under way now have ended, for a quarter of a second at most.
    pub fn wait(&self) {
        self.wait_until(Instant::now() + STEP_TIMEOUT);
    }

    fn wait_until(&self, last: Instant) {
        let (own, mut under_way) = (thread::current().id(), self.lock());
        let begun = under_way.begun;
        under_way.held_up += 1;
        while let Some(left) = under_way.left((own, begun), Instant::now(), last) {
            let waited = self.fewer.wait_timeout(under_way, left);
            under_way = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        under_way.held_up -= 1;
    }

    /// Of this thread, where it is in a step itself.
    fn own_rank(&self) -> Option<Rank> {
        self.lock().rank_of(thread::current().id())
    }

    fn lock(&self) -> MutexGuard<'_, StepsUnderWay> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Quanta {
    /// Of the device whose steps these are.
    pub fn beside(steps: Arc<Steps>) -> Self {
        Self { steps, waited: Default::default() }
    }

    /// A step begins.
    pub fn priority(&self, rank: Rank) -> PriorityGuard {
        self.steps.begin(rank)
    }

    /// A step is to begin: as [`Steps::await_turn`].
    pub fn await_turn(&self, interval: Duration) {
        self.steps.await_turn(interval);
    }

    /// A work of many rows has ended.
    pub fn end_turn(&self) {
        self.steps.end_turn();
    }

    /// Whether steps are under way, or one has just ended: others come soon.
    pub fn are_wanted(&self) -> bool {
        self.steps.lock().are_about(Instant::now())
    }

    /// Waits between two quanta until the steps have ended that go ahead and are under way, unless this work has had less
    /// than twice the time since it last waited that it lost then: so two thirds of the device are its own, however many steps
    /// there are. The quantum that ended last kept the device `busy` so long.
    pub fn pass(&self, busy: Duration) {
        let waited = &self.waited[match self.steps.own_rank() {
            None => 0,
            Some(Rank::Short) => 1,
            Some(Rank::Token) => return self.steps.wait(),
        }];
        let last = || waited.lock().unwrap_or_else(PoisonError::into_inner);
        let began = Instant::now();
        let owed = last().as_mut().is_some_and(|last| last.is_owed(busy, began));
        if !owed {
            self.steps.wait();
            *last() = Some(Wait { ended: Instant::now(), lost: began.elapsed(), known: false });
        }
    }
}

impl Quantum {
    /// Adds those of a call. Whether the quantum ends with it: another like it would take it further from the `wanted` than it is.
    pub fn ends_with(&mut self, operations: f64, wanted: f64) -> bool {
        self.0 += operations;
        let ends = self.0 + operations / 2.0 >= wanted;
        if ends {
            self.0 = 0.0;
        }
        ends
    }
}

impl Wait {
    /// Whether the work will not have had its share since, once what is queued is done: another quantum, which takes what the last one
    /// took. The one that was queued before it waited has ended by the next time.
    fn is_owed(&mut self, busy: Duration, now: Instant) -> bool {
        if !self.known {
            (self.lost, self.known) = (self.lost.saturating_sub(busy), true);
        }
        now.saturating_duration_since(self.ended).saturating_add(busy) < SHARE * self.lost
    }
}

impl StepsUnderWay {
    fn are_about(&self, now: Instant) -> bool {
        let heard = |step: &Step| now < step.until - STEP_TIMEOUT + STEP_EXPECTED;
        self.steps.iter().any(heard)
            || self.ended.is_some_and(|ended| now.saturating_duration_since(ended) < NEXT_STEP_EXPECTED)
    }

    fn end(&mut self, number: u64, now: Instant) {
        let Some(at) = self.steps.iter().position(|step| step.number == number) else { return };
        let step = self.steps.remove(at);
        self.ended = Some(now);
        if step.rank > Rank::Token {
            return;
        }
        let (took, takes) = (now.saturating_duration_since(step.began), self.takes.unwrap_or(Duration::MAX));
        self.takes = Some(took.min(takes + took.saturating_sub(takes) / LONGER_SHARE));
        if self.held_up > 0 && !self.steps.iter().any(|step| step.rank == Rank::Token) {
            self.turn = Some(now);
        }
    }

    /// How long the turn still is, if it is somebody's.
    fn turn_left(&self, interval: Duration, now: Instant) -> Option<Duration> {
        let (began, takes) = (self.turn?, self.takes?);
        let turn = takes.saturating_mul(SHARE).min(interval.saturating_sub(takes));
        (began + turn).checked_duration_since(now).filter(|left| !left.is_zero())
    }

    /// Of the steps of a thread; none of long work.
    fn rank_of(&self, thread: ThreadId) -> Option<Rank> {
        self.steps.iter().filter(|step| step.thread == thread).map(|step| step.rank).min()
    }

    /// How long a thread has to wait from `now` on if none of the first `begun` steps ends, and not beyond `last`.
    fn left(&self, (own, begun): (ThreadId, u64), now: Instant, last: Instant) -> Option<Duration> {
        let rank = self.rank_of(own);
        let priority = |step: &&Step| step.thread != own && rank.is_none_or(|rank| step.rank < rank);
        let others = self.steps.iter().filter(|step| step.number <= begun).filter(priority);
        let until = others.map(|step| step.until).max()?.min(last);
        until.checked_duration_since(now).filter(|left| !left.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn long_work_waits_for_the_steps_of_others_and_no_longer_than_it_may() {
        let (steps, here) = (Arc::new(Steps::default()), thread::current().id());
        let elsewhere = thread::spawn(|| thread::current().id()).join().unwrap();
        let now = Instant::now();
        assert!(!steps.lock().are_about(now), "there was none");
        let left = |begun, seen: Duration| steps.lock().left((elsewhere, begun), now + seen, now + 3 * STEP_TIMEOUT);
        assert_eq!(left(0, Duration::ZERO), None);
        let step = steps.begin(Rank::Token);
        assert!(steps.lock().are_about(now), "one is under way");
        assert_eq!(steps.lock().left((here, 1), now, now + STEP_TIMEOUT), None, "its own step holds nobody up");
        assert_eq!(left(0, Duration::ZERO), None, "it began later");
        let first = left(1, Duration::ZERO).unwrap();
        assert!((STEP_TIMEOUT..2 * STEP_TIMEOUT).contains(&first), "{first:?}");
        assert_eq!(left(1, 3 * STEP_TIMEOUT), None, "the step is not heard of any more");
        let other = steps.begin(Rank::Token);
        step.renew();
        assert!(left(1, Duration::ZERO).unwrap() >= first);
        assert_eq!(steps.lock().left((elsewhere, 2), now, now), None, "long work has waited long enough");
        drop(step);
        assert_eq!(left(1, Duration::ZERO), None);
        assert!(left(2, Duration::ZERO).is_some());
        drop(other);
        assert_eq!(left(2, Duration::ZERO), None);
        let ended = steps.lock().ended.unwrap();
        assert!(
            steps.lock().are_about(ended + NEXT_STEP_EXPECTED / 2)
                && !steps.lock().are_about(ended + NEXT_STEP_EXPECTED)
        );
        let begun = Instant::now();
        let _last = steps.begin(Rank::Token);
        assert!(steps.lock().are_about(begun + 2 * NEXT_STEP_EXPECTED), "it is under way");
        assert!(!steps.lock().are_about(begun + 2 * STEP_EXPECTED), "its asker is gone");
    }

    #[test]
    fn tokens_go_ahead_of_short_contexts_and_both_of_long_ones() {
        let steps = Arc::new(Steps::default());
        let in_a_thread = |rank: Option<Rank>| {
            let steps = Arc::clone(&steps);
            thread::spawn(move || (thread::current().id(), rank.map(|rank| steps.begin(rank)))).join().unwrap()
        };
        let (token, _token) = in_a_thread(Some(Rank::Token));
        let (short, _short) = in_a_thread(Some(Rank::Short));
        let (other, _other) = in_a_thread(Some(Rank::Short));
        let (long, _) = in_a_thread(None);
        let now = Instant::now();
        let waits = |thread| steps.lock().left((thread, 3), now, now + STEP_TIMEOUT).is_some();
        assert_eq!([token, short, other, long].map(waits), [false, true, true, true]);
        drop(_token);
        assert_eq!([short, other, long].map(waits), [false, false, true], "equals do not wait for each other");
    }

    #[test]
    fn what_a_step_held_up_has_its_turn_before_the_next() {
        let (now, ms) = (Instant::now(), Duration::from_millis);
        let mut steps = StepsUnderWay::default();
        let mut step = |held_up: usize, (rank, began, ended): (Rank, u64, u64)| {
            steps.begun += 1;
            let (number, thread) = (steps.begun, thread::current().id());
            steps.steps.push(Step { number, rank, thread, began: now + ms(began), until: now });
            (steps.held_up, steps.turn) = (held_up, None);
            steps.end(number, now + ms(ended));
            steps.turn_left(ms(50), now + ms(ended))
        };
        assert_eq!(step(0, (Rank::Token, 0, 10)), None, "it held nobody up");
        assert_eq!(step(1, (Rank::Token, 10, 20)), Some(ms(20)), "twice what a step takes");
        assert_eq!(step(1, (Rank::Short, 20, 30)), None, "contexts are no steps");
        assert_eq!(step(1, (Rank::Token, 30, 72)), Some(ms(24)), "what is beside a step makes it longer");
        (0..200).for_each(|_| _ = step(1, (Rank::Token, 100, 130)));
        assert_eq!(
            step(1, (Rank::Token, 130, 160)).map(|left| left.as_millis()),
            Some(20),
            "no more than the interval leaves"
        );
        assert_eq!(steps.turn_left(ms(50), now + ms(185)), None, "it is over");
        assert_eq!(steps.turn_left(ms(10), now + ms(160)), None, "steps alone take longer than that");
    }

    #[test]
    fn a_step_waits_for_the_turn_of_others_and_no_longer_than_somebody_needs_it() {
        let quanta = Quanta::beside(Arc::default());
        let began = Instant::now();
        quanta.await_turn(Duration::from_secs(60));
        let mut under_way = quanta.steps.lock();
        (under_way.turn, under_way.takes) = (Some(began), Some(Duration::from_secs(20)));
        drop(under_way);
        thread::scope(|scope| {
            scope.spawn(|| quanta.await_turn(Duration::from_secs(60)));
            quanta.end_turn();
        });
        assert!(began.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn a_short_context_waits_for_tokens_and_has_its_share_beside_them() {
        let quanta = Quanta::beside(Arc::default());
        let token = thread::scope(|scope| scope.spawn(|| quanta.priority(Rank::Token)).join().unwrap());
        let _own = quanta.priority(Rank::Short);
        let passes = || {
            let began = Instant::now();
            quanta.pass(Duration::ZERO);
            began.elapsed()
        };
        assert!(passes() >= STEP_TIMEOUT / 2, "until nobody hears of the step any more");
        assert!(quanta.waited[1].lock().unwrap().unwrap().lost >= STEP_TIMEOUT / 2);
        token.renew();
        assert!(passes() < STEP_TIMEOUT / 2, "it has lost as much");
        assert!(quanta.waited[0].lock().unwrap().is_none(), "long work has a share of its own");
    }

    #[test]
    fn long_work_has_two_thirds_of_the_device() {
        let (now, ms) = (Instant::now(), Duration::from_millis);
        let waited = |lost| Wait { ended: now, lost: ms(lost), known: false };
        assert!(waited(15).is_owed(ms(0), now + ms(29)));
        assert!(!waited(15).is_owed(ms(0), now + ms(30)));
        assert!(!waited(0).is_owed(ms(0), now), "it has not waited");
        assert!(!waited(30).is_owed(ms(25), now), "the device had enough to do meanwhile, and has");
        assert!(!waited(30).is_owed(Duration::MAX, now), "nobody knows what it had to do");
        let mut last = waited(60);
        assert!(last.is_owed(ms(20), now + ms(10)), "of 40 lost");
        assert!(
            last.is_owed(ms(30), now + ms(49)) && !last.is_owed(ms(30), now + ms(50)),
            "only the first stretch counts"
        );
    }

    #[test]
    fn a_stretch_ends_where_it_is_closest_to_what_is_wanted() {
        let quanta = |calls: &[f64]| {
            let mut quantum = Quantum::default();
            calls.iter().map(|operations| quantum.ends_with(*operations, 15.0)).collect::<Vec<_>>()
        };
        assert_eq!(quanta(&[14.0, 14.0]), [true, true], "two would be twice as long as one is to be");
        assert_eq!(quanta(&[6.0; 5]), [false, true, false, true, false]);
        assert_eq!(quanta(&[1.0, 20.0, 1.0, 14.0]), [false, true, false, true]);
        let short = quanta(&[1.0; 30]);
        assert_eq!(short.iter().filter(|ends| **ends).count(), 2);
    }

    #[test]
    fn a_step_that_ends_wakes_who_waits() {
        let (steps, began, long) = (Arc::new(Steps::default()), Instant::now(), Duration::from_secs(60));
        let step = steps.begin(Rank::Token);
        steps.lock().steps[0].until = began + long;
        let (about_to_wait, waits) = (Arc::new(Barrier::new(2)), Arc::clone(&steps));
        let waiter = thread::spawn({
            let about_to_wait = Arc::clone(&about_to_wait);
            move || {
                about_to_wait.wait();
                waits.wait_until(began + long);
            }
        });
        about_to_wait.wait();
        drop(step);
        waiter.join().unwrap();
        assert!(began.elapsed() < long);
    }
}
