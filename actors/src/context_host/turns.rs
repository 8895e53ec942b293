//! Whose turn it is to compute: one work at a time, given up at every layer and while waiting for others. Next is whoever
//! has used the least so far, so that a short context is not stuck behind a long one. Computes nothing.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use super::stop::Stop;

/// How often somebody who waits looks whether it was told to stop.
const STOP_CHECK: Duration = Duration::from_millis(20);

/// The turnstile of a host; clones are the same.
#[derive(Clone, Default)]
pub struct Turns(Arc<Shared>);

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    moved: Condvar,
}

impl Turns {
    /// A seat for a work whose context has used so many seconds.
    pub fn seat(&self, used: f64, stop: Stop) -> Seat {
        let seat = self.lock().seat();
        Seat { turns: self.clone(), seat, stop, used, since: None }
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
    since: Option<Instant>,
}

impl Seat {
    /// Waits for a turn; `false` when told to stop first.
    pub fn take(&mut self) -> bool {
        if self.since.is_some() {
            return true;
        }
        self.since = self.wait();
        self.since.is_some()
    }

    /// Asks, and waits until the turn comes.
    fn wait(&self) -> Option<Instant> {
        let shared = &self.turns.0;
        let mut queue = self.turns.lock();
        queue.ask(self.seat, self.used);
        shared.moved.notify_all();
        while queue.holder != Some(self.seat) {
            if self.stop.is_set() {
                queue.leave(self.seat);
                shared.moved.notify_all();
                return None;
            }
            queue = shared.moved.wait_timeout(queue, STOP_CHECK).expect("no holder panics").0;
        }
        Some(Instant::now())
    }

    /// Lets others compute.
    pub fn give_up(&mut self) {
        if let Some(since) = self.since.take() {
            self.used += since.elapsed().as_secs_f64();
            self.turns.lock().leave(self.seat);
            self.turns.0.moved.notify_all();
        }
    }

    /// Lets whoever has used less go first; `false` when told to stop.
    pub fn pass(&mut self) -> bool {
        self.used = self.used();
        self.since = self.wait();
        self.since.is_some() && !self.stop.is_set()
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

/// The rule: the turn goes to the least used, of equals to the one that came first.
#[derive(Default)]
struct Queue {
    seats: u64,
    holder: Option<u64>,
    /// Seat and seconds used.
    waiting: Vec<(u64, f64)>,
}

impl Queue {
    fn seat(&mut self) -> u64 {
        self.seats += 1;
        self.seats
    }

    /// Waits for a turn; one that is held already is up for others too.
    fn ask(&mut self, seat: u64, used: f64) {
        self.holder = self.holder.filter(|holder| *holder != seat);
        self.waiting.push((seat, used));
        self.next();
    }

    /// Gives up a turn, or no longer waits for one.
    fn leave(&mut self, seat: u64) {
        self.waiting.retain(|(waiting, _)| *waiting != seat);
        self.holder = self.holder.filter(|holder| *holder != seat);
        self.next();
    }

    fn next(&mut self) {
        if self.holder.is_none() {
            let least = self.waiting.iter().min_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0))).copied();
            self.holder = least.map(|(seat, _)| seat);
            self.waiting.retain(|(waiting, _)| Some(*waiting) != self.holder);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_work_is_done_before_a_long_one_goes_on() {
        let mut queue = Queue::default();
        let (long, short) = (queue.seat(), queue.seat());
        // Layers of 10 s and of 1 s; the short work has 4 and comes after the first layer of the long one.
        let (mut used, mut layers) = ([0.0, 0.0], Vec::new());
        queue.ask(long, 0.0);
        queue.ask(short, 0.0);
        while layers.len() < 7 {
            let turn = queue.holder.expect("somebody waits");
            let at = usize::from(turn == short);
            layers.push(turn);
            used[at] += [10.0, 1.0][at];
            let done = layers.iter().filter(|layer| **layer == short).count() == 4;
            match turn == short && done {
                true => queue.leave(turn),
                false => queue.ask(turn, used[at]),
            }
        }
        assert_eq!(layers, [long, short, short, short, short, long, long]);
    }

    #[test]
    fn one_computes_at_a_time_and_all_come_to_an_end() {
        let turns = Turns::default();
        let computing = Arc::new(Mutex::new(()));
        let workers: Vec<_> = (0..4)
            .map(|_| {
                let (mut seat, computing) = (turns.seat(0.0, Stop::default()), computing.clone());
                std::thread::spawn(move || {
                    for _ in 0..50 {
                        assert!(seat.pass());
                        drop(computing.try_lock().expect("nobody else computes"));
                    }
                })
            })
            .collect();
        workers.into_iter().for_each(|worker| worker.join().expect("no panic"));
        assert_eq!(turns.lock().holder, None);
    }

    #[test]
    fn who_is_told_to_stop_waits_no_longer() {
        let turns = Turns::default();
        let (stop, mut busy) = (Stop::default(), turns.seat(0.0, Stop::default()));
        assert!(busy.take());
        stop.set();
        assert!(!turns.seat(0.0, stop).take());
        busy.give_up();
        assert!(turns.seat(9.0, Stop::default()).take());
    }
}
