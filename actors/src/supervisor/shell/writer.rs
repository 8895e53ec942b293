//! The thread that writes the journal, so that a slow disk holds up nobody else. Decides nothing.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
    mpsc::{Receiver, RecvError, TryRecvError, sync_channel},
};

use tokio::sync::mpsc;

use crate::{
    machine::{self, Thread},
    store::{Change, Entry, StateStore, StoreError},
};

/// Writes one transaction at a time.
pub struct Writer {
    orders: Option<mpsc::Sender<WriterOrder>>,
    results: Receiver<Result<(), StoreError>>,
    thread: Option<Thread>,
}

/// Hears what the store has.
pub type EntriesCallback = Box<dyn FnOnce(Result<Vec<Entry>, StoreError>) + Send>;

/// What the thread is to do.
enum WriterOrder {
    Write(Vec<Change>),
    Read(EntriesCallback),
}

/// One write under way, and readings beside.
const WRITER_ORDERS: usize = 4;

/// Calls when it goes, also when the store panics.
struct WriterEnded<F: Fn()>(F);

impl<F: Fn()> Drop for WriterEnded<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

impl Writer {
    /// Starts it; it says so when a write ended. `writing` is set during each.
    pub fn start(
        mut store: Box<dyn StateStore>,
        writing: Arc<AtomicBool>,
        ended: impl Fn() + Send + 'static,
    ) -> std::io::Result<Self> {
        let (orders, mut inbox) = mpsc::channel::<WriterOrder>(WRITER_ORDERS);
        let (outbox, results) = sync_channel(1);
        let work = move || {
            let ended = WriterEnded(ended);
            while let Some(order) = machine::block_on(inbox.recv()) {
                writing.store(true, Ordering::Relaxed);
                let result = match order {
                    WriterOrder::Write(changes) => store.apply(&changes),
                    WriterOrder::Read(heard) => {
                        heard(store.load());
                        writing.store(false, Ordering::Relaxed);
                        continue;
                    }
                };
                writing.store(false, Ordering::Relaxed);
                if outbox.send(result).is_err() {
                    return;
                }
                (ended.0)();
            }
            drop((store, outbox));
        };
        let thread = Thread::start("journal", work)?;
        Ok(Self { orders: Some(orders), results, thread: Some(thread) })
    }

    /// Has changes written. The one before must have ended.
    pub fn write(&self, changes: Vec<Change>) {
        if let Some(orders) = &self.orders {
            // When it is gone, so is the channel of results.
            let _ = orders.try_send(WriterOrder::Write(changes));
        }
    }

    /// Has somebody hear what the store has between two writes; false where too many others are to hear it first.
    pub fn read(&self, heard: EntriesCallback) -> bool {
        // A place is left for the write that may come.
        let free = |orders: &&mpsc::Sender<WriterOrder>| orders.capacity() > 1;
        self.orders.as_ref().filter(free).is_some_and(|orders| orders.try_send(WriterOrder::Read(heard)).is_ok())
    }

    /// What came of the write, if it ended.
    pub fn try_result(&self) -> Result<Result<(), StoreError>, TryRecvError> {
        self.results.try_recv()
    }

    /// What came of the write, when it ends.
    pub fn result(&self) -> Result<Result<(), StoreError>, RecvError> {
        self.results.recv()
    }
}

impl Drop for Writer {
    /// Waits for the write under way, so that nobody else finds the file in use.
    fn drop(&mut self) {
        self.orders = None;
        if let Some(Err(panic)) = self.thread.take().map(Thread::join) {
            tracing::error!(?panic, "the journal's thread ended by a panic");
        }
    }
}
