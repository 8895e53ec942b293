//! Whose turn it is to compute: one work at a time, given up at every layer and while waiting for others. Computes nothing.
//!
//! Next is whoever has used the least so far, so that a short context is not stuck behind a long one, unless somebody is due:
//! one that others have passed, since it asked, with [`DUE_AFTER_TURNS`] times as much work as its own longest turn. Of those that
//! are due it is who asked first. So a wait is over once others have computed [`DUE_AFTER_TURNS`] times that turn and one turn each
//! at most, however many short contexts come; and while others have used less, a long one takes a fifth of the host at most.
//!
//! A device that works off a queue has room for a work of a second scheduler beside, whose slots go ahead: long work then waits
//! between two of its quanta, not of its layers, and two thirds of the device stay its own.

use std::sync::{Arc, Mutex, MutexGuard};

use asterism_kernels::PriorityGuard;
use tokio::{sync::Notify, time::Instant};

use crate::{
    context_host::stop::StopFlag,
    cores::{ComputeKind, Cores},
    machine,
};

/// How many times its own longest turn others may compute before a work is due. As many as work at once, so that equals
/// take their turns by what they have used.
const DUE_AFTER_TURNS: f64 = 4.0;

/// What a turn of background work counts, when those are next who have used the least: beside others it gets a fifth.
const BACKGROUND_WEIGHT: f64 = 4.0;

/// The scheduler of a host; clones are the same.
#[derive(Clone)]
pub struct FairScheduler(Arc<Shared>);

struct Shared {
    queue: Mutex<Queue>,
    moved: Notify,
    cores: Arc<dyn Cores>,
}

impl FairScheduler {
    /// Whoever has a turn computes with these.
    pub fn new(cores: Arc<dyn Cores>) -> Self {
        Self(Arc::new(Shared { queue: Mutex::default(), moved: Notify::new(), cores }))
    }

    /// A slot for a work whose context has used so many seconds.
    pub fn slot(&self, used: f64, stop: StopFlag) -> Slot {
        let (slot, scheduler) = (self.lock().slot(), self.clone());
        Slot {
            scheduler,
            slot,
            stop,
            weight: 1.0,
            used,
            longest: 0.0,
            since: None,
            priority_start: None,
            priority: None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.0.queue.lock().expect("no holder panics")
    }
}

/// One work's place at the scheduler. Dropping it gives its turn up.
pub struct Slot {
    scheduler: FairScheduler,
    slot: u64,
    stop: StopFlag,
    /// What its seconds count.
    weight: f64,
    used: f64,
    /// Seconds of its longest turn.
    longest: f64,
    since: Option<Instant>,
    /// How it goes ahead of what else the device has to do, if it does.
    priority_start: Option<PriorityStart>,
    /// As long as it computes, turn after turn.
    priority: Option<PriorityGuard>,
}

/// Begins to go ahead, on the thread that computes.
type PriorityStart = Box<dyn Fn() -> PriorityGuard + Send>;

impl Slot {
    /// Goes ahead of other work on the device whenever it computes.
    #[must_use]
    pub fn with_priority(mut self, begin: impl Fn() -> PriorityGuard + Send + 'static) -> Self {
        self.priority_start = Some(Box::new(begin));
        self
    }

    /// Stands back behind others: nobody waits for what it computes.
    #[must_use]
    pub fn in_background(mut self, is: bool) -> Self {
        self.weight = if is { BACKGROUND_WEIGHT } else { 1.0 };
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
        self.priority = None;
        if self.since.is_some() {
            let took = self.turn();
            self.leave(self.scheduler.lock(), took);
        }
    }

    /// Lets whoever is next go first; `false` when told to stop.
    pub fn pass(&mut self) -> bool {
        let took = self.turn();
        self.wait(took) && !self.stop.is_set()
    }

    /// Ends the turn, as far as this slot is concerned; returns its seconds.
    fn turn(&mut self) -> f64 {
        let took = self.since.take().map_or(0.0, |since| since.elapsed().as_secs_f64());
        let counted = self.weight * took;
        (self.used, self.longest) = (self.used + counted, self.longest.max(counted));
        took
    }

