//! How much may be under way between two processes of a machine, where nothing is lost but what finds the receiver's queue full.

use std::{any::Any, sync::Arc, time::Instant};

use quinn::congestion::{Controller, ControllerFactory};

/// A window as large as a receiver's queue allows: a full queue halves it, and every acknowledgement opens it by `step`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loopback {
    /// Bytes that may be under way at most.
    pub most: u64,
    /// The largest datagram. Two of them always may.
    pub step: u64,
}

impl ControllerFactory for Loopback {
    fn build(self: Arc<Self>, now: Instant, _: u16) -> Box<dyn Controller> {
        Box::new(LoopbackWindow { bounds: *self, bytes: self.initial(), halved: now })
    }
}

impl Loopback {
    fn least(&self) -> u64 {
        2 * self.step
    }

    fn initial(&self) -> u64 {
        self.most.max(self.least())
    }
}

#[derive(Clone, Debug)]
struct LoopbackWindow {
    bounds: Loopback,
    bytes: u64,
    /// When it was halved last: the loss of what was sent before then says nothing new.
    halved: Instant,
}

impl Controller for LoopbackWindow {
    fn on_end_acks(&mut self, _: Instant, _: u64, is_idle: bool, _: Option<u64>) {
        if !is_idle {
            self.bytes = (self.bytes + self.bounds.step).min(self.bounds.initial());
        }
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, _: bool, _: u64) {
        if sent > self.halved {
            self.halved = now;
            self.bytes = (self.bytes / 2).max(self.bounds.least());
        }
    }

    fn on_mtu_update(&mut self, _: u16) {}

    fn window(&self) -> u64 {
        self.bytes
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        self.bounds.initial()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_full_queue_halves_the_window_once_and_it_grows_back() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut window = Arc::new(Loopback { most: 1000, step: 100 }).build(start, 1200);
        assert_eq!(window.window(), 1000);
        window.on_congestion_event(at(2), at(1), false, 100);
        window.on_congestion_event(at(3), at(1), false, 100);
        assert_eq!(window.window(), 500, "both were sent before the window was halved");
        window.on_end_acks(at(4), 0, true, None);
        assert_eq!(window.window(), 500, "nothing more was wanted");
        (0..9).for_each(|_| window.on_end_acks(at(5), 0, false, None));
        assert_eq!(window.window(), 1000);
        (10..20).for_each(|millis| window.on_congestion_event(at(millis), at(millis), true, 100));
        assert_eq!(window.window(), 200);
        let clamped = Arc::new(Loopback { most: 50, step: 100 }).build(start, 1200);
        assert_eq!(clamped.window(), 200, "two datagrams, whatever the queue");
    }
}
