//! Whether the supervisor's actor goes on. Asks it nothing.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::time::Instant;

/// An actor that does nothing for so long hangs.
const ALIVE_WITHIN: Duration = Duration::from_secs(1);

/// When the actor last did something: it is told the time often, so that it is never long idle.
pub struct Watchdog {
    origin: Instant,
    /// The longest that it is idle while it goes on.
    limit: Duration,
    /// Milliseconds from the origin.
    last: AtomicU64,
}

impl Watchdog {
    /// Of an actor that is told the time twice a heartbeat.
    pub fn of(heartbeat: Duration) -> Self {
        Self { origin: Instant::now(), limit: ALIVE_WITHIN.max(2 * heartbeat), last: AtomicU64::new(0) }
    }

    /// It does something.
    pub fn beat(&self) {
        self.last.store(self.origin.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    /// For how long the actor has done nothing, or one thing, if that is too long.
    pub fn silence(&self) -> Option<Duration> {
        let last = Duration::from_millis(self.last.load(Ordering::Relaxed));
        Some(self.origin.elapsed().saturating_sub(last)).filter(|silence| *silence > self.limit)
    }
}
