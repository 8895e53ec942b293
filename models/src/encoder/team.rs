//! Shards on several devices of one process: a thread for each device, which takes from a board what the others pass it. Tensors
//! go from device to device. Knows no wire.

use std::{
    collections::HashMap,
    sync::{Arc, Condvar, Mutex, MutexGuard},
};

use asterism_kernels::{Backend, Exported};
use asterism_plan::{Exchange, Plan, Shard};

use super::{Earlier, EncodedShard, LocalPeers, Parcel, Peers, Phase1, inputs_of};
use crate::{Decoder, ModelError};

/// Encodes the shards of a plan for `context` on several devices, those of a host on the device of its number: what each has
/// encoded, ascending by block.
///
/// # Errors
/// As [`Phase1::encode`], of whoever failed first.
///
/// # Panics
/// Without a device.
pub fn encode_together<B: Backend>(
    decoders: &[&Decoder<B>],
    plan: &Plan,
    context: &[u32],
) -> Result<Vec<Vec<EncodedShard<B>>>, ModelError> {
    assert!(!decoders.is_empty(), "a device at least");
    let board = Board::new(decoders.len());
    let (board, ids) = (&board, plan.numbered_ids(context));
    let ids = ids.as_slice();
    let encode = |(member, decoder): (usize, &Decoder<B>)| -> Result<Vec<EncodedShard<B>>, ModelError> {
        let own: Vec<Shard> =
            plan.shards.iter().filter(|shard| shard.host % decoders.len() == member).cloned().collect();
        let together = if plan.exchange == Exchange::None { 1 } else { own.len().max(1) };
        let (blocks, exchange, mut encoded) = (plan.shards.len(), &plan.exchange, Vec::with_capacity(own.len()));
        let mut peers = TeamPeers { board, backend: decoder.backend(), local: LocalPeers::default() };
        for shards in own.chunks(together) {
            let inputs = inputs_of(shards, ids)?;
            let behind = &[Earlier { before: 0, shards: &encoded }];
            let phase = Phase1 { decoder, shards, inputs: &inputs, blocks, exchange, behind, heads: None };
            let passed = phase.encode(&mut peers, &mut |_, _| !board.is_lost())?;
            encoded.extend(passed.into_iter().map(Arc::new));
        }
        Ok(encoded.iter().map(|shard| EncodedShard::clone(shard)).collect())
    };
    let mut ends: Vec<Result<Vec<EncodedShard<B>>, ModelError>> = std::thread::scope(|scope| {
        let run = |(at, decoder)| scope.spawn(move || encode((at, decoder)).inspect_err(|_| board.lose(at)));
        let members: Vec<_> = decoders.iter().copied().enumerate().map(run).collect();
        members.into_iter().map(|member| member.join().expect("a device's thread does not panic")).collect()
    });
    // What failed first made the others fail: they were told to stop, or waited for it.
    if let Some(first) = board.posted().lost {
        ends.swap(0, first);
    }
    ends.into_iter().collect()
}

/// What devices pass each other.
struct Board<B: Backend> {
    posted: Mutex<Posted<B>>,
    changed: Condvar,
    members: usize,
}

struct Posted<B: Backend> {
    parcels: HashMap<Parcel, Arc<Exported<B>>>,
    /// How many have a layer behind them.
    done: HashMap<usize, usize>,
    /// Who failed first: nobody waits for it.
    lost: Option<usize>,
}

impl<B: Backend> Board<B> {
    fn new(members: usize) -> Self {
        let posted = Posted { parcels: HashMap::new(), done: HashMap::new(), lost: None };
        Self { posted: Mutex::new(posted), changed: Condvar::new(), members }
    }

    fn posted(&self) -> MutexGuard<'_, Posted<B>> {
        self.posted.lock().expect("no panic holds it")
    }

    fn is_lost(&self) -> bool {
        self.posted().lost.is_some()
    }

    fn lose(&self, member: usize) {
        self.posted().lost.get_or_insert(member);
        self.changed.notify_all();
    }
}

/// A device's end of the board.
struct TeamPeers<'a, B: Backend> {
    board: &'a Board<B>,
    backend: &'a B,
    /// What it sent, and what it fetched.
    local: LocalPeers<B>,
}

impl<B: Backend> Peers<B> for TeamPeers<'_, B> {
    fn send(&mut self, parcel: Parcel, tensors: Vec<B::Tensor>) -> Result<(), ModelError> {
        let exported = self.backend.export(tensors.clone())?;
        self.board.posted().parcels.insert(parcel, Arc::new(exported));
        self.board.changed.notify_all();
        self.local.send(parcel, tensors)
    }

    fn receive(&mut self, parcel: Parcel) -> Result<Vec<B::Tensor>, ModelError> {
        if let Some(tensors) = self.local.find(parcel) {
            return Ok(tensors);
        }
        let waits = |posted: &mut Posted<B>| posted.lost.is_none() && !posted.parcels.contains_key(&parcel);
        let posted = self.board.changed.wait_while(self.board.posted(), waits).expect("no panic holds it");
        let exported = posted.parcels.get(&parcel).cloned().ok_or(ModelError::Cancelled)?;
        drop(posted);
        let tensors = (*exported)(self.backend)?;
        self.local.send(parcel, tensors.clone())?;
        Ok(tensors)
    }

    fn layer_done(&mut self, layer: usize) {
        self.local.layer_done(layer);
        let mut posted = self.board.posted();
        let done = posted.done.entry(layer).or_default();
        *done += 1;
        if *done == self.board.members {
            // A layer later, so that copies are made by then and nobody waits for them.
            posted.parcels.retain(|parcel, _| parcel.layer >= layer);
            posted.done.remove(&layer);
        }
    }
}
