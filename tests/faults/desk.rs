//! What a context host answers queries from: shards held, and those laid ready. Encodes nothing.

use std::collections::BTreeMap;

use asterism_actors::messages::ShardKeys;

use crate::{
    clock::Core,
    host::{Host, Use},
    network::{Frame, LinkId},
    toy,
};

/// A shard encoded: its value and its keys.
pub type Shard = (u64, u64);

/// Shards by context and block.
#[derive(Default)]
pub struct Desk {
    held: BTreeMap<(u64, u32), Shard>,
    ready: BTreeMap<u64, Vec<(u32, Shard)>>,
}

impl Desk {
    /// A work's shards wait to be kept or discarded.
    pub fn lay_ready(&mut self, work: u64, shards: Vec<(u32, Shard)>) {
        self.ready.insert(work, shards);
    }

    /// Keeps a work's shards.
    pub fn keep(&mut self, work: u64, context: u64) {
        let shards = self.ready.remove(&work).unwrap_or_default();
        self.held.extend(shards.into_iter().map(|(block, shard)| ((context, block), shard)));
    }

    /// Frees a work's shards.
    pub fn discard(&mut self, work: u64) {
        self.ready.remove(&work);
    }

    /// Frees a context's shards.
    pub fn free(&mut self, context: u64) {
        self.held.retain(|(held, _), _| *held != context);
    }

    /// Whether all of these shards are here.
    pub fn has(&self, context: u64, blocks: &[u32]) -> Result<(), String> {
        match blocks.iter().find(|block| !self.held.contains_key(&(context, **block))) {
            Some(block) => Err(format!("shard {block} of context {context} is not here")),
            None => Ok(()),
        }
    }

    /// Contexts that shards are held or laid ready of; works count as context 0.
    pub fn contexts(&self) -> Vec<u64> {
        let mut contexts: Vec<u64> = self.held.keys().map(|(context, _)| *context).collect();
        contexts.extend(self.ready.keys().map(|_| 0));
        contexts.dedup();
        contexts
    }
}

impl Host {
    pub(super) fn attach(&mut self, core: &mut Core, link: LinkId, context: u64, blocks: Vec<u32>) {
        match self.desk.has(context, &blocks) {
            Err(cause) => self.refuse(core, link, &cause),
            Ok(()) => drop(self.uses.insert(link, Use::Attached { context, blocks })),
        }
    }

    pub(super) fn refuse(&mut self, core: &mut Core, link: LinkId, cause: &str) {
        core.send(link, Frame::Refused);
        core.close(link, cause);
        self.uses.remove(&link);
    }

    pub(super) fn attended(&mut self, core: &mut Core, link: LinkId, (step, layer, query): (u32, u32, u64)) {
        let Some(Use::Attached { context, blocks }) = self.uses.get(&link).cloned() else { return };
        // Shards freed while the query was computed on are still in the computation's hands, but not in this model's.
        if let Err(cause) = self.desk.has(context, &blocks) {
            return self.refuse(core, link, &cause);
        }
        let shard = |block: &u32| (*block, self.desk.held[&(context, *block)]);
        let held: Vec<(u32, Shard)> = blocks.iter().map(shard).collect();
        let shards = held.iter().map(|(block, (_, keys))| ShardKeys { block: *block, keys: *keys }).collect();
        let values = held.iter().map(|(_, (value, _))| toy::attend(*value, layer, query)).collect();
        core.send(link, Frame::Answers { step, layer, shards, values });
    }
}
