//! How much may be under way between two machines: as Cubic has it, but for what counts as a full queue. Cubic takes every lost
//! packet for one, and so a thousandth of them costs it three quarters of what the path carries.

use std::{any::Any, sync::Arc, time::Instant};

use quinn::congestion::{Controller, ControllerFactory, CubicConfig};
use quinn_proto::RttEstimator;

/// Of a hundred bytes, those that a path may lose for reasons of its own. A full queue soon loses more, as the window goes on
/// opening.
const PERCENT: u64 = 5;
/// Bytes of which the share is taken at least: the few packets that a short transfer loses say nothing.
const LEAST: u64 = 128 << 10;

/// A window that closes where more than [`PERCENT`] of what was sent of late is lost, or the path marks congestion.
pub(super) struct Patient(pub Arc<CubicConfig>);

impl ControllerFactory for Patient {
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        Box::new(Window { cubic: self.0.clone().build(now, mtu), acknowledged: 0, lost: 0 })
    }
}

struct Window {
    cubic: Box<dyn Controller>,
    /// Bytes of the last window or two, and those of them that did not arrive.
    acknowledged: u64,
    lost: u64,
}

impl Window {
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

impl Controller for Window {
    fn on_sent(&mut self, now: Instant, bytes: u64, last: u64) {
        self.cubic.on_sent(now, bytes, last);
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, rtt: &RttEstimator) {
        self.acknowledge(bytes);
        self.cubic.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest: Option<u64>) {
        self.cubic.on_end_acks(now, in_flight, app_limited, largest);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, is_persistent: bool, lost: u64) {
        self.lost += lost;
        self.forget();
        let is_marked = lost == 0;
        if is_marked || is_persistent || 100 * self.lost > PERCENT * (self.acknowledged + self.lost).max(LEAST) {
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

    /// What is left of the window once a tenth of a second has passed, in which every so manyth packet was lost.
    fn left(every: u64, is_persistent: bool) -> f64 {
        let start = Instant::now();
        let mut cubic = CubicConfig::default();
        cubic.initial_window(256 << 10);
        let mut window = Window { cubic: Arc::new(cubic).build(start, SENT as u16), acknowledged: 0, lost: 0 };
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
        assert_eq!([50, 25].map(|every| left(every, false)), [1.0; 2]);
        assert!(left(15, false) < 0.5, "the queue is full");
        assert!(left(200, true) < 0.5, "nothing arrives for long");
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
