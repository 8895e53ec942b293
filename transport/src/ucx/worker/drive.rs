//! Drives a worker: looks for a while, then sleeps until UCX's descriptor says that something happened.

use std::{
    future::poll_fn,
    os::fd::OwnedFd,
    sync::{Arc, atomic::Ordering},
    task::Poll,
    thread,
    time::{Duration, Instant},
};

use tokio::io::{Interest, unix::AsyncFd};

use super::{Armed, Worker};
use crate::signal::Signal;

/// Rounds without a pause while there is something to do but nothing arrives.
const ROUNDS: usize = 64;

/// Looks before other tasks run, while there may be another message any moment: half a microsecond.
const LOOKS: usize = 32;

/// A worker that could not be put to sleep for so long is looked at now and then, no longer without a pause.
const RESTLESS: Duration = Duration::from_millis(2);
/// The pause, which is what a message may wait then: while others come, and where none has come for a while.
const PAUSES: [Duration; 2] = [Duration::from_micros(50), Duration::from_millis(1)];
/// For how long none has.
const QUIET_AFTER: Duration = Duration::from_millis(100);

/// Says that somebody drives the worker, for as long as it lives.
struct Driver {
    event: AsyncFd<OwnedFd>,
    worker: Arc<Worker>,
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.worker.set_driven(false);
    }
}

/// Drives `worker` until it is closed and its last endpoint is. After the last event it looks for `spin` longer before it
/// sleeps, and lets other tasks run in between; the runtime looks at its sockets, and at the task that it was started with, once
/// for some tens of these times.
pub(crate) fn drive(
    worker: Arc<Worker>,
    spin: Duration,
    closed: Arc<Signal<bool>>,
) -> std::io::Result<impl Future<Output = ()>> {
    // SAFETY: an owned descriptor stays open, and the same, for as long as the registration holds it.
    let event = unsafe { AsyncFd::register_with_interest(worker.event()?, Interest::READABLE) }?;
    let driver = Driver { event, worker };
    driver.worker.set_driven(true);
    Ok(async move {
        let worker = &driver.worker;
        let (mut idle_since, mut restless_since, mut busy, mut heard) = (None, None, 0, Instant::now());
        let looks = if spin.is_zero() { 1 } else { LOOKS };
        loop {
            worker.close_retired();
            if worker.progress(looks) {
                (idle_since, busy) = (None, busy + 1);
                if restless_since.is_some() {
                    heard = Instant::now();
                }
                // Whoever waits for what arrived runs before the next look.
                if worker.has_delivered() || busy % ROUNDS == 0 {
                    give_way().await;
                }
                continue;
            }
            busy = 0;
            let no_endpoints = worker.endpoints.load(Ordering::Acquire) == 0;
            if no_endpoints && closed.get() {
                break;
            }
            if !no_endpoints && idle_since.get_or_insert_with(Instant::now).elapsed() < spin {
                give_way().await;
                continue;
            }
            if let Armed::Busy = worker.arm() {
                // What a peer has no room for keeps UCX from sleeping, for good where the peer died with its queue full: shared
                // memory is not told to let go of it.
                if restless_since.get_or_insert_with(Instant::now).elapsed() > RESTLESS {
                    thread::sleep(PAUSES[usize::from(heard.elapsed() > QUIET_AFTER)]);
                }
                tokio::task::yield_now().await;
                continue;
            }
            restless_since = None;
            tokio::select! {
                ready = driver.event.readable() => match ready {
                    Ok(mut ready) => ready.clear_ready(),
                    Err(error) => {
                        tracing::error!(%error, "UCX's events cannot be waited for");
                        break;
                    }
                },
                () = worker.nudged() => {}
            }
            idle_since = None;
        }
    })
}

/// Lets the tasks that are ready run, without having the runtime ask the system for more.
async fn give_way() {
    let mut given = false;
    poll_fn(|cx| {
        if given {
            return Poll::Ready(());
        }
        given = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
