//! What a context host answers from: its model, its shards, and who may ask for them. Answers nothing itself.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use asterism_kernels::Backend;
use asterism_models::Decoder;

use crate::{
    compute::DeviceHandover,
    context_host::{parcels::parcel_inbox::ParcelInbox, store::ShardStore, tickets::Tickets},
    cores::Cores,
    link::Links,
    readings::AnswerReading,
};

/// Multiply-adds that an answer costs beside its own, so that many small ones are no sign of a slow host.
const EACH_ANSWER: usize = 4 << 20;

/// What a context host answers from.
pub struct QueryService<B: Backend> {
    /// The model.
    pub decoder: Arc<Decoder<B>>,
    /// Shards held.
    pub store: ShardStore<B>,
    /// Parcels on their way to the encoder.
    pub parcel_inbox: Arc<ParcelInbox>,
    /// What opens the contexts ordered here.
    pub tickets: Arc<Tickets>,
    /// To other hosts.
    pub links: Arc<Links>,
    /// What answers that take long are computed with.
    pub cores: Arc<dyn Cores>,
    /// What goes to hosts of this process as it lies.
    pub hands_over: DeviceHandover,
    /// What answering takes.
    pub effort: Arc<AnsweringEffort>,
}

/// What was computed to answer query hosts.
#[derive(Debug, Default)]
pub struct AnsweringEffort {
    nanoseconds: AtomicU64,
    operations: AtomicU64,
}

impl AnsweringEffort {
    /// Computes an answer of so many multiply-adds, and notes how long that took.
    pub fn timed<T>(&self, operations: usize, answer: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let answered = answer();
        self.nanoseconds.fetch_add(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
        self.operations.fetch_add((operations + EACH_ANSWER) as u64, Ordering::Relaxed);
        answered
    }

    /// All so far.
    pub fn so_far(&self) -> AnswerReading {
        let seconds = self.nanoseconds.load(Ordering::Relaxed) as f64 * 1e-9;
        AnswerReading { seconds, operations: self.operations.load(Ordering::Relaxed) }
    }
}

impl<B: Backend> Clone for QueryService<B> {
    fn clone(&self) -> Self {
        let Self { decoder, store, parcel_inbox, tickets, links, cores, hands_over, effort } = self;
        Self {
            decoder: decoder.clone(),
            store: store.clone(),
            parcel_inbox: parcel_inbox.clone(),
            tickets: tickets.clone(),
            links: links.clone(),
            cores: cores.clone(),
            hands_over: *hands_over,
            effort: effort.clone(),
        }
    }
}
