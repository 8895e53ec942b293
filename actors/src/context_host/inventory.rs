//! Shards by what they are, so that none is encoded twice while its keys and values lie here: those that contexts hold, and idle
//! ones that nobody asks for any more. Holds no tensor.
//!
//! What a shard is, its identity says: a cryptographic checksum of the ids and positions that its pass reads, of those that it sees,
//! and of the key that asked. One model and one build run in a process.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use asterism_models::ShardIdentity;

use crate::messages::Encoded;

/// Bytes of idle shards where nothing bounds what a host holds.
const IDLE_BYTES: u64 = 256 << 20;

/// What lies here.
#[derive(Debug, Default)]
pub struct ShardInventory {
    all: BTreeMap<u64, HeldShard>,
    by_identity: HashMap<ShardIdentity, Vec<u64>>,
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
    identity: ShardIdentity,
    encoded: Encoded,
    /// Contexts that have it.
    users: BTreeSet<u64>,
    /// Since when it is idle, if it is.
    idle: Option<u64>,
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
    pub fn add(&mut self, identity: ShardIdentity, encoded: Encoded) {
        let place = self.next();
        self.by_identity.entry(identity).or_default().push(place);
        self.held_bytes += encoded.kv_bytes;
        self.places.insert((encoded.context, encoded.block), place);
        let users = BTreeSet::from([encoded.context]);
        self.all.insert(place, HeldShard { identity, encoded, users, idle: None });
    }

    /// A shard of this identity, which `context` holds from now on. `digest`: the checksum of what it reads.
    pub fn take(&mut self, context: u64, identity: &ShardIdentity, digest: u64) -> Option<(KnownShard, Encoded)> {
        let place = *self.by_identity.get(identity)?.first()?;
        let lying = self.all.get_mut(&place).expect("its number was found");
        let holder = lying.users.first().copied();
        lying.users.insert(context);
        if let Some(since) = lying.idle.take() {
            self.idle.remove(&since);
            self.idle_bytes -= lying.encoded.kv_bytes;
            self.held_bytes += lying.encoded.kv_bytes;
        }
        let of = Encoded { context, digest, ..lying.encoded.clone() };
        let nothing = Encoded { seconds: 0.0, computing_s: 0.0, operations: 0, pairs: 0, exchange_bytes: 0, ..of };
        let encoded = Encoded { cached: true, ..nothing };
        self.places.insert((context, encoded.block), place);
        Some((holder.map_or(KnownShard::Idle { place }, |context| KnownShard::Held { context }), encoded))
    }

