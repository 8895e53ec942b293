//! Keeps threads out of UCX once the process ends: its destructors run while they still do, and pull the memory from under them.

use std::{
    cell::Cell,
    ffi::c_int,
    hint,
    sync::{
        Arc, Mutex, Once,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::signal::lock;

/// Longest wait for calls that are under way when the process ends.
const EXIT_PATIENCE: Duration = Duration::from_secs(1);

/// All gates of a process.
struct House {
    ending: AtomicBool,
    gates: Mutex<Vec<Arc<AtomicUsize>>>,
}

static HOUSE: House = House::new();

thread_local! {
    /// Whether this thread is within a call of UCX, which may call back and end up here again.
    static WITHIN: Cell<bool> = const { Cell::new(false) };
}

unsafe extern "C" {
    /// C's, which knows nothing of what `handler` does.
    fn atexit(handler: extern "C" fn()) -> c_int;
}

/// Counts the calls of one context and its worker.
pub(crate) struct CallGate {
    calls: Arc<AtomicUsize>,
    house: &'static House,
}

/// A call under way.
pub(crate) struct Pass<'a>(Option<&'a AtomicUsize>);

impl CallGate {
    pub fn new() -> Self {
        static REGISTERED: Once = Once::new();
        REGISTERED.call_once(|| {
            // SAFETY: the handler is a function of this program, which neither unwinds nor takes arguments. Where there is no
            // room for it, ends are as abrupt as without it.
            unsafe { atexit(end) };
        });
        Self::of(&HOUSE)
    }

    fn of(house: &'static House) -> Self {
        let calls = Arc::new(AtomicUsize::new(0));
        lock(&house.gates).push(calls.clone());
        Self { calls, house }
    }

    /// Allows a call of UCX until the pass is dropped; never, once the process ends.
    pub fn enter(&self) -> Pass<'_> {
        if WITHIN.replace(true) {
            return Pass(None);
        }
        self.calls.fetch_add(1, Ordering::SeqCst);
        if self.house.ending.load(Ordering::SeqCst) {
            self.calls.fetch_sub(1, Ordering::SeqCst);
            loop {
                thread::park();
            }
        }
        Pass(Some(&self.calls))
    }
}

impl Drop for CallGate {
    fn drop(&mut self) {
        lock(&self.house.gates).retain(|calls| !Arc::ptr_eq(calls, &self.calls));
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        if let Some(calls) = self.0 {
            WITHIN.set(false);
            calls.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl House {
    const fn new() -> Self {
        Self { ending: AtomicBool::new(false), gates: Mutex::new(Vec::new()) }
    }

    /// Lets nobody in any more, and returns once nobody is in.
    fn close(&self) {
        self.ending.store(true, Ordering::SeqCst);
        let gates = lock(&self.gates).clone();
        let start = Instant::now();
        while gates.iter().any(|calls| calls.load(Ordering::SeqCst) > 0) && start.elapsed() < EXIT_PATIENCE {
            hint::spin_loop();
        }
    }
}

/// Runs as the process ends, before what UCX has registered to run then.
extern "C" fn end() {
    HOUSE.close();
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn the_end_waits_for_calls_and_lets_none_in() {
        static HOUSE: House = House::new();
        let (entered, closed) = (mpsc::channel(), Arc::new(AtomicBool::new(false)));
        let call = thread::spawn({
            let closed = closed.clone();
            move || {
                let call_gate = CallGate::of(&HOUSE);
                let pass = call_gate.enter();
                let again = call_gate.enter();
                entered.0.send(()).expect("the test waits");
                while !HOUSE.ending.load(Ordering::SeqCst) {
                    hint::spin_loop();
                }
                drop(again);
                assert!(!closed.load(Ordering::SeqCst), "the call goes on");
                drop(pass);
            }
        });
        entered.1.recv().expect("the call begins");
        HOUSE.close();
        closed.store(true, Ordering::SeqCst);
        call.join().expect("the call ends first");
        let late = thread::spawn(|| drop(CallGate::of(&HOUSE).enter()));
        while lock(&HOUSE.gates).len() != 1 {
            hint::spin_loop();
        }
        assert!(!late.is_finished(), "the process ends with this thread at the gate");
    }
}
