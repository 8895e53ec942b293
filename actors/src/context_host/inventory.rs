//! Shards by what their passes read, so that none is encoded twice while its keys and values lie here: those that contexts hold,
//! and idle ones that nobody asks for any more. Holds no tensor.
//!
//! A checksum finds a shard, its spans and token ids decide whether it is the same: one model and one build run in a process.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use asterism_plan::{Input, Shard};

use crate::messages::Encoded;

/// Bytes of idle shards where nothing bounds what a host holds.
const IDLE_BYTES: u64 = 256 << 20;

/// What lies here.
#[derive(Debug, Default)]
pub struct ShardInventory {
    all: BTreeMap<u64, HeldShard>,
    by_digest: HashMap<u64, Vec<u64>>,
    /// Where each context's shards lie.
    places: BTreeMap<(u64, u32), u64>,
    /// Idle ones, the one that lay idle for the longest first.
    idle: BTreeMap<u64, u64>,
    idle_bytes: u64,
    held_bytes: u64,
    last: u64,
}

#[derive(Debug)]
struct HeldShard {
    shard: Shard,
    ids: SourceIds,
    encoded: Encoded,
    /// Contexts that have it.
    users: BTreeSet<u64>,
    /// Since when it is idle, if it is.
    idle: Option<u64>,
}

/// The ids that a shard's keys and values are made of.
#[derive(Debug)]
pub struct SourceIds {
    /// Of its pass.
    pub own: Vec<u32>,
    /// Of a chain, in which it stands behind the first `count`; the shards of an order share them.
    pub chain: Arc<[u32]>,
    /// How many stand behind it.
    pub count: usize,
}

impl SourceIds {
    /// Those of the shards of an order, of one context.
    pub fn of(inputs: &[Input]) -> Vec<Self> {
        let chain = inputs.iter().map(|input| &input.behind[..]).max_by_key(|behind| behind.len());
        let chain: Arc<[u32]> = chain.unwrap_or_default().into();
        let each = |input: &Input| Self { own: input.ids.clone(), chain: chain.clone(), count: input.behind.len() };
        inputs.iter().map(each).collect()
    }

    fn are(&self, input: &Input) -> bool {
        self.own == input.ids && self.chain[..self.count] == input.behind[..]
    }
}

/// A shard that lies here, and where.
#[derive(Clone, Debug, PartialEq)]
pub enum KnownShard {
    /// A context has it.
    Held {
        /// That context.
        context: u64,
    },
    /// It is idle.
    Idle {
        /// Its number.
        place: u64,
    },
}

impl ShardInventory {
    /// Takes in what was encoded for a context.
    pub fn add(&mut self, (shard, ids): (Shard, SourceIds), encoded: Encoded) {
        let place = self.next();
        self.by_digest.entry(encoded.digest).or_default().push(place);
        self.held_bytes += encoded.kv_bytes;
        self.places.insert((encoded.context, encoded.block), place);
        let users = BTreeSet::from([encoded.context]);
        self.all.insert(place, HeldShard { shard: anywhere(shard), ids, encoded, users, idle: None });
    }

    /// A shard of the same spans and ids, which `context` holds from now on.
    pub fn take(&mut self, context: u64, digest: u64, shard: &Shard, input: &Input) -> Option<(KnownShard, Encoded)> {
        let shard = anywhere(shard.clone());
        let same = |place: &&u64| self.all[*place].shard == shard && self.all[*place].ids.are(input);
        let place = *self.by_digest.get(&digest)?.iter().find(same)?;
        let lying = self.all.get_mut(&place).expect("its number was found");
        let holder = lying.users.first().copied();
        lying.users.insert(context);
        if let Some(since) = lying.idle.take() {
            self.idle.remove(&since);
            self.idle_bytes -= lying.encoded.kv_bytes;
            self.held_bytes += lying.encoded.kv_bytes;
        }
        let encoded = Encoded {
            context,
            cached: true,
            seconds: 0.0,
            computing_s: 0.0,
            operations: 0,
            pairs: 0,
            exchange_bytes: 0,
            ..lying.encoded.clone()
        };
        self.places.insert((context, encoded.block), place);
        Some((holder.map_or(KnownShard::Idle { place }, |context| KnownShard::Held { context }), encoded))
    }

    /// A context holds nothing any more. Returns what is idle from now on: its number and block.
    pub fn leave(&mut self, context: u64) -> Vec<(u64, u32)> {
        let left = self.places.range((context, 0)..=(context, u32::MAX));
        let left: Vec<(u32, u64)> = left.map(|((_, block), place)| (*block, *place)).collect();
        let mut idle = Vec::new();
        // The last blocks are the first to go: what contexts begin with is what others share.
        for (block, place) in left.into_iter().rev() {
            self.places.remove(&(context, block));
            let since = self.next();
            let lying = self.all.get_mut(&place).expect("places are of what lies here");
            lying.users.remove(&context);
            if lying.users.is_empty() {
                lying.idle = Some(since);
                self.idle.insert(since, place);
                self.idle_bytes += lying.encoded.kv_bytes;
                self.held_bytes -= lying.encoded.kv_bytes;
                idle.push((place, block));
            }
        }
        idle
    }

