//! What a process takes of its machine beside its runtime: threads that compute and wait, and the time of day.
//!
//! In a simulation, which is one single-threaded runtime with a paused clock, a thread takes turns with the runtime that
//! started it: one of them runs at a time, and time passes only while all wait. So the order of everything that happens
//! follows from what is run, and computing takes the time that whoever computes waits for.

use std::{
    any::Any,
    cell::{Cell, RefCell},
    io,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    pin::{Pin, pin},
    sync::mpsc::{Receiver, Sender, channel},
    task::{Context, Poll, Waker},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use asterism_kernels::cpu::keep_cores_for;
use rustix::process::{getpriority_process, setpriority_process};
use tokio::{runtime::Handle, task::JoinHandle, time::Instant};

/// How far threads stand back that work for clients, as `nice` counts.
const NICE: i32 = 10;
/// How long a thread keeps a core at a time where others want it, which Linux 6.12 gives it the sooner for that. The least there is.
const PROMPT_SLICE: Duration = Duration::from_micros(100);
/// The time of day at which every simulation begins, in seconds.
const SIMULATED_START: Duration = Duration::from_secs(1_800_000_000);

thread_local! {
    /// When the simulation on this thread began, if it is one's.
    static SIMULATION: Cell<Option<Instant>> = const { Cell::new(None) };
    /// On a thread that takes turns: how it gives its turn up.
    static WAIT_MODE: RefCell<WaitMode> = const { RefCell::new(WaitMode::Own) };
}

/// What a thread does when it waits.
enum WaitMode {
    /// It waits.
    Own,
    /// It lets others run until it is woken.
    Turns(ThreadTurns),
    /// Nobody wakes it any more: it ends.
    Over,
}

/// A simulation on this thread, until it is dropped.
pub struct Simulation(());

impl Simulation {
    /// Begins now, by the clock of the runtime that runs here.
    pub fn begin() -> Self {
        SIMULATION.set(Some(Instant::now()));
        Self(())
    }
}

impl Drop for Simulation {
    fn drop(&mut self) {
        SIMULATION.set(None);
    }
}

/// Unix time.
pub(crate) fn unix_time() -> Duration {
    match SIMULATION.get() {
        Some(began) => SIMULATED_START + began.elapsed(),
        None => SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
    }
}

/// Does on a thread of its own what blocks or takes long.
pub(crate) fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    match SIMULATION.get() {
        Some(_) => tokio::spawn(TakingTurns::new("worker", work)),
        None => tokio::task::spawn_blocking(work),
    }
}

/// Does what a client's long text needs on a thread that others go before where a core is wanted: a request of another client, a host's
/// step, a heartbeat. Cancelled, it goes on.
pub fn spawn_behind<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    if SIMULATION.get().is_some() {
        return spawn(work);
    }
    let apart = move || {
        stand_back();
        work()
    };
    // Who has stood back cannot step forward again without rights, so that the thread ends with the work.
    spawn(move || {
        let thread = thread::Builder::new().name("texts".into()).spawn(apart).expect("the system starts a thread");
        thread.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

/// Has other threads go before this one where a core is wanted.
pub fn stand_back() {
    // On Linux a thread has its own niceness; where it may not be set, all are alike.
    let done = setpriority_process(None, NICE).map_err(io::Error::from);
    if let Err(error) = done.and_then(|()| keep_cores_for(None, NICE)) {
        tracing::debug!(%error, "threads for clients are as urgent as others");
    }
}

/// Has this thread, and those that it starts from now on, go on at once when they are woken, also where others are using all cores:
/// a token passes through a dozen threads that wait for one another.
pub fn answer_promptly() {
    let niceness = getpriority_process(None).map_err(io::Error::from);
    if let Err(error) = niceness.and_then(|niceness| keep_cores_for(Some(PROMPT_SLICE), niceness)) {
        tracing::debug!(%error, "threads wait for a core as long as others");
    }
}

/// A thread that goes on for as long as it has something to do.
pub(crate) enum Thread {
    /// The system's.
    Own(thread::JoinHandle<()>),
    /// One that takes turns.
    Simulated(JoinHandle<()>),
}

impl Thread {
    /// Starts it.
    pub fn start(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<Self> {
        if SIMULATION.get().is_some() {
            return Ok(Self::Simulated(tokio::spawn(TakingTurns::new(name, work))));
        }
        let runtime = Handle::current();
        let work = move || {
            let _runtime = runtime.enter();
            work();
        };
        thread::Builder::new().name(name.into()).spawn(work).map(Self::Own)
    }

    /// Waits for its end. One that takes turns is ended where it waits, as with a process that is killed.
    pub fn join(self) -> thread::Result<()> {
        match self {
            Self::Own(thread) => thread.join(),
            Self::Simulated(task) => {
                task.abort();
                Ok(())
            }
        }
    }
}

/// Waits on a thread of [`spawn`] or [`Thread`].
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut turns = match WAIT_MODE.replace(WaitMode::Over) {
        WaitMode::Own => {
            WAIT_MODE.set(WaitMode::Own);
            return Handle::current().block_on(future);
        }
        WaitMode::Turns(turns) => turns,
        WaitMode::Over => resume_unwind(Box::new(ThreadEnded)),
    };
    let mut future = pin!(future);
    let output = loop {
        match future.as_mut().poll(&mut Context::from_waker(&turns.waker)) {
            Poll::Ready(output) => break output,
            Poll::Pending => turns.give_up(),
        }
    };
    WAIT_MODE.set(WaitMode::Turns(turns));
    output
}

/// What a thread unwinds with that nobody wakes any more.
struct ThreadEnded;

/// A thread's side of the turns.
struct ThreadTurns {
    given: Receiver<Waker>,
    over: Sender<()>,
    /// Wakes the task that gives the turns.
    waker: Waker,
}

impl ThreadTurns {
    /// Lets others run until there is a reason to go on.
    fn give_up(&mut self) {
        // An error means the same as the one below.
        let _ = self.over.send(());
        match self.given.recv() {
            Ok(waker) => self.waker = waker,
            Err(_) => resume_unwind(Box::new(ThreadEnded)),
        }
    }
}

/// The task that gives a thread its turns: each poll is one.
struct TakingTurns<T> {
    give: Option<Sender<Waker>>,
    over: Receiver<()>,
    thread: Option<thread::JoinHandle<Result<T, Box<dyn Any + Send>>>>,
}

impl<T: Send + 'static> TakingTurns<T> {
    fn new(name: &str, work: impl FnOnce() -> T + Send + 'static) -> Self {
        let ((give, given), (end, over)) = (channel(), channel());
        let (runtime, simulation) = (Handle::current(), SIMULATION.get());
        let run = move || {
            let _runtime = runtime.enter();
            SIMULATION.set(simulation);
            let Ok(waker) = given.recv() else { return Err(Box::new(ThreadEnded) as Box<dyn Any + Send>) };
            WAIT_MODE.set(WaitMode::Turns(ThreadTurns { given, over: end, waker }));
            let done = catch_unwind(AssertUnwindSafe(work));
            // Its end is the end of its turn.
            WAIT_MODE.set(WaitMode::Over);
            done
        };
        let thread = thread::Builder::new().name(name.into()).spawn(run).expect("the system starts a thread");
        Self { give: Some(give), over, thread: Some(thread) }
    }
}

impl<T> Future for TakingTurns<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let given = self.give.as_ref().map(|give| give.send(context.waker().clone()));
        if given.is_some_and(|given| given.is_ok()) && self.over.recv().is_ok() {
            return Poll::Pending;
        }
        let thread = self.thread.take().expect("it is polled until it is ready");
        match thread.join().and_then(|done| done) {
            Ok(output) => Poll::Ready(output),
            Err(panic) => resume_unwind(panic),
        }
    }
}

