//! Numbers from a seed, for faults and for tests that want many inputs. Not for cryptography.

use std::{ops::RangeInclusive, time::Duration};

/// A stream of numbers (SplitMix64, Steele et al., 2014).
#[derive(Clone, Debug)]
pub struct Draw(u64);

impl Draw {
    /// The same seed draws the same numbers.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`; 0 where there is none.
    pub fn below(&mut self, limit: usize) -> usize {
        ((u128::from(self.number()) * limit as u128) >> 64) as usize
    }

    /// Whether something of this chance, from 0 to 1, happens.
    pub fn happens(&mut self, chance: f64) -> bool {
        // The upper 53 bits are all that an f64 holds.
        ((self.number() >> 11) as f64) < chance * (1u64 << 53) as f64
    }

    /// A duration within the range, to the nanosecond.
    pub fn within(&mut self, range: &RangeInclusive<Duration>) -> Duration {
        let width = range.end().saturating_sub(*range.start()).as_nanos() as u64;
        let share = (u128::from(self.number()) * (u128::from(width) + 1)) >> 64;
        *range.start() + Duration::from_nanos(share as u64)
    }

    /// `length` bytes.
    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length.div_ceil(8)).flat_map(|_| self.number().to_le_bytes()).take(length).collect()
    }

    /// Damages `bytes` as a faulty peer would: flips bits, overwrites, cuts off, inserts, or repeats a piece.
    pub fn damage(&mut self, bytes: &mut Vec<u8>) {
        /// Numbers at which lengths and offsets go wrong.
        const EDGES: [u64; 8] = [0, 1, 0x7f, 0xff, 0xffff, 0x7fff_ffff, 0xffff_ffff, u64::MAX];
        for _ in 0..=self.below(4) {
            let at = self.below(bytes.len() + 1);
            let end = bytes.len().min(at + self.below(16));
            match self.below(6) {
                0 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
                1 => {
                    let edge = EDGES[self.below(EDGES.len())].to_le_bytes();
                    bytes[at..end].iter_mut().zip(edge).for_each(|(byte, edge)| *byte = edge);
                }
                2 => bytes.truncate(at),
                3 => {
                    let inserted = self.below(16);
                    drop(bytes.splice(at..at, self.bytes(inserted)));
                }
                4 => {
                    let piece = bytes[at..end].to_vec();
                    let to = self.below(bytes.len() + 1);
                    drop(bytes.splice(to..to, piece));
                }
                _ => drop(bytes.drain(at..end)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_repeat_with_their_seed_and_stay_in_range() {
        let numbers = |seed| {
            let mut draw = Draw::new(seed);
            (0..100).map(|_| draw.number()).collect::<Vec<_>>()
        };
        assert_eq!(numbers(3), numbers(3));
        assert_ne!(numbers(3), numbers(4));
        let mut draw = Draw::new(5);
        let range = Duration::from_millis(2)..=Duration::from_millis(3);
        assert!((0..100).all(|_| draw.below(7) < 7 && range.contains(&draw.within(&range))));
        assert_eq!((draw.below(0), draw.bytes(13).len()), (0, 13));
        assert_eq!(draw.within(&(Duration::ZERO..=Duration::ZERO)), Duration::ZERO);
        assert!(draw.happens(1.0) && !draw.happens(0.0));
    }
}
