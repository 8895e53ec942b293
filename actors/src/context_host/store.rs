//! The shards a context host holds, shared between the encoder and the answering tasks.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard},
};

use asterism_kernels::Backend;
use asterism_models::EncodedShard;

/// Shards by context and block; clones share them.
pub struct ShardStore<B: Backend> {
    shards: Arc<Mutex<Shards<B>>>,
}

struct Shards<B: Backend> {
    kept: HashMap<u64, BTreeMap<u32, Arc<EncodedShard<B>>>>,
    /// Those that nobody asks for any more, by number.
    idle: HashMap<u64, Arc<EncodedShard<B>>>,
    /// Encoded, and nobody has said yet whether they are wanted; by work.
    ready: HashMap<u64, Vec<EncodedShard<B>>>,
}

impl<B: Backend> Clone for ShardStore<B> {
    fn clone(&self) -> Self {
        Self { shards: self.shards.clone() }
    }
}

impl<B: Backend> Default for ShardStore<B> {
    fn default() -> Self {
        Self {
            shards: Arc::new(Mutex::new(Shards { kept: HashMap::new(), idle: HashMap::new(), ready: HashMap::new() })),
        }
    }
}

impl<B: Backend> ShardStore<B> {
    /// Lays the shards of a work ready.
    pub fn lay_ready(&self, work: u64, shards: Vec<EncodedShard<B>>) {
        self.lock().ready.insert(work, shards);
    }

    /// Keeps the shards of a work.
    pub fn keep(&self, work: u64, context: u64) {
        let mut shards = self.lock();
        let ready = shards.ready.remove(&work).unwrap_or_default();
        let ready = ready.into_iter().map(|shard| (shard.block as u32, Arc::new(shard)));
        shards.kept.entry(context).or_default().extend(ready);
    }

    /// Frees the shards of a work.
    pub fn discard(&self, work: u64) {
        let shards = self.lock().ready.remove(&work);
        drop(shards);
    }

    /// Frees a context's shards, once nobody reads them.
    pub fn free(&self, context: u64) {
        let shards = self.lock().kept.remove(&context);
        drop(shards);
    }

    /// Keeps a context's shard for another one too.
    pub fn share(&self, from: u64, context: u64, block: u32) {
        let mut shards = self.lock();
        let shard = shards.kept.get(&from).and_then(|kept| kept.get(&block)).cloned();
        shards.kept.entry(context).or_default().extend(shard.map(|shard| (block, shard)));
    }

    /// Lays a context's shard aside.
    pub fn lay_idle(&self, context: u64, block: u32, place: u64) {
        let mut shards = self.lock();
        let shard = shards.kept.get_mut(&context).and_then(|kept| kept.remove(&block));
        shards.idle.extend(shard.map(|shard| (place, shard)));
    }

    /// Keeps for a context what was laid aside.
    pub fn take_up(&self, place: u64, context: u64) {
        let mut shards = self.lock();
        let shard = shards.idle.remove(&place);
        shards.kept.entry(context).or_default().extend(shard.map(|shard| (shard.block as u32, shard)));
    }

    /// Frees what was laid aside, once nobody reads it.
    pub fn evict(&self, place: u64) {
        let shard = self.lock().idle.remove(&place);
        drop(shard);
    }

    /// The named shards of a context, in the order named; the first one missing is the error.
    pub fn find(&self, context: u64, blocks: &[u32]) -> Result<Vec<Arc<EncodedShard<B>>>, u32> {
        let shards = self.lock();
        let held = shards.kept.get(&context);
        blocks.iter().map(|block| held.and_then(|held| held.get(block)).cloned().ok_or(*block)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Shards<B>> {
        self.shards.lock().expect("no holder panics")
    }
}