impl<T> Drop for TakingTurns<T> {
    fn drop(&mut self) {
        self.give = None;
        self.thread.take().into_iter().for_each(|thread| drop(thread.join()));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tokio::{
        sync::mpsc,
        time::{sleep, timeout},
    };

    use super::*;

    fn simulated<T>(run: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.expect("a runtime").block_on(async {
            let _simulation = Simulation::begin();
            run.await
        })
    }

    #[test]
    fn a_thread_answers_promptly_or_stands_back() {
        let on_a_thread = || {
            answer_promptly();
            stand_back();
            answer_promptly();
            keep_cores_for(None, NICE).map(|()| getpriority_process(None))
        };
        let niceness = thread::spawn(on_a_thread).join().expect("no panic").expect("a slice is set");
        assert_eq!(niceness, Ok(NICE), "it stands back still");
    }

    #[test]
    fn threads_take_turns_and_time_passes_while_all_wait() {
        let stated = simulated(async {
            let (stated, began) = (Arc::new(Mutex::new(Vec::new())), Instant::now());
            let threads = [3_u64, 2].map(|step| {
                let stated = stated.clone();
                spawn(move || {
                    for _ in 0..3 {
                        block_on(sleep(Duration::from_secs(step)));
                        stated.lock().unwrap().push((step, began.elapsed().as_secs()));
                    }
                })
            });
            for thread in threads {
                thread.await.expect("no panic");
            }
            assert_eq!(unix_time(), SIMULATED_START + Duration::from_secs(9));
            Arc::into_inner(stated).expect("they ended").into_inner().unwrap()
        });
        assert_eq!(stated, [(2, 2), (3, 3), (2, 4), (3, 6), (2, 6), (3, 9)]);
    }

    #[test]
    fn a_panic_is_the_threads_own_and_who_is_left_waiting_ends() {
        let (held, kept) = (
            Arc::new(()),
            simulated(async {
                assert!(spawn(|| panic!("as told")).await.expect_err("it panics").is_panic());
                let (_sender, mut receiver) = mpsc::channel::<()>(1);
                let held = Arc::new(());
                let kept = held.clone();
                let thread = Thread::start("waits", move || {
                    let _held = held;
                    // Also where somebody catches what it ends with.
                    let _ = catch_unwind(AssertUnwindSafe(|| block_on(receiver.recv())));
                    block_on(receiver.recv());
                });
                assert!(timeout(Duration::from_secs(1), std::future::pending::<()>()).await.is_err());
                assert_eq!(Arc::strong_count(&kept), 2);
                thread.expect("a thread").join().expect("no panic");
                kept
            }),
        );
        assert_eq!((Arc::strong_count(&held), Arc::strong_count(&kept)), (1, 1));
    }
}
