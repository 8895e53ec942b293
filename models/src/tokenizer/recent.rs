//! Ids of the parts of texts that were tokenised last: a conversation comes with every turn, and all of it each time. Tokenises nothing.

use std::{
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use lru::LruCache;

use super::place::TextPlace;

/// Bytes of a part that is kept, at least: a shorter one is tokenised as soon as it is found.
const KEPT_FROM: usize = 4 << 10;
/// Bytes that all of them take, at most.
const KEPT_BYTES: usize = 32 << 20;
/// Bytes that one takes beside its ids, about.
const BESIDE_IDS: usize = 128;

/// What the ids of a part follow from, by its hash.
pub type PartHash = [u8; 32];

/// The parts that were asked for last.
pub struct RecentParts {
    parts: Mutex<Parts>,
    /// Bytes of a part that is kept, at least, and that all of them take, at most.
    sizes: (usize, usize),
}

struct Parts {
    ids: LruCache<PartHash, Arc<[u32]>>,
    bytes: usize,
}

impl Default for RecentParts {
    fn default() -> Self {
        Self::of((KEPT_FROM, KEPT_BYTES))
    }
}

impl RecentParts {
    pub(super) fn of(sizes: (usize, usize)) -> Self {
        Self { parts: Mutex::new(Parts { ids: LruCache::unbounded(), bytes: 0 }), sizes }
    }

    /// Hash of a part of a text with these literals, if such a part is kept.
    pub fn hash(
        &self,
        (text, literals): (&str, &[Range<usize>]),
        part: &Range<usize>,
        place: TextPlace,
    ) -> Option<PartHash> {
        if part.len() < self.sizes.0 {
            return None;
        }
        let mut hasher = blake3::Hasher::new();
        hasher.update(&place.before.map_or(0, u32::from).to_le_bytes());
        hasher.update(&[u8::from(place.before.is_some()), u8::from(place.inside)]);
        let first = literals.partition_point(|literal| literal.end <= part.start);
        let within = literals[first..].iter().take_while(|literal| literal.start < part.end);
        for literal in within {
            let [start, end] = [literal.start.max(part.start), literal.end.min(part.end)];
            for at in [start, end] {
                hasher.update(&((at - part.start) as u64).to_le_bytes());
            }
        }
        // No literal ends where none has begun.
        hasher.update(&u64::MAX.to_le_bytes());
        Some(*hasher.update(&text.as_bytes()[part.clone()]).finalize().as_bytes())
    }

    /// Its ids, if they are known.
    pub fn find(&self, hash: &PartHash) -> Option<Arc<[u32]>> {
        self.lock().ids.get(hash).cloned()
    }

    /// Its ids are these.
    pub fn keep(&self, hash: PartHash, ids: Arc<[u32]>) {
        let mut parts = self.lock();
        parts.bytes += bytes_of(&ids);
        let mut gone = parts.ids.put(hash, ids);
        loop {
            parts.bytes -= gone.map_or(0, |ids| bytes_of(&ids));
            if parts.bytes <= self.sizes.1 {
                return;
            }
            gone = parts.ids.pop_lru().map(|(_, ids)| ids);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Parts> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn bytes_of(ids: &[u32]) -> usize {
    size_of_val(ids) + BESIDE_IDS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_told_apart_by_all_that_their_ids_follow_from() {
        let text = format!("{0}{0}", "a".repeat(KEPT_FROM));
        let hash = |part: Range<usize>, before, inside, literals: &[Range<usize>]| {
            RecentParts::default().hash((&text, literals), &part, TextPlace { before, inside })
        };
        let (first, all) = (0..KEPT_FROM, 0..2 * KEPT_FROM);
        let other = KEPT_FROM..2 * KEPT_FROM;
        assert_eq!(hash(0..KEPT_FROM - 1, None, false, &[]), None, "it is short");
        assert_eq!(hash(first.clone(), None, false, &[]), hash(other.clone(), None, false, &[]));
        assert_eq!(hash(first.clone(), None, false, std::slice::from_ref(&all)), hash(other, None, false, &[all]));
        let [one, two] = [0..1, 0..2];
        let hashes = [
            hash(first.clone(), None, false, &[]),
            hash(first.clone(), Some('\0'), false, &[]),
            hash(first.clone(), Some('a'), false, &[]),
            hash(first.clone(), Some('a'), true, &[]),
            hash(first.clone(), None, false, std::slice::from_ref(&one)),
            hash(first.clone(), None, false, std::slice::from_ref(&two)),
            hash(first.clone(), None, false, &[0..1, 2..3]),
            hash(0..KEPT_FROM + 1, None, false, &[]),
        ];
        assert!((0..hashes.len()).all(|at| hashes[at].is_some() && !hashes[..at].contains(&hashes[at])));
    }

    #[test]
    fn what_was_not_asked_for_the_longest_goes_first() {
        let recent = RecentParts::of((1, 3 * (400 + BESIDE_IDS)));
        let [a, b, c, d] = [1, 2, 3, 4].map(|salt: u8| [salt; 32]);
        [a, b, c].into_iter().for_each(|hash| recent.keep(hash, [u32::from(hash[0]); 100].into()));
        assert_eq!(recent.find(&a).as_deref(), Some(&[1; 100][..]));
        recent.keep(d, [4; 100].into());
        assert_eq!([a, b, c, d].map(|hash| recent.find(&hash).is_some()), [true, false, true, true]);
        recent.keep(d, [5; 100].into());
        assert_eq!(recent.lock().bytes, 3 * (400 + BESIDE_IDS), "one that is kept anew counts once");
        recent.keep(b, [0; 1000].into());
        assert!(recent.find(&b).is_none() && recent.lock().bytes == 0, "what is too large is not kept");
    }
}
