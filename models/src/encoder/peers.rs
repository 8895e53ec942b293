//! What shards pass each other within a layer, and the carrier for shards of one process. Computes nothing.

use std::collections::HashMap;

use asterism_kernels::Backend;

use crate::ModelError;

/// What a parcel holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// Keys and values `(kv, n, dim)` for every later shard.
    Keys,
    /// Query vectors `(query, n, dim)` that one shard lends another.
    Queries,
    /// Queries, keys and values of one share of the heads.
    Heads,
    /// Attention outputs `(query heads of a share, n, dim)`.
    Outputs,
}

/// Tensors on their way from shard to shard within a layer, in compute type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Parcel {
    /// Layer.
    pub layer: usize,
    /// What it holds.
    pub part: Part,
    /// Block of the sender.
    pub from: usize,
    /// Block of the receiver; none for all later ones.
    pub to: Option<usize>,
}

/// Carries parcels between shards.
pub trait Peers<B: Backend> {
    /// Hands a parcel over. Returns before it arrives.
    fn send(&mut self, parcel: Parcel, tensors: Vec<B::Tensor>) -> Result<(), ModelError>;
    /// Hands several over: whoever has to fetch them from a device does so once.
    fn send_all(&mut self, parcels: Vec<(Parcel, Vec<B::Tensor>)>) -> Result<(), ModelError> {
        parcels.into_iter().try_for_each(|(parcel, tensors)| self.send(parcel, tensors))
    }
    /// Waits for a parcel.
    fn receive(&mut self, parcel: Parcel) -> Result<Vec<B::Tensor>, ModelError>;
    /// Everything of this layer has been received by those who wanted it here.
    fn layer_done(&mut self, layer: usize);
}

/// All shards in this very process: a parcel lies ready when somebody asks for it.
pub struct LocalPeers<B: Backend> {
    parcels: HashMap<Parcel, Vec<B::Tensor>>,
}

impl<B: Backend> Default for LocalPeers<B> {
    fn default() -> Self {
        Self { parcels: HashMap::new() }
    }
}

impl<B: Backend> LocalPeers<B> {
    /// A parcel that was sent.
    pub fn find(&self, parcel: Parcel) -> Option<Vec<B::Tensor>> {
        self.parcels.get(&parcel).cloned()
    }
}

impl<B: Backend> Peers<B> for LocalPeers<B> {
    fn send(&mut self, parcel: Parcel, tensors: Vec<B::Tensor>) -> Result<(), ModelError> {
        self.parcels.insert(parcel, tensors);
        Ok(())
    }

    fn receive(&mut self, parcel: Parcel) -> Result<Vec<B::Tensor>, ModelError> {
        self.find(parcel).ok_or_else(|| ModelError::NoParcel { parcel: format!("{parcel:?}") })
    }

    fn layer_done(&mut self, layer: usize) {
        self.parcels.retain(|parcel, _| parcel.layer != layer);
    }
}
