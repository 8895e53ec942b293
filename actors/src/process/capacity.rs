//! Room that many share by fair shares: memory of requests, threads, places. Whoever holds the least of it comes first, and nobody has
//! all of it. Does not know what is shared.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::oneshot;

/// Of what is free nobody may have more than so many times what is left then: one alone has three quarters, two have three
/// sevenths each.
const PARTS: usize = 3;

/// Who holds room: a key by its name, or nobody in particular.
pub type Holder = Option<Arc<str>>;

/// Room; copies are the same.
#[derive(Clone, Debug)]
pub struct SharedCapacity(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    all: usize,
    free: usize,
    held: HashMap<Holder, usize>,
    waiting: HashMap<Holder, VecDeque<(usize, oneshot::Sender<CapacityShare>)>>,
}

/// A part of the room, given back when it is dropped.
#[derive(Debug)]
pub struct CapacityShare {
    room: SharedCapacity,
    holder: Holder,
    amount: usize,
}

impl SharedCapacity {
    /// Room for so much.
    pub fn new(all: usize) -> Self {
        Self(Arc::new(Mutex::new(Inner { all, free: all, held: HashMap::new(), waiting: HashMap::new() })))
    }

    /// The most that anybody can have of it.
    pub fn most(&self) -> usize {
        let all = self.lock().all;
        (all / (PARTS + 1) * PARTS).max(all.min(1))
    }

    /// So much of it, as soon as there is as much; never more than [`most`](Self::most).
    pub async fn take(&self, holder: &Holder, amount: usize) -> CapacityShare {
        let amount = amount.min(self.most());
        let receiver = {
            let mut inner = self.lock();
            if inner.waiting.is_empty() && inner.fits(holder, amount) {
                inner.give(holder, amount);
                return CapacityShare { room: self.clone(), holder: holder.clone(), amount };
            }
            let (sender, receiver) = oneshot::channel();
            inner.waiting.entry(holder.clone()).or_default().push_back((amount, sender));
            receiver
        };
        // There may be room behind one that has to wait.
        self.deal();
        let mut waiting = CapacityWaiter { room: self, receiver: Some(receiver) };
        let share = waiting.receiver.as_mut().expect("it waits").await;
        waiting.receiver = None;
        share.expect("who waits is told")
    }

    /// Gives what has become free to those who wait.
    fn deal(&self) {
        loop {
            let mut inner = self.lock();
            let Some((holder, amount, receiver)) = inner.next() else { return };
            inner.give(&holder, amount);
            drop(inner);
            // Who waits no more gives it back at once.
            drop(receiver.send(CapacityShare { room: self.clone(), holder, amount }));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who waits for a share.
struct CapacityWaiter<'a> {
    room: &'a SharedCapacity,
    receiver: Option<oneshot::Receiver<CapacityShare>>,
}

/// Whoever stands behind one that waits no more may have its turn now.
impl Drop for CapacityWaiter<'_> {
    fn drop(&mut self) {
        if self.receiver.take().is_some() {
            self.room.deal();
        }
    }
}

impl Inner {
    fn fits(&self, holder: &Holder, amount: usize) -> bool {
        amount <= self.free && self.is_fair(holder, amount)
    }

    /// Whether a holder would leave enough to others. Who has nothing may have what there is.
    fn is_fair(&self, holder: &Holder, amount: usize) -> bool {
        let held = self.held.get(holder).copied().unwrap_or(0);
        held == 0 || held + amount <= PARTS * self.free.saturating_sub(amount)
    }

    fn give(&mut self, holder: &Holder, amount: usize) {
        self.free -= amount;
        *self.held.entry(holder.clone()).or_default() += amount;
    }

    fn take_back(&mut self, holder: &Holder, amount: usize) {
        self.free += amount;
        if let Some(held) = self.held.get_mut(holder) {
            *held -= amount;
            if *held == 0 {
                self.held.remove(holder);
            }
        }
    }