    /// Asks, after a turn of so many seconds, and waits until the next one comes; `false` when told to stop first.
    fn wait(&mut self, took: f64) -> bool {
        let shared = &self.scheduler.0;
        self.scheduler.lock().ask(self.slot, took, (self.used, self.longest));
        shared.moved.notify_waiters();
        let has_it = || self.scheduler.lock().holder == Some(self.slot);
        let comes = has_it() || {
            // Who waits holds nobody up.
            self.priority = None;
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
            self.leave(self.scheduler.lock(), 0.0);
            return false;
        }
        self.since = Some(Instant::now());
        shared.cores.begin(ComputeKind::Encoding);
        match &self.priority {
            Some(priority) => priority.renew(),
            None => self.priority = self.priority_start.as_ref().map(|begin| begin()),
        }
        true
    }

    /// Neither has a turn nor waits for one.
    fn leave(&self, mut queue: MutexGuard<'_, Queue>, took: f64) {
        queue.leave(self.slot, took);
        if queue.holder.is_none() {
            self.scheduler.0.cores.end(ComputeKind::Encoding);
        }
        self.scheduler.0.moved.notify_waiters();
    }

    /// Seconds used, by earlier works of the context too.
    pub fn used(&self) -> f64 {
        self.used + self.since.map_or(0.0, |since| self.weight * since.elapsed().as_secs_f64())
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// The rule. Time passes only by turns.
#[derive(Default)]
struct Queue {
    slots: u64,
    holder: Option<u64>,
    /// In the order in which they asked.
    waiting: Vec<SlotRequest>,
    /// Seconds of all turns.
    done: f64,
}

#[derive(Clone, Copy)]
struct SlotRequest {
    slot: u64,
    used: f64,
    longest: f64,
    /// Seconds of all turns when it asked.
    asked: f64,
}

impl Queue {
    fn slot(&mut self) -> u64 {
        self.slots += 1;
        self.slots
    }

    /// Waits for a turn, with seconds used and of the longest turn; one held already is over and took so many seconds.
    fn ask(&mut self, slot: u64, took: f64, (used, longest): (f64, f64)) {
        self.end(slot, took);
        self.waiting.push(SlotRequest { slot, used, longest, asked: self.done });
        self.next();
    }

    /// Gives up a turn that took so many seconds, or no longer waits for one.
    fn leave(&mut self, slot: u64, took: f64) {
        self.waiting.retain(|waiting| waiting.slot != slot);
        self.end(slot, took);
        self.next();
    }

    fn end(&mut self, slot: u64, took: f64) {
        self.holder = self.holder.filter(|holder| *holder != slot);
        self.done += took;
    }

    fn next(&mut self) {
        if self.holder.is_none() {
            let due = |waiting: &&SlotRequest| self.done - waiting.asked >= DUE_AFTER_TURNS * waiting.longest;
            let least = || self.waiting.iter().min_by(|a, b| a.used.total_cmp(&b.used));
            self.holder = self.waiting.iter().find(due).or_else(least).map(|waiting| waiting.slot);
            self.waiting.retain(|waiting| Some(waiting.slot) != self.holder);
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

    /// Works at the scheduler, by slot: what they have used, their longest turn, and how many more there are.
    #[derive(Default)]
    struct Host {
        queue: Queue,
        works: BTreeMap<u64, (f64, f64, usize)>,
        /// Who computed how long, in order.
        log: Vec<(u64, f64)>,
    }

    impl Host {
        fn comes(&mut self, turns: usize) -> u64 {
            let slot = self.queue.slot();
            self.works.insert(slot, (0.0, 0.0, turns));
            self.queue.ask(slot, 0.0, (0.0, 0.0));
            slot
        }

        /// Whoever has the turn computes; returns it if that was its last.
        fn compute(&mut self, took: f64) -> Option<u64> {
            let slot = self.queue.holder.expect("somebody waits");
            let (used, longest, left) = self.works.get_mut(&slot).expect("it came");
            (*used, *longest, *left) = (*used + took, longest.max(took), *left - 1);
            self.log.push((slot, took));
            if *left == 0 {
                self.queue.leave(slot, took);
                self.works.remove(&slot);
                return Some(slot);
            }
            self.queue.ask(slot, took, (*used, *longest));
            None
        }

        /// The longest wait of a work between its first turn and its last, in seconds of others.
        fn longest_wait(&self, slot: u64) -> f64 {
            let own = |(at, turn): (usize, &(u64, f64))| (turn.0 == slot).then_some(at);
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
    fn a_turn_of_background_work_counts_four_times() {
        let scheduler = FairScheduler::new(Arc::new(OwnDevice));
        let mut slot = scheduler.slot(0.0, StopFlag::default()).in_background(true);
        assert!(slot.take());
        let began = Instant::now();
        while began.elapsed().as_secs_f64() < 0.001 {
            std::hint::spin_loop();
        }
        slot.give_up();
        assert!(slot.used() >= 0.004, "{}", slot.used());
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
                let Some(slot) = host.queue.holder else { break };
                if host.compute(f64::from(turn) * sizes[&slot]).is_some() {
                    comes(&mut host, &mut sizes);
                }
            }
            let longest = |turns: &[(u64, f64)]| turns.iter().map(|turn| turn.1).fold(0.0, f64::max);
            for slot in sizes.keys() {
                let own: Vec<usize> = (0..host.log.len()).filter(|at| host.log[*at].0 == *slot).collect();
                for pair in own.windows(2) {
                    let mut before = host.log[..=pair[0]].to_vec();
                    before.retain(|turn| turn.0 == *slot);
                    let others = &host.log[pair[0] + 1..pair[1]];
                    let waited: f64 = others.iter().map(|turn| turn.1).sum();
                    let bound = DUE_AFTER_TURNS * longest(&before) + 3.0 * longest(others);
                    prop_assert!(waited <= bound, "{waited} s of others, at most {bound} s");
                }
            }
        }
    }

    #[test]
    fn one_computes_at_a_time_and_all_come_to_an_end() {
        let scheduler = FairScheduler::new(Arc::new(OwnDevice));
        let (computing, runtime) = (Arc::new(Mutex::new(())), Runtime::new().expect("a runtime"));
        let workers: Vec<_> = (0..4)
            .map(|_| {
                let (mut slot, computing) = (scheduler.slot(0.0, StopFlag::default()), computing.clone());
                runtime.spawn_blocking(move || {
                    for _ in 0..50 {
                        assert!(slot.pass());
                        drop(computing.try_lock().expect("nobody else computes"));
                    }
                })
            })
            .collect();
        workers.into_iter().for_each(|worker| runtime.block_on(worker).expect("no panic"));
        assert_eq!(scheduler.lock().holder, None);
    }

    #[test]
    fn who_goes_ahead_does_so_from_turn_to_turn_until_it_gives_up() {
        let (scheduler, begun) = (FairScheduler::new(Arc::new(OwnDevice)), Arc::new(Mutex::new(0)));
        let begins = begun.clone();
        let mut slot = scheduler.slot(0.0, StopFlag::default()).with_priority(move || {
            *begins.lock().expect("nobody panics") += 1;
            PriorityGuard::default()
        });
        assert!(slot.take() && slot.pass() && slot.pass() && slot.take());
        assert_eq!(*begun.lock().expect("nobody panics"), 1);
        slot.give_up();
        assert!(slot.priority.is_none(), "it waits for others, who go on");
        assert!(slot.take() && slot.priority.is_some());
        assert_eq!(*begun.lock().expect("nobody panics"), 2);
    }

    #[test]
    fn who_is_told_to_stop_waits_no_longer() {
        let scheduler = FairScheduler::new(Arc::new(OwnDevice));
        let (stop, mut busy) = (StopFlag::default(), scheduler.slot(0.0, StopFlag::default()));
        let runtime = Runtime::new().expect("a runtime");
        let _runtime = runtime.enter();
        assert!(busy.take());
        stop.set();
        assert!(!scheduler.slot(0.0, stop).take());
        busy.give_up();
        assert!(scheduler.slot(9.0, StopFlag::default()).take());
    }
}