    /// Idle shards that are to go, so that with them no more than `room` bytes are held; where nothing bounds that, no more
    /// than a few are idle. `others`: bytes that are held beside what is known here, or soon will be.
    pub fn surplus(&mut self, room: Option<u64>, others: u64) -> Vec<u64> {
        let most = room.map_or(IDLE_BYTES, |room| room.saturating_sub(self.held_bytes.saturating_add(others)));
        let mut gone = Vec::new();
        while self.idle_bytes > most
            && let Some((_, place)) = self.idle.pop_first()
        {
            let lying = self.all.remove(&place).expect("idle ones lie here");
            self.idle_bytes -= lying.encoded.kv_bytes;
            if let Some(same) = self.by_digest.get_mut(&lying.encoded.digest) {
                same.retain(|other| *other != place);
                if same.is_empty() {
                    self.by_digest.remove(&lying.encoded.digest);
                }
            }
            gone.push(place);
        }
        gone
    }

    /// Whether a context's shard is among them.
    pub fn has(&self, context: u64, block: u32) -> bool {
        self.places.contains_key(&(context, block))
    }

    /// Bytes that contexts hold, each shard once.
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// Bytes that are idle.
    pub fn idle_bytes(&self) -> u64 {
        self.idle_bytes
    }

    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }
}

/// A shard, wherever its plan deals it to.
fn anywhere(shard: Shard) -> Shard {
    Shard { host: 0, ..shard }
}

#[cfg(test)]
mod tests {
    use super::*;
    use asterism_plan::{LocalAttention, Span};

    fn shard(block: usize, host: usize) -> Shard {
        let own = Span::in_place(block * 4..block * 4 + 4);
        Shard {
            block,
            host,
            prefix: Vec::new(),
            own,
            keeps_prefix: false,
            apart_rows: 0,
            behind: 0,
            attention: LocalAttention::Causal,
            rope_length: 0,
        }
    }

    fn read(ids: &[u32]) -> Input {
        Input { ids: ids.to_vec(), ..Input::default() }
    }

    fn ids(own: &[u32]) -> SourceIds {
        SourceIds::of(&[read(own)]).remove(0)
    }

    fn encoded(context: u64, block: u32, digest: u64) -> Encoded {
        let (kept_tokens, kv_bytes, seconds, pairs, exchange_bytes, cached) = (4, 100, 0.5, 10, 0, false);
        let (computing_s, operations) = (0.0, 0);
        Encoded {
            context,
            block,
            digest,
            kept_tokens,
            kv_bytes,
            seconds,
            computing_s,
            operations,
            pairs,
            exchange_bytes,
            cached,
        }
    }

    #[test]
    fn what_lies_here_is_taken_once_it_is_the_same_and_not_by_its_checksum_alone() {
        let mut known = ShardInventory::default();
        known.add((shard(1, 0), ids(&[1, 2, 3, 4])), encoded(7, 1, 99));
        assert_eq!(known.take(8, 99, &shard(1, 0), &read(&[1, 2, 3, 5])), None, "a collision");
        let moved = Shard { own: Span { position: 9, ..shard(1, 0).own }, ..shard(1, 0) };
        assert_eq!(known.take(8, 99, &moved, &read(&[1, 2, 3, 4])), None, "the same ids elsewhere");
        // Another shard of the same checksum lies beside it.
        known.add((shard(1, 0), ids(&[1, 2, 3, 5])), encoded(8, 1, 99));
        let taken = |known: &mut ShardInventory, ids: &[u32]| {
            known.take(9, 99, &shard(1, 3), &read(ids)).map(|(found, _)| found)
        };
        assert_eq!(taken(&mut known, &[1, 2, 3, 5]), Some(KnownShard::Held { context: 8 }));
        let (found, stated) = known.take(10, 99, &shard(1, 3), &read(&[1, 2, 3, 4])).unwrap();
        assert_eq!(found, KnownShard::Held { context: 7 });
        assert_eq!(stated, Encoded { cached: true, seconds: 0.0, pairs: 0, ..encoded(10, 1, 99) });
    }

    #[test]
    fn idle_ones_go_when_there_is_no_room_the_oldest_first() {
        let mut known = ShardInventory::default();
        for context in 1..=3 {
            known.add((shard(0, 0), ids(&[context as u32; 4])), encoded(context, 0, context));
        }
        known.take(4, 2, &shard(0, 0), &read(&[2; 4])).unwrap();
        assert_eq!(known.held_bytes(), 300, "a shard of two contexts is held once");
        let first = known.leave(1);
        assert!(known.leave(2).is_empty(), "another context has it");
        let third = known.leave(3);
        assert_eq!((known.held_bytes(), known.idle_bytes()), (100, 200));
        assert!(known.surplus(Some(300), 0).is_empty() && known.surplus(None, 0).is_empty());
        assert_eq!(known.surplus(Some(300), 50), [first[0].0]);
        assert_eq!(known.take(5, 1, &shard(0, 0), &read(&[1; 4])), None, "it went");
        let (found, _) = known.take(5, 3, &shard(0, 0), &read(&[3; 4])).unwrap();
        assert_eq!(found, KnownShard::Idle { place: third[0].0 });
        assert!(known.surplus(Some(0), 0).is_empty(), "nothing is idle");
        assert_eq!((known.leave(4).len(), known.leave(5).len(), known.leave(5).len()), (1, 1, 0));
        assert_eq!((known.held_bytes(), known.surplus(Some(0), 0).len(), known.idle_bytes()), (0, 2, 0));
    }
}
