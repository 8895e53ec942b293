//! Whose turn it is to compute: one work at a time, given up at every layer and while waiting for others. Computes nothing.
//!
//! Next is whoever has used the least so far, so that a short context is not stuck behind a long one, unless somebody is due:
//! one that others have passed, since it asked, with [`PATIENCE`] times as much work as its own longest turn. Of those that
//! are due it is who asked first. So a wait is over once others have computed [`PATIENCE`] times that turn and one turn each
//! at most, however many short contexts come; and while others have used less, a long one takes a fifth of the host at most.
//!
//! A device that works off a queue has room for a work of a second turnstile beside, whose seats go ahead: long work then waits
//! between two of its stretches, not of its layers, and two thirds of the device stay its own.

use std::sync::{Arc, Mutex, MutexGuard};

use asterism_kernels::Ahead;
use tokio::{sync::Notify, time::Instant};

use crate::{
    context_host::stop::Stop,
    cores::{Cores, Work},
    machine,
};

/// How many times its own longest turn others may compute before a work is due. As many as work at once, so that equals
/// take their turns by what they have used.
const PATIENCE: f64 = 4.0;

/// The turnstile of a host; clones are the same.
#[derive(Clone)]
pub struct Turns(Arc<Shared>);

struct Shared {
    queue: Mutex<Queue>,
    moved: Notify,
    cores: Arc<dyn Cores>,
}

impl Turns {
    /// Whoever has a turn computes with these.
    pub fn new(cores: Arc<dyn Cores>) -> Self {
        Self(Arc::new(Shared { queue: Mutex::default(), moved: Notify::new(), cores }))
    }

    /// A seat for a work whose context has used so many seconds.
    pub fn seat(&self, used: f64, stop: Stop) -> Seat {
        let (seat, turns) = (self.lock().seat(), self.clone());
        Seat { turns, seat, stop, used, longest: 0.0, since: None, goes_ahead: None, ahead: None }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.0.queue.lock().expect("no holder panics")
    }
}

/// One work's place at the turnstile. Dropping it gives its turn up.
pub struct Seat {
    turns: Turns,
    seat: u64,
    stop: Stop,
    used: f64,
    /// Seconds of its longest turn.
    longest: f64,
    since: Option<Instant>,
    /// How it goes ahead of what else the device has to do, if it does.
    goes_ahead: Option<GoesAhead>,
    /// As long as it computes, turn after turn.
    ahead: Option<Ahead>,
}

/// Begins to go ahead, on the thread that computes.
type GoesAhead = Box<dyn Fn() -> Ahead + Send>;

impl Seat {
    /// Goes ahead of other work on the device whenever it computes.
    #[must_use]
    pub fn going_ahead(mut self, begin: impl Fn() -> Ahead + Send + 'static) -> Self {
        self.goes_ahead = Some(Box::new(begin));
        self
    }

    /// Waits for a turn; `false` when told to stop first.
    pub fn take(&mut self) -> bool {
        if self.since.is_some() {
            return true;
        }
        self.wait(0.0)
    }

    /// Lets others compute.
    pub fn give_up(&mut self) {
        self.ahead = None;
        if self.since.is_some() {
            let took = self.turn();
            self.leave(self.turns.lock(), took);
        }
    }

    /// Lets whoever is next go first; `false` when told to stop.
    pub fn pass(&mut self) -> bool {
        let took = self.turn();
        self.wait(took) && !self.stop.is_set()
    }

    /// Ends the turn, as far as this seat is concerned; returns its seconds.
    fn turn(&mut self) -> f64 {
        let took = self.since.take().map_or(0.0, |since| since.elapsed().as_secs_f64());
        (self.used, self.longest) = (self.used + took, self.longest.max(took));
        took
    }

    /// Asks, after a turn of so many seconds, and waits until the next one comes; `false` when told to stop first.
    fn wait(&mut self, took: f64) -> bool {
        let shared = &self.turns.0;
        self.turns.lock().ask(self.seat, took, (self.used, self.longest));
        shared.moved.notify_waiters();
        let has_it = || self.turns.lock().holder == Some(self.seat);
        let comes = has_it() || {
            // Who waits holds nobody up.
            self.ahead = None;
            machine::block_on(async {
                loop {
                    let moved = shared.moved.notified();
                    if has_it() {
                        return true;
                    }
                    tokio::select! {
                        biased;
                        () = self.stop.wait() => return false,
                        () = moved => {}
                    }
                }
            })
        };
        if !comes {
            self.leave(self.turns.lock(), 0.0);
            return false;
        }
        self.since = Some(Instant::now());
        shared.cores.begin(Work::Encoding);
        match &self.ahead {
            Some(ahead) => ahead.renew(),
            None => self.ahead = self.goes_ahead.as_ref().map(|begin| begin()),
        }
        true
    }

