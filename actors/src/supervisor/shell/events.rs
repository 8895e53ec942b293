//! The latest events of the cluster, once, for all who listen: each reads at its own pace from the same list, which is bounded.
//! Who reads more slowly than it moves on hears that something is missing. Decides nothing.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::{OwnedSemaphorePermit, watch};

use crate::cluster_event::{ClusterEvent, ClusterEventKind, EventId};

/// Events that are kept.
const KEPT_EVENTS: usize = 1024;

/// What happened lately; dropped, its listeners receive the end.
#[derive(Debug)]
pub struct Events {
    kept: Arc<Mutex<Kept>>,
    update: watch::Sender<()>,
}

#[derive(Debug)]
struct Kept {
    /// Which life of the supervisor it is: numbers begin anew with each.
    life: u64,
    /// Number of the first event that is kept.
    first: u64,
    events: VecDeque<Arc<ClusterEvent>>,
}

/// One listener's place in what happened.
#[derive(Debug)]
pub struct EventListener {
    kept: Arc<Mutex<Kept>>,
    update: watch::Receiver<()>,
    /// Number of the event that it receives next.
    next: u64,
    /// Whether what it asked for is not there.
    missed: bool,
    /// One of so many places, until it is dropped.
    _place: OwnedSemaphorePermit,
}

impl Events {
    /// Of the supervisor's life of this name.
    pub fn of(life: u64) -> Self {
        let kept = Kept { life, first: 1, events: VecDeque::with_capacity(KEPT_EVENTS) };
        Self { kept: Arc::new(Mutex::new(kept)), update: watch::Sender::new(()) }
    }

    /// Logs it, and says it to whoever listens, now or later.
    pub fn publish(&self, now: Duration, update: ClusterEventKind) {
        update.log();
        let mut kept = lock(&self.kept);
        let id = kept.id(kept.end());
        if kept.events.len() == KEPT_EVENTS {
            kept.events.pop_front();
            kept.first += 1;
        }
        kept.events.push_back(Arc::new(ClusterEvent { id, time: now.as_secs_f64(), update }));
        drop(kept);
        self.update.send_replace(());
    }

    /// Listens from behind an event, or from the oldest that is kept.
    pub fn listen(&self, after: Option<EventId>, place: OwnedSemaphorePermit) -> EventListener {
        let update = self.update.subscribe();
        let kept = lock(&self.kept);
        let known = after.filter(|id| id.life == kept.life && id.number < kept.end());
        let next = known.map_or(kept.first, |id| id.number + 1);
        let missed = after.is_some() && known.is_none();
        drop(kept);
        EventListener { kept: self.kept.clone(), update, next, missed, _place: place }
    }
}

impl Kept {
    /// Number of the event that comes next.
    fn end(&self) -> u64 {
        self.first + self.events.len() as u64
    }

    fn id(&self, number: u64) -> EventId {
        EventId { life: self.life, number }
    }
}

impl EventListener {
    /// The next event; none when the supervisor has ended.
    pub async fn next(&mut self) -> Option<Arc<ClusterEvent>> {
        loop {
            self.update.borrow_and_update();
            if let Some(event) = self.ready() {
                return Some(event);
            }
            if self.update.changed().await.is_err() {
                return self.ready();
            }
        }
    }

    /// The next event, if it is there.
    pub fn ready(&mut self) -> Option<Arc<ClusterEvent>> {
        let kept = lock(&self.kept);
        if std::mem::take(&mut self.missed) || self.next < kept.first {
            self.next = self.next.max(kept.first);
            let (id, time) = (kept.id(self.next - 1), kept.events.front().map_or(0.0, |event| event.time));
            return Some(Arc::new(ClusterEvent { id, time, update: ClusterEventKind::EventsMissed }));
        }
        let event = kept.events.get((self.next - kept.first) as usize)?.clone();
        self.next += 1;
        Some(event)
    }
}

fn lock(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    // Nothing in this file panics while it holds the lock.
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stated(events: &Events, hosts: std::ops::Range<usize>) {
        for host in hosts {
            events.publish(Duration::from_secs(host as u64), ClusterEventKind::HostReady { host: format!("h{host}") });
        }
    }

    fn listen(events: &Events, after: Option<EventId>) -> EventListener {
        let place = Arc::new(tokio::sync::Semaphore::new(1)).try_acquire_owned().expect("there is one");
        events.listen(after, place)
    }

    fn all(listener: &mut EventListener) -> Vec<String> {
        let shown = |event: Arc<ClusterEvent>| match &event.update {
            ClusterEventKind::HostReady { host } => format!("{} {host}", event.id),
            other => format!("{} {other:?}", event.id),
        };
        std::iter::from_fn(|| listener.ready().map(shown)).collect()
    }

    #[test]
    fn who_comes_back_hears_what_it_has_not_heard() {
        let events = Events::of(0xab);
        stated(&events, 0..3);
        assert_eq!(all(&mut listen(&events, None)), ["ab-1 h0", "ab-2 h1", "ab-3 h2"]);
        let at = |text: &str| Some(text.parse().expect("an id"));
        assert_eq!(all(&mut listen(&events, at("ab-2"))), ["ab-3 h2"]);
        assert_eq!(all(&mut listen(&events, at("ab-3"))), [""; 0]);
        // Of another life, or of no event.
        for strange in ["aa-2", "ab-4", "ab-18446744073709551615"] {
            assert_eq!(all(&mut listen(&events, at(strange)))[..2], ["ab-0 EventsMissed", "ab-1 h0"], "{strange}");
        }
    }

    #[test]
    fn who_is_slow_hears_that_something_is_missing_and_the_list_stays_short() {
        let events = Events::of(1);
        let mut slow = listen(&events, None);
        stated(&events, 0..KEPT_EVENTS + 5);
        let heard = all(&mut slow);
        assert_eq!(
            (heard.len(), heard[0].as_str(), heard[1].as_str()),
            (KEPT_EVENTS + 1, "1-5 EventsMissed", "1-6 h5")
        );
        stated(&events, 0..1);
        assert_eq!(all(&mut slow), ["1-1030 h0"]);
        assert_eq!(all(&mut listen(&events, "1-2".parse().ok()))[0], "1-6 EventsMissed");
    }

    #[tokio::test]
    async fn a_listener_ends_with_what_it_listens_to() {
        let events = Events::of(1);
        let mut listener = listen(&events, None);
        stated(&events, 0..1);
        drop(events);
        assert!(listener.next().await.is_some() && listener.next().await.is_none());
    }
}
