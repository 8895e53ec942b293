//! The thread that encodes what questions get anew, one after the other, while others generate. Chooses nothing.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use asterism_kernels::Backend;
use asterism_models::{Decoder, EncodedShard, ModelError, encode_alone};
use asterism_plan::Input;
use tokio::sync::mpsc;

use crate::{
    machine::{self, Thread},
    messages::RefreshOrder,
};

/// What came of an order: fresh keys, or code and message of what failed.
pub type RefreshResult<B> = Result<EncodedShard<B>, (String, String)>;

/// Takes orders; its thread ends with it.
pub struct RefreshWorker<B: Backend> {
    orders: mpsc::UnboundedSender<QueuedRefresh<B>>,
}

/// An order that was given: dropped, it is given up.
pub struct PendingRefresh<B: Backend>(Arc<RefreshHandle<B>>);

/// What both sides of an order see.
struct RefreshHandle<B: Backend> {
    fresh: Mutex<Option<RefreshResult<B>>>,
    given_up: AtomicBool,
}

struct QueuedRefresh<B: Backend> {
    refresh_order: RefreshOrder,
    slip: Arc<RefreshHandle<B>>,
    done: Box<dyn FnOnce() + Send>,
}

/// What a panic says.
pub fn words(panic: Box<dyn Any + Send>) -> String {
    let words = panic.downcast_ref::<&str>().map(|words| (*words).to_owned());
    words.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}

impl<B: Backend> RefreshWorker<B> {
    /// Starts the thread.
    pub fn start(decoder: Arc<Decoder<B>>) -> Self {
        let (orders, mut taken) = mpsc::unbounded_channel::<QueuedRefresh<B>>();
        let run = move || {
            while let Some(QueuedRefresh { refresh_order, slip, done }) = machine::block_on(taken.recv()) {
                let fresh = catch_unwind(AssertUnwindSafe(|| encode(&decoder, refresh_order, &slip.given_up)));
                let fresh = match fresh {
                    Ok(encoded) => encoded.map_err(|error| (error.code().to_owned(), error.to_string())),
                    Err(panic) => Err(("internal".to_owned(), format!("encoding anew panicked: {}", words(panic)))),
                };
                *slip.fresh.lock().unwrap_or_else(PoisonError::into_inner) = Some(fresh);
                done();
            }
        };
        Thread::start("refresh", run).expect("the system starts a thread");
        Self { orders }
    }

    /// Has tokens encoded; `done` is called once it can be taken.
    pub fn order(&self, refresh_order: RefreshOrder, done: impl FnOnce() + Send + 'static) -> PendingRefresh<B> {
        let slip = Arc::new(RefreshHandle { fresh: Mutex::new(None), given_up: AtomicBool::new(false) });
        let order = QueuedRefresh { refresh_order, slip: slip.clone(), done: Box::new(done) };
        // The thread goes when this does.
        let _ = self.orders.send(order);
        PendingRefresh(slip)
    }
}

impl<B: Backend> PendingRefresh<B> {
    /// What came of it, once it is done.
    pub fn take(&self) -> Option<RefreshResult<B>> {
        self.0.fresh.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl<B: Backend> Drop for PendingRefresh<B> {
    fn drop(&mut self) {
        self.0.given_up.store(true, Ordering::Relaxed);
    }
}

fn encode<B: Backend>(
    decoder: &Decoder<B>,
    refresh_order: RefreshOrder,
    given_up: &AtomicBool,
) -> Result<EncodedShard<B>, ModelError> {
    let RefreshOrder { shard, ids, .. } = refresh_order;
    let missing = ModelError::NoTokens { block: shard.block, start: shard.own.start, tokens: shard.own.tokens };
    let input = Input::in_order(shard.spans(), ids).ok_or(missing)?;
    let mut on = |_, _| !given_up.load(Ordering::Relaxed);
    if !on(0, 0) {
        return Err(ModelError::Cancelled);
    }
    let fresh = encode_alone(decoder, (&shard, &input), &mut on)?;
    decoder.backend().finish()?;
    Ok(fresh)
}
