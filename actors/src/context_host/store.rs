//! The shards a context host holds, shared between the encoder and the answering tasks.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex},
};

use asterism_kernels::Backend;
use asterism_models::EncodedShard;

/// One job's shards by block.
type JobShards<B> = BTreeMap<u32, Arc<EncodedShard<B>>>;

/// Shards by job and block; clones share them.
pub struct ShardStore<B: Backend> {
    jobs: Arc<Mutex<HashMap<u64, JobShards<B>>>>,
}

impl<B: Backend> Clone for ShardStore<B> {
    fn clone(&self) -> Self {
        Self { jobs: self.jobs.clone() }
    }
}

impl<B: Backend> Default for ShardStore<B> {
    fn default() -> Self {
        Self { jobs: Arc::default() }
    }
}

impl<B: Backend> ShardStore<B> {
    /// Keeps a shard.
    pub fn insert(&self, job: u64, shard: EncodedShard<B>) {
        let mut jobs = self.jobs.lock().expect("no holder panics");
        jobs.entry(job).or_default().insert(shard.block as u32, Arc::new(shard));
    }

    /// Frees a job's shards, once nobody reads them.
    pub fn forget(&self, job: u64) {
        let shards = self.jobs.lock().expect("no holder panics").remove(&job);
        drop(shards);
    }

    /// The named shards of a job, in the order named; the first one missing is the error.
    pub fn find(&self, job: u64, blocks: &[u32]) -> Result<Vec<Arc<EncodedShard<B>>>, u32> {
        let jobs = self.jobs.lock().expect("no holder panics");
        let held = jobs.get(&job);
        blocks.iter().map(|block| held.and_then(|held| held.get(block)).cloned().ok_or(*block)).collect()
    }
}