    /// Who is next: the one that holds the least of those whose first wish is fair. Where there is not as much yet, it is waited for.
    fn next(&mut self) -> Option<(Holder, usize, oneshot::Sender<CapacityShare>)> {
        self.waiting.retain(|_, queue| {
            queue.retain(|(_, receiver)| !receiver.is_closed());
            !queue.is_empty()
        });
        let fair = self.waiting.iter().filter(|(holder, queue)| self.is_fair(holder, queue[0].0));
        let held = |holder: &Holder| self.held.get(holder).copied().unwrap_or(0);
        let holder = fair.min_by_key(|(holder, _)| held(holder)).map(|(holder, _)| holder.clone())?;
        let queue = self.waiting.get_mut(&holder)?;
        let (amount, receiver) = queue.pop_front_if(|(amount, _)| *amount <= self.free)?;
        if queue.is_empty() {
            self.waiting.remove(&holder);
        }
        Some((holder, amount, receiver))
    }
}

impl CapacityShare {
    /// How much it is.
    pub fn amount(&self) -> usize {
        self.amount
    }

    /// Takes another share of the same holder in.
    pub fn merge(&mut self, mut other: Self) {
        self.amount += std::mem::take(&mut other.amount);
    }

    /// Gives all of it back but so much.
    pub fn shrink(&mut self, to: usize) {
        let surplus = self.amount.saturating_sub(to);
        self.amount -= surplus;
        self.room.lock().take_back(&self.holder, surplus);
        self.room.deal();
    }
}

impl Drop for CapacityShare {
    fn drop(&mut self) {
        if self.amount > 0 {
            self.shrink(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn holder(name: &str) -> Holder {
        Some(name.into())
    }

    fn now(room: &SharedCapacity, holder: &Holder, amount: usize) -> Option<CapacityShare> {
        room.take(holder, amount).now_or_never()
    }

    #[test]
    fn one_alone_leaves_a_quarter_for_others() {
        let (room, a, b) = (SharedCapacity::new(100), holder("a"), holder("b"));
        let all = now(&room, &a, 1000).unwrap();
        assert_eq!(all.amount(), 75);
        assert!(now(&room, &a, 1).is_none());
        assert!(now(&room, &b, 18).is_some());
        drop(all);
        let (first, second) = (now(&room, &b, 50).unwrap(), now(&room, &b, 25).unwrap());
        assert!(now(&room, &b, 1).is_none());
        drop((first, second));
        let places = SharedCapacity::new(4);
        let three: Vec<_> = (0..3).map(|_| now(&places, &a, 1).unwrap()).collect();
        assert!(now(&places, &a, 1).is_none() && now(&places, &b, 1).is_some());
        drop(three);
    }

    #[test]
    fn who_holds_least_is_next_and_who_went_away_is_passed_over() {
        let (room, a, b) = (SharedCapacity::new(4), holder("a"), holder("b"));
        let first = now(&room, &a, 3).unwrap();
        let mut more: Vec<_> = (0..3).map(|_| Box::pin(room.take(&a, 1))).collect();
        assert!(more.iter_mut().all(|wait| wait.as_mut().now_or_never().is_none()));
        let mut other = Box::pin(room.take(&b, 3));
        assert!(other.as_mut().now_or_never().is_none());
        drop(more.remove(0));
        drop(first);
        let got = other.as_mut().now_or_never().expect("there is room for it");
        let next = more[0].as_mut().now_or_never().expect("one is left");
        assert!(more[1].as_mut().now_or_never().is_none());
        drop((got, next));
        assert!(more[1].as_mut().now_or_never().is_some());
    }

    /// Small wishes do not keep a large one of somebody else from its turn for ever.
    #[test]
    fn a_large_wish_is_waited_for() {
        let (room, a, b) = (SharedCapacity::new(100), holder("a"), holder("b"));
        let held = now(&room, &a, 60).unwrap();
        let mut large = Box::pin(room.take(&b, 70));
        assert!(large.as_mut().now_or_never().is_none());
        assert!(now(&room, &a, 1).is_none());
        drop(held);
        assert!(large.as_mut().now_or_never().is_some());
    }

    #[test]
    fn what_is_merged_and_shrunk_is_given_back_once() {
        let (room, a) = (SharedCapacity::new(100), holder("a"));
        let mut share = now(&room, &a, 10).unwrap();
        share.merge(now(&room, &a, 20).unwrap());
        share.shrink(5);
        assert_eq!((share.amount(), room.lock().free), (5, 95));
        drop(share);
        let inner = room.lock();
        assert_eq!((inner.free, inner.held.len()), (100, 0));
    }
}
