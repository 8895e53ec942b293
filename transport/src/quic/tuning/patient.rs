//! How much may be under way between two machines: as Cubic has it, but for what counts as a full queue. Cubic takes every lost
//! packet for one, and so a thousandth of them costs it three quarters of what the path carries. Where packets wait in queues, a
//! lost one does count: others may have filled the queue too.

use std::{
    any::Any,
    sync::Arc,
    time::{Duration, Instant},
};

use quinn::congestion::{Controller, ControllerFactory, CubicConfig};
use quinn_proto::RttEstimator;

/// Of a hundred bytes, those that a path may lose for reasons of its own. A full queue soon loses more, as the window goes on
/// opening.
const PERCENT: u64 = 5;
/// Bytes of which the share is taken at least: the few packets that a short transfer loses say nothing.
const LEAST: u64 = 128 << 10;

/// To how much Cubic closes a window, in percent. Where a round trip's shortest time is no more of it, the path stays full all the
/// same: the rest was under way in queues.
const CLOSED_PERCENT: u32 = 70;
/// A shorter wait is no queue to give way in: what carries the packets may have been held up as long.
const LONG: Duration = Duration::from_millis(8);

/// A window that closes where packets are lost and queues are long, where more than [`PERCENT`] of what was sent of late is lost,
/// or where the path marks congestion.
pub(crate) struct Patient(pub Arc<CubicConfig>);

impl ControllerFactory for Patient {
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        Box::new(PatientWindow {
            cubic: self.0.clone().build(now, mtu),
            acknowledged: 0,
            lost: 0,
            waits: Waits::default(),
        })
    }
}

struct PatientWindow {
    cubic: Box<dyn Controller>,
    /// Bytes of the last window or two, and those of them that did not arrive.
    acknowledged: u64,
    lost: u64,
    waits: Waits,
}

/// The shortest round trips of this window's packets and of those of the window before: what even these waited, they waited in
/// queues that stand.
#[derive(Clone, Copy, Default)]
struct Waits {
    shortest: [Option<Duration>; 2],
    acknowledged: u64,
    are_long: bool,
}

impl Waits {
    /// So many `bytes` of `window` went there and back in `rtt`; no round trip of the path took less than `least`.
    fn note(&mut self, (bytes, window): (u64, u64), rtt: Duration, least: Duration) {
        let [now, before] = &mut self.shortest;
        *now = Some(now.map_or(rtt, |now| now.min(rtt)));
        self.acknowledged += bytes;
        if self.acknowledged >= window {
            (*before, *now, self.acknowledged) = (*now, None, 0);
        }
        let shortest = self.shortest.into_iter().flatten().min().unwrap_or(least);
        self.are_long = shortest.saturating_sub(least) >= LONG && 100 * least <= CLOSED_PERCENT * shortest;
    }
}

impl PatientWindow {
    fn acknowledge(&mut self, bytes: u64) {
        self.acknowledged += bytes;
        self.forget();
    }

    /// Of what is older than a window, half counts as much.
    fn forget(&mut self) {
        if self.acknowledged + self.lost > 2 * self.window().max(LEAST) {
            self.acknowledged /= 2;
            self.lost /= 2;
        }
    }
}

impl Controller for PatientWindow {
    fn on_sent(&mut self, now: Instant, bytes: u64, last: u64) {
        self.cubic.on_sent(now, bytes, last);
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, rtt: &RttEstimator) {
        self.acknowledge(bytes);
        self.waits.note((bytes, self.window()), now.saturating_duration_since(sent), rtt.min());
        self.cubic.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest: Option<u64>) {
        self.cubic.on_end_acks(now, in_flight, app_limited, largest);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, is_persistent: bool, lost: u64) {
        self.lost += lost;
        self.forget();
        let is_marked = lost == 0;
        let is_much = 100 * self.lost > PERCENT * (self.acknowledged + self.lost).max(LEAST);
        if is_marked || is_persistent || self.waits.are_long || is_much {
            self.cubic.on_congestion_event(now, sent, is_persistent, lost);
        }
    }

    fn on_mtu_update(&mut self, mtu: u16) {
        self.cubic.on_mtu_update(mtu);
    }

    fn window(&self) -> u64 {
        self.cubic.window()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Self { cubic: self.cubic.clone_box(), ..*self })
    }

    fn initial_window(&self) -> u64 {
        self.cubic.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SENT: u64 = 1200;

    /// What is left of the window once a tenth of a second has passed, in which every so manyth packet was lost; round trips take
    /// 100 ms, and so many at least.
    fn left(every: u64, is_persistent: bool, least: u64) -> f64 {
        let start = Instant::now();
        let mut cubic = CubicConfig::default();
        cubic.initial_window(256 << 10);
        let cubic = Arc::new(cubic).build(start, SENT as u16);
        let mut window = PatientWindow { cubic, acknowledged: 0, lost: 0, waits: Waits::default() };
        let [rtt, least] = [100, least].map(Duration::from_millis);
        window.waits.note((SENT, window.window()), rtt, least);
        let before = window.window() as f64;
        for packet in 1..=1000 {
            let at = start + Duration::from_micros(100 * packet);
            if packet % every == 0 {
                window.on_congestion_event(at, at, is_persistent, SENT);
            } else {
                window.acknowledge(SENT);
            }
        }
        window.window() as f64 / before
    }

    #[test]
    fn a_path_may_lose_a_few_packets_of_a_hundred() {
        assert_eq!([50, 25].map(|every| left(every, false, 75)), [1.0; 2]);
        assert!(left(15, false, 75) < 0.5, "the queue is full");
        assert!(left(200, true, 75) < 0.5, "nothing arrives for long");
    }

    #[test]
    fn who_waits_in_a_queue_gives_way_to_others_in_it() {
        assert_eq!(left(500, false, 71), 1.0, "the path would not be full");
        assert!(left(500, false, 70) < 0.75);
    }

    #[test]
    fn a_few_late_packets_are_no_queue() {
        let (mut waits, least) = (Waits::default(), Duration::from_millis(10));
        let mut note = |rtt: u32| {
            waits.note((SENT, 10 * SENT), least * rtt, least);
            waits.are_long
        };
        assert!((0..10).all(|_| note(5)), "all are late");
        assert!(!note(1), "one was in time, and so the queue was empty");
        assert!((0..18).all(|_| !note(5)));
        assert!((0..10).any(|_| note(5)), "two windows later");
    }

    #[test]
    fn a_mark_closes_the_window() {
        let now = Instant::now();
        let mut window = Arc::new(Patient(Arc::default())).build(now, SENT as u16);
        let before = window.window();
        window.on_congestion_event(now, now, false, 0);
        assert!(window.window() < before);
    }
}