    /// Neither has a turn nor waits for one.
    fn leave(&self, mut queue: MutexGuard<'_, Queue>, took: f64) {
        queue.leave(self.seat, took);
        if queue.holder.is_none() {
            self.turns.0.cores.end(Work::Encoding);
        }
        self.turns.0.moved.notify_waiters();
    }

    /// Seconds used, by earlier works of the context too.
    pub fn used(&self) -> f64 {
        self.used + self.since.map_or(0.0, |since| since.elapsed().as_secs_f64())
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// The rule. Time passes only by turns.
#[derive(Default)]
struct Queue {
    seats: u64,
    holder: Option<u64>,
    /// In the order in which they asked.
    waiting: Vec<Waiting>,
    /// Seconds of all turns.
    done: f64,
}

#[derive(Clone, Copy)]
struct Waiting {
    seat: u64,
    used: f64,
    longest: f64,
    /// Seconds of all turns when it asked.
    asked: f64,
}

impl Queue {
    fn seat(&mut self) -> u64 {
        self.seats += 1;
        self.seats
    }

    /// Waits for a turn, with seconds used and of the longest turn; one held already is over and took so many seconds.
    fn ask(&mut self, seat: u64, took: f64, (used, longest): (f64, f64)) {
        self.end(seat, took);
        self.waiting.push(Waiting { seat, used, longest, asked: self.done });
        self.next();
    }

    /// Gives up a turn that took so many seconds, or no longer waits for one.
    fn leave(&mut self, seat: u64, took: f64) {
        self.waiting.retain(|waiting| waiting.seat != seat);
        self.end(seat, took);
        self.next();
    }

    fn end(&mut self, seat: u64, took: f64) {
        self.holder = self.holder.filter(|holder| *holder != seat);
        self.done += took;
    }

    fn next(&mut self) {
        if self.holder.is_none() {
            let due = |waiting: &&Waiting| self.done - waiting.asked >= PATIENCE * waiting.longest;
            let least = || self.waiting.iter().min_by(|a, b| a.used.total_cmp(&b.used));
            self.holder = self.waiting.iter().find(due).or_else(least).map(|waiting| waiting.seat);
            self.waiting.retain(|waiting| Some(waiting.seat) != self.holder);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::{collection::vec, prelude::*};
    use tokio::runtime::Runtime;

    use super::*;
    use crate::cores::OwnDevice;

    /// Works at the turnstile, by seat: what they have used, their longest turn, and how many more there are.
    #[derive(Default)]
    struct Host {
        queue: Queue,
        works: BTreeMap<u64, (f64, f64, usize)>,
        /// Who computed how long, in order.
        log: Vec<(u64, f64)>,
    }

    impl Host {
        fn comes(&mut self, turns: usize) -> u64 {
            let seat = self.queue.seat();
            self.works.insert(seat, (0.0, 0.0, turns));
            self.queue.ask(seat, 0.0, (0.0, 0.0));
            seat
        }

        /// Whoever has the turn computes; returns it if that was its last.
        fn compute(&mut self, took: f64) -> Option<u64> {
            let seat = self.queue.holder.expect("somebody waits");
            let (used, longest, left) = self.works.get_mut(&seat).expect("it came");
            (*used, *longest, *left) = (*used + took, longest.max(took), *left - 1);
            self.log.push((seat, took));
            if *left == 0 {
                self.queue.leave(seat, took);
                self.works.remove(&seat);
                return Some(seat);
            }
            self.queue.ask(seat, took, (*used, *longest));
            None
        }

        /// The longest wait of a work between its first turn and its last, in seconds of others.
        fn longest_wait(&self, seat: u64) -> f64 {
            let own = |(at, turn): (usize, &(u64, f64))| (turn.0 == seat).then_some(at);
            let turns: Vec<usize> = self.log.iter().enumerate().filter_map(own).collect();
            let others = |pair: &[usize]| self.log[pair[0] + 1..pair[1]].iter().map(|turn| turn.1).sum();
            turns.windows(2).map(others).fold(0.0, f64::max)
        }
    }

    #[test]
    fn a_short_work_is_done_before_a_long_one_goes_on() {
        let mut host = Host::default();
        let (long, short) = (host.comes(3), host.comes(4));
        // Layers of 10 s and of 1 s; the short work comes in the first layer of the long one.
        while let Some(turn) = host.queue.holder {
            host.compute(if turn == long { 10.0 } else { 1.0 });
        }
        let layers: Vec<u64> = host.log.iter().map(|turn| turn.0).collect();
        assert_eq!(layers, [long, short, short, short, short, long, long]);
    }

    #[test]
    fn a_short_work_is_not_stuck_behind_many_long_ones() {
        let mut host = Host::default();
        let longs: Vec<u64> = (0..3).map(|_| host.comes(32)).collect();
        for _ in 0..20 {
            host.compute(10.0);
        }
        let (short, before) = (host.comes(4), host.log.len());
        while host.compute(if host.queue.holder == Some(short) { 1.0 } else { 10.0 }) != Some(short) {}
        let others: f64 = host.log[before..].iter().filter(|turn| turn.0 != short).map(|turn| turn.1).sum();
        assert_eq!(others, 10.0, "the turn under way");
        // A fourth of the host each, whatever they have used.
        while host.log.len() < 60 {
            host.compute(10.0);
        }
        assert!(longs.iter().all(|long| host.longest_wait(*long) <= 30.0));
    }

    #[test]
    fn a_long_work_gets_its_turns_in_an_endless_stream_of_short_ones() {
        let mut host = Host::default();
        let long = host.comes(32);
        for _ in 0..3 {
            host.comes(2);
        }
        loop {
            match host.compute(if host.queue.holder == Some(long) { 10.0 } else { 1.0 }) {
                Some(ended) if ended == long => break,
                Some(_) => host.comes(2),
                None => long,
            };
        }
        assert_eq!(host.longest_wait(long), 40.0);
    }

    proptest! {
        /// Turns of any length, up to four works at once, and another one for each that ends.
        #[test]
        fn every_wait_is_bounded(works in vec((1..20_usize, 0..4_u32), 4..60), turns in vec(1..50_u32, 300)) {
            let (mut host, mut works) = (Host::default(), works.into_iter());
            let mut sizes = BTreeMap::new();
            let mut comes = |host: &mut Host, sizes: &mut BTreeMap<u64, f64>| {
                let Some((turns, size)) = works.next() else { return };
                sizes.insert(host.comes(turns), f64::from(10_u32.pow(size)));
            };
            (0..4).for_each(|_| comes(&mut host, &mut sizes));
            for turn in turns {
                let Some(seat) = host.queue.holder else { break };
                if host.compute(f64::from(turn) * sizes[&seat]).is_some() {
                    comes(&mut host, &mut sizes);
                }
            }
            let longest = |turns: &[(u64, f64)]| turns.iter().map(|turn| turn.1).fold(0.0, f64::max);
            for seat in sizes.keys() {
                let own: Vec<usize> = (0..host.log.len()).filter(|at| host.log[*at].0 == *seat).collect();
                for pair in own.windows(2) {
                    let mut before = host.log[..=pair[0]].to_vec();
                    before.retain(|turn| turn.0 == *seat);
                    let others = &host.log[pair[0] + 1..pair[1]];
                    let waited: f64 = others.iter().map(|turn| turn.1).sum();
                    let bound = PATIENCE * longest(&before) + 3.0 * longest(others);
                    prop_assert!(waited <= bound, "{waited} s of others, at most {bound} s");
                }
            }
        }
    }

    #[test]
    fn one_computes_at_a_time_and_all_come_to_an_end() {
        let turns = Turns::new(Arc::new(OwnDevice));
        let (computing, runtime) = (Arc::new(Mutex::new(())), Runtime::new().expect("a runtime"));
        let workers: Vec<_> = (0..4)
            .map(|_| {
                let (mut seat, computing) = (turns.seat(0.0, Stop::default()), computing.clone());
                runtime.spawn_blocking(move || {
                    for _ in 0..50 {
                        assert!(seat.pass());
                        drop(computing.try_lock().expect("nobody else computes"));
                    }
                })
            })
            .collect();
        workers.into_iter().for_each(|worker| runtime.block_on(worker).expect("no panic"));
        assert_eq!(turns.lock().holder, None);
    }

    #[test]
    fn who_goes_ahead_does_so_from_turn_to_turn_until_it_gives_up() {
        let (turns, begun) = (Turns::new(Arc::new(OwnDevice)), Arc::new(Mutex::new(0)));
        let begins = begun.clone();
        let mut seat = turns.seat(0.0, Stop::default()).going_ahead(move || {
            *begins.lock().expect("nobody panics") += 1;
            Ahead::default()
        });
        assert!(seat.take() && seat.pass() && seat.pass() && seat.take());
        assert_eq!(*begun.lock().expect("nobody panics"), 1);
        seat.give_up();
        assert!(seat.ahead.is_none(), "it waits for others, who go on");
        assert!(seat.take() && seat.ahead.is_some());
        assert_eq!(*begun.lock().expect("nobody panics"), 2);
    }

    #[test]
    fn who_is_told_to_stop_waits_no_longer() {
        let turns = Turns::new(Arc::new(OwnDevice));
        let (stop, mut busy) = (Stop::default(), turns.seat(0.0, Stop::default()));
        let runtime = Runtime::new().expect("a runtime");
        let _runtime = runtime.enter();
        assert!(busy.take());
        stop.set();
        assert!(!turns.seat(0.0, stop).take());
        busy.give_up();
        assert!(turns.seat(9.0, Stop::default()).take());
    }
}