    /// A context holds nothing any more. Returns what is idle from now on: its number and block, the last first, for that is of use
    /// to the fewest and goes first.
    pub fn leave(&mut self, context: u64) -> Vec<(u64, u32)> {
        let left = self.places.range((context, 0)..=(context, u32::MAX));
        let left: Vec<(u32, u64)> = left.map(|((_, block), place)| (*block, *place)).collect();
        let mut idle = Vec::new();
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

    /// A context holds nothing any more, and what it alone had is not to be found again: it may be wrong.
    pub fn forget(&mut self, context: u64) {
        for (place, _) in self.leave(context) {
            self.drop_idle(place);
        }
    }

    /// Idle shards that are to go, so that with them no more than `room` bytes are held; where nothing bounds that, no more
    /// than a few are idle. `others`: bytes that are held beside what is known here, or soon will be.
    pub fn surplus(&mut self, room: Option<u64>, others: u64) -> Vec<u64> {
        let most = room.map_or(IDLE_BYTES, |room| room.saturating_sub(self.held_bytes.saturating_add(others)));
        let mut gone = Vec::new();
        while self.idle_bytes > most
            && let Some((_, place)) = self.idle.first_key_value().map(|(since, place)| (*since, *place))
        {
            self.drop_idle(place);
            gone.push(place);
        }
        gone
    }

    fn drop_idle(&mut self, place: u64) {
        let lying = self.all.remove(&place).expect("idle ones lie here");
        lying.idle.map(|since| self.idle.remove(&since));
        self.idle_bytes -= lying.encoded.kv_bytes;
        if let Some(same) = self.by_identity.get_mut(&lying.identity) {
            same.retain(|other| *other != place);
            if same.is_empty() {
                self.by_identity.remove(&lying.identity);
            }
        }
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encoded(context: u64, block: u32) -> Encoded {
        Encoded {
            context,
            block,
            digest: 9,
            kept_tokens: 4,
            kv_bytes: 100,
            seconds: 0.5,
            pairs: 10,
            ..Encoded::default()
        }
    }

    #[test]
    fn what_lies_here_is_taken_once_it_is_the_same() {
        let mut known = ShardInventory::default();
        known.add([1; 32], encoded(7, 1));
        assert_eq!(known.take(8, &[2; 32], 9), None);
        let (found, stated) = known.take(10, &[1; 32], 5).unwrap();
        assert_eq!(found, KnownShard::Held { context: 7 });
        assert_eq!(stated, Encoded { cached: true, seconds: 0.0, pairs: 0, digest: 5, ..encoded(10, 1) });
    }

    #[test]
    fn idle_ones_go_when_there_is_no_room_the_oldest_first() {
        let mut known = ShardInventory::default();
        for context in 1..=3 {
            known.add([context as u8; 32], encoded(context, 0));
        }
        known.take(4, &[2; 32], 9).unwrap();
        assert_eq!(known.held_bytes(), 300, "a shard of two contexts is held once");
        let first = known.leave(1);
        assert!(known.leave(2).is_empty(), "another context has it");
        let third = known.leave(3);
        assert_eq!((known.held_bytes(), known.idle_bytes()), (100, 200));
        assert!(known.surplus(Some(300), 0).is_empty() && known.surplus(None, 0).is_empty());
        assert_eq!(known.surplus(Some(300), 50), [first[0].0]);
        assert_eq!(known.take(5, &[1; 32], 9), None, "it went");
        let (found, _) = known.take(5, &[3; 32], 9).unwrap();
        assert_eq!(found, KnownShard::Idle { place: third[0].0 });
        assert!(known.surplus(Some(0), 0).is_empty(), "nothing is idle");
        assert_eq!((known.leave(4).len(), known.leave(5).len(), known.leave(5).len()), (1, 1, 0));
        assert_eq!((known.held_bytes(), known.surplus(Some(0), 0).len(), known.idle_bytes()), (0, 2, 0));
    }

    #[test]
    fn what_may_be_wrong_is_not_found_again() {
        let mut known = ShardInventory::default();
        known.add([1; 32], encoded(1, 0));
        known.add([2; 32], encoded(1, 1));
        known.take(2, &[1; 32], 9).unwrap();
        known.forget(1);
        assert_eq!((known.held_bytes(), known.idle_bytes()), (100, 0));
        assert_eq!((known.take(3, &[1; 32], 9).is_some(), known.take(3, &[2; 32], 9)), (true, None));
    }

    /// The identity of a block behind others: what of two contexts is the same are their first blocks.
    fn chain(words: &[u8]) -> Vec<ShardIdentity> {
        (1..=words.len()).map(|end| std::array::from_fn(|at| *words[..end].get(at).unwrap_or(&0))).collect()
    }

    proptest! {
        /// What is found of a context is the longest beginning that any context before it had, as long as there is room; and when
        /// there is not, a beginning all the same, and no more bytes than that.
        #[test]
        fn the_longest_shared_beginning_is_found(
            contexts in prop::collection::vec(prop::collection::vec(1_u8..3, 1..6), 1..8),
            room in prop::option::of(0_u64..2000),
        ) {
            let mut known = ShardInventory::default();
            let mut before: Vec<Vec<ShardIdentity>> = Vec::new();
            for (number, words) in contexts.iter().enumerate() {
                let (number, blocks) = (number as u64, chain(words));
                let found: Vec<bool> = blocks.iter().map(|block| known.take(number, block, 9).is_some()).collect();
                let count = found.iter().take_while(|found| **found).count();
                prop_assert!(found[count..].iter().all(|found| !found), "no hole: {:?}", found);
                let shared = |other: &Vec<ShardIdentity>| other.iter().zip(&blocks).take_while(|(a, b)| a == b).count();
                let longest = before.iter().map(shared).max().unwrap_or(0);
                match room {
                    None => prop_assert_eq!(count, longest),
                    Some(_) => prop_assert!(count <= longest),
                }
                for (block, identity) in blocks.iter().enumerate().skip(count) {
                    known.add(*identity, encoded(number, block as u32));
                }
                before.push(blocks);
                known.leave(number);
                known.surplus(room.map(|room| room.max(600)), 0);
                prop_assert!(room.is_none_or(|room| known.held_bytes() + known.idle_bytes() <= room.max(600)));
            }
        }
    }
}
