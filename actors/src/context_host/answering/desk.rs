//! What a context host answers from: its model, its shards, and who may ask for them. Answers nothing itself.

use std::sync::Arc;

use asterism_kernels::Backend;
use asterism_models::Decoder;

use crate::{
    context_host::{parcels::parcel_inbox::ParcelInbox, store::ShardStore, tickets::Tickets},
    cores::Cores,
    host::DeviceHandover,
    link::Links,
};

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
}

impl<B: Backend> Clone for QueryService<B> {
    fn clone(&self) -> Self {
        let Self { decoder, store, parcel_inbox, tickets, links, cores, hands_over } = self;
        Self {
            decoder: decoder.clone(),
            store: store.clone(),
            parcel_inbox: parcel_inbox.clone(),
            tickets: tickets.clone(),
            links: links.clone(),
            cores: cores.clone(),
            hands_over: *hands_over,
        }
    }
}
